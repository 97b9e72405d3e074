"""Import a public BERT checkpoint of Hugging Face, Google or GluonNLP as a model directory."""

import sys

from gluon_optbert.commands.import_checkpoint import main

if __name__ == '__main__':
    sys.exit(main())
