"""Score a file of predictions on a task of GLUE or on SQuAD, as the official scripts do.

Predictions are what tools/predict.py prints; or a submission of GLUE, with the columns index and prediction;
or SQuAD's predictions.json, texts by question id."""

import sys

from gluon_optbert.commands.score import main

if __name__ == '__main__':
    sys.exit(main())
