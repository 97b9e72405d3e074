"""The command optbert-score."""

from gluon_optbert.commands import score as main

if __name__ == '__main__':
    raise SystemExit(main())
