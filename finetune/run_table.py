"""The command optbert-table."""

from gluon_optbert.commands import table as main

if __name__ == '__main__':
    raise SystemExit(main())
