"""Fine-tune a model directory, pruned or not, on a task of GLUE."""

import sys

from gluon_optbert.commands.finetune_glue import main

if __name__ == '__main__':
    sys.exit(main())
