"""Import a public BERT checkpoint of Hugging Face, Google or GluonNLP as a model directory."""

import sys

from gluon_optbert.importing.convert import ImportRecipe, describe, import_checkpoint
from gluon_optbert.runs.command_line import command, parse


@command
def main(argv=None):
    """Import, and say what was read, dropped, made up and written."""
    recipe = parse(
        ImportRecipe,
        argv,
        description=__doc__,
        positional='source',
        example='python tools/import_checkpoint.py downloads/bert-base-uncased --output models/base',
    )
    print('\n'.join(describe(import_checkpoint(recipe), recipe)))


if __name__ == '__main__':
    sys.exit(main())
