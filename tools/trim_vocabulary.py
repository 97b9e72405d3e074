"""The command optbert-trim-vocabulary."""

from gluon_optbert.commands import trim_vocabulary as main

if __name__ == '__main__':
    raise SystemExit(main())
