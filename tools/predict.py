"""Predict with an exported classifier, regressor or question-answering network: a line of JSON for every
text.

A line of text is a sentence, two sentences with a tab between, or a question and its context with a tab
between. A file that ends with .jsonl has a JSON object on each line, with text, text and pair, or question
and context. One that ends with .json has questions in SQuAD's format. A file of the network's task with a
header is read by its columns. With --embed, the export of an encoder gives embeddings."""

import sys

from gluon_optbert.commands.predict import main

if __name__ == '__main__':
    sys.exit(main())
