"""Import a public BERT checkpoint of Hugging Face, Google or GluonNLP as a model directory."""

from .. import ImportRecipe, import_checkpoint
from ..architecture.heads import PRETRAINING
from ..importing.convert import describe
from ..runs.command_line import parse
from .starting import command, line


@command
def main(argv=None):
    """Import, and say what was read, dropped, made up and written."""
    example = line('optbert-import', 'downloads/bert-base-uncased', '--output', 'models/base')
    recipe = parse(ImportRecipe, argv, description=__doc__, positional='source', example=example)
    imported = import_checkpoint(recipe)
    print('\n'.join(describe(imported, recipe)))
    words = ['--model', recipe.output]
    if imported.model.progress.untrained:
        words += ['--shards', 'shards', '--output', f'{recipe.output}-heads']
        print(f'next: {line("optbert-pretrain", *words, recipe="pretrain/imported_heads")}')
    elif imported.model.head == PRETRAINING:
        words += ['--shards', 'shards', '--output', 'runs/pruned']
        print(f'next: {line("optbert-prune", *words, recipe="pretrain/imported_prune")}')
