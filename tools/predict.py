"""Predict with an exported classifier, regressor or question-answering network: a line of JSON for every line
of text.

A line of text is a sentence, two sentences with a tab between, or a question and its context with a tab
between. Lines are read as they are needed."""

import sys

from gluon_optbert.commands.predict import main

if __name__ == '__main__':
    sys.exit(main())
