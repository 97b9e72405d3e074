"""Fine-tune a model directory, pruned or not, on SQuAD."""

import sys

from gluon_optbert.commands.finetune_squad import main

if __name__ == '__main__':
    sys.exit(main())
