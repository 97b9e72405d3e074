"""The command optbert-finetune-glue."""

from gluon_optbert.commands import finetune_glue as main

if __name__ == '__main__':
    raise SystemExit(main())
