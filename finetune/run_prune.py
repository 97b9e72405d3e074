"""The command optbert-prune-task."""

from gluon_optbert.commands import prune_task as main

if __name__ == '__main__':
    raise SystemExit(main())
