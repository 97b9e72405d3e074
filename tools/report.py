"""One page of HTML for runs, models, searches, results and tables, which opens from disk without network."""

import sys

from gluon_optbert.commands.report import main

if __name__ == '__main__':
    sys.exit(main())
