"""Check that every round of a pruning run computes what its gated network computes, and its export too."""

import sys

from gluon_optbert.commands.verify import main

if __name__ == '__main__':
    sys.exit(main())
