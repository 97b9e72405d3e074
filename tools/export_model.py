"""The command optbert-export."""

from gluon_optbert.commands import export as main

if __name__ == '__main__':
    raise SystemExit(main())
