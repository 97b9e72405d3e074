"""One page of HTML that opens from disk without network: how much smaller, faster and worse pruned networks
are than the network they were cut from, and everything that runs, models, results and tables tell.
"""

import sys

from gluon_optbert.commands.report import main

if __name__ == '__main__':
    sys.exit(main())
