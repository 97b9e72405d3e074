"""The command optbert-predict."""

from gluon_optbert.commands import predict as main

if __name__ == '__main__':
    raise SystemExit(main())
