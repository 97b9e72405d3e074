"""Run a whole results table of the paper on a base network: prune or build every row, fine-tune it, and
tabulate it.
"""

import sys

from gluon_optbert.commands.table import main

if __name__ == '__main__':
    sys.exit(main())
