"""Turn raw text into shards for pre-training."""

import sys

from gluon_optbert.commands.make_shards import main

if __name__ == '__main__':
    sys.exit(main())
