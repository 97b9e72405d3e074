"""The command optbert-finetune-squad."""

from gluon_optbert.commands import finetune_squad as main

if __name__ == '__main__':
    raise SystemExit(main())
