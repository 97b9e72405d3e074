"""Pre-train a BERT of any widths on shards."""

import sys

from gluon_optbert.commands.pretrain import main

if __name__ == '__main__':
    sys.exit(main())
