"""The command optbert-make-shards."""

from gluon_optbert.commands import make_shards as main

if __name__ == '__main__':
    raise SystemExit(main())
