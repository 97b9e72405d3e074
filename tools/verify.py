"""Check for every round of a pruning run that the cut network and its export equal the gated network."""

import sys

from gluon_optbert.commands.verify import main

if __name__ == '__main__':
    sys.exit(main())
