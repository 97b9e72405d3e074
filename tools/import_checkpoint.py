"""The command optbert-import."""

from gluon_optbert.commands import import_checkpoint as main

if __name__ == '__main__':
    raise SystemExit(main())
