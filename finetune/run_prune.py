"""Prune a fine-tuned network for its task."""

import sys

from gluon_optbert.commands.prune_task import main

if __name__ == '__main__':
    sys.exit(main())
