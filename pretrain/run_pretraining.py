"""The command optbert-pretrain."""

from gluon_optbert.commands import pretrain as main

if __name__ == '__main__':
    raise SystemExit(main())
