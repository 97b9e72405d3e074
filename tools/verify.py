"""The command optbert-verify."""

from gluon_optbert.commands import verify as main

if __name__ == '__main__':
    raise SystemExit(main())
