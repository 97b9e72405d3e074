"""Prune a pre-trained BERT by Algorithm 1 of optBERT."""

import sys

from gluon_optbert.commands.prune import main

if __name__ == '__main__':
    sys.exit(main())
