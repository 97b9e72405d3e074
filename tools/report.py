"""The command optbert-report."""

from gluon_optbert.commands import report as main

if __name__ == '__main__':
    raise SystemExit(main())
