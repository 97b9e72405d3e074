"""Check for every round of a pruning run that the cut network and its export equal the gated network.

Of a network with a trimmed vocabulary, check that it equals the whole one where all tokens stayed."""

import sys

from gluon_optbert.commands.verify import main

if __name__ == '__main__':
    sys.exit(main())
