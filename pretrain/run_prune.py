"""The command optbert-prune."""

from gluon_optbert.commands import prune as main

if __name__ == '__main__':
    raise SystemExit(main())
