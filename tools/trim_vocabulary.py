"""Trim the vocabulary of a network to a text: tokens that the text does not use lose their embedding.

Special tokens and single characters stay."""

import sys

from gluon_optbert.commands.trim_vocabulary import main

if __name__ == '__main__':
    sys.exit(main())
