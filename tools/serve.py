"""The command optbert-serve."""

from gluon_optbert.commands import serve as main

if __name__ == '__main__':
    raise SystemExit(main())
