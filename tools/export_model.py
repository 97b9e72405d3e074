"""Export a model directory as symbol and parameters that plain MXNet loads."""
import dataclasses
import sys
from pathlib import Path
from typing import Optional

from gluon_optbert.checkpoint import read_model
from gluon_optbert.deploy import HEADS, export, without_gates
from gluon_optbert.recipe import command, option, parse
from gluon_optbert.verification import read_alphas


@dataclasses.dataclass(frozen=True)
class ExportRecipe:
    """What to export, and where to."""
    model: Path = option('model directory, with gates or without')
    output: Path = option('deployment directory to write')
    head: Optional[str] = option('what it computes: encoded tokens and pooled output, NSP and MLM scores too, or the scores of '
                                 'the task that it was fine-tuned for; the task\'s by default, else the encoder\'s', None,
                                 choices=tuple(HEADS))
    alphas: Optional[Path] = option('alphas.npz of gates to fold first; units at zero are cut', None)


@command
def main(argv=None):
    """Export, and say what was written and how near it is."""
    recipe = parse(ExportRecipe, argv, description=__doc__, positional='model',
                   example='python tools/export_model.py runs/pruned/round-4/model --output deploy')
    saved = read_model(recipe.model)
    saved = without_gates(saved, read_alphas(recipe.alphas) if recipe.alphas else None)
    for name, difference in export(saved, recipe.output, head=recipe.head).items():
        print(f'{name}: largest difference {difference:.1e} of its largest value, loaded again by plain MXNet')
    print(f'wrote {recipe.output}: model-symbol.json, model-0000.params, architecture.json, vocab.txt, manifest.json')


if __name__ == '__main__':
    sys.exit(main())
