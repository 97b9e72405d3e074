"""Make one HTML page: how much worse, smaller and faster pruned networks are than their base, and everything
else about runs, models, results and tables. The page opens from disk and loads nothing.
"""

import sys

from gluon_optbert.commands.report import main

if __name__ == '__main__':
    sys.exit(main())
