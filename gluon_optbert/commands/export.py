"""Export a model directory for plain MXNet, in float32, int8 or bfloat16, and on request as ONNX."""

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Optional

from .. import export, read_model
from ..deployment.directory import PRECISIONS
from ..deployment.inference import KINDS
from ..deployment.instances import read_instances
from ..deployment.quantize import METHODS
from ..network.precision import bfloat16_is_native
from ..runs.command_line import parse
from ..runs.recipe import option
from ..tasks.task import known_head
from .starting import command, line


@dataclasses.dataclass(frozen=True)
class ExportRecipe:
    """What to export, and where to."""

    model: Path = option('model directory, with gates or without')
    output: Path = option('deployment directory to write')
    head: Optional[str] = option(
        'what the export computes. encoder: encoded tokens and pooled output; pretraining: NSP and MLM '
        'scores as well; task: the scores of the task. By default task for a fine-tuned model, else encoder',
        None,
        choices=KINDS,
    )
    precision: str = option("precision of the encoder's matrix products", 'float32', choices=PRECISIONS)
    calibrate: Optional[Path] = option(
        'calibration text for int8: on each line a sentence, or two with a tab between', None
    )
    calibration_lines: int = option('number of lines of calibration text to use', 256)
    calibration: str = option(
        'how to choose value ranges. naive: smallest and largest value; entropy: least KL divergence',
        'naive',
        choices=METHODS,
    )
    labelled: Optional[Path] = option(
        'labelled text, to compare the score with that of float32: a file of the task with its header, as '
        "GLUE's dev.tsv, or on each line text, tab, label",
        None,
    )
    onnx: bool = option('also write model.onnx, in float32', False)
    alphas: Optional[Path] = option(
        'alphas.npz with gates to fold into the parameters first; units whose gate is zero are cut', None
    )

    def problems(self) -> List[str]:
        """What is contradictory."""
        found = []
        if (self.precision == 'int8') != (self.calibrate is not None):
            found.append('--calibrate FILE goes with --precision int8, and int8 with it')
        if self.calibration_lines < 1:
            found.append(f'calibration_lines must be at least 1, found {self.calibration_lines}')
        if self.onnx and self.precision != 'float32':
            found.append('--onnx goes with --precision float32')
        return found


def say(measured: Dict[str, Any], recipe: ExportRecipe, *, labelled: int) -> None:
    """How near the export is to the float32 network, and what was written."""
    for name, difference in measured['relative_difference'].items():
        print(
            f'{name}: largest difference {difference:.1e} of its largest value, loaded again by plain MXNet'
        )
    for name, difference in measured.get('onnx_relative_difference', {}).items():
        print(f'{name}: largest difference {difference:.1e} of its largest value, in ONNX')
    if labelled:
        print(
            f'{labelled} labelled lines: {measured["score"]:.4f} in {recipe.precision}, '
            f'{measured["float32_score"]:.4f} in float32'
        )
    if recipe.precision == 'bfloat16' and not bfloat16_is_native():
        print(
            'this processor has neither avx512_bf16 nor amx_bf16: bfloat16 is emulated here, and slower than '
            'float32'
        )
    print(f'wrote {recipe.output}: ' + ', '.join(sorted(path.name for path in recipe.output.iterdir())))


@command
def main(argv=None):
    """Export, and say what was written and how near it is."""
    example = line('optbert-export', 'runs/pruned/round-4/model', '--output', 'deploy')
    recipe = parse(ExportRecipe, argv, description=__doc__, positional='model', example=example)
    saved = read_model(recipe.model)
    head = known_head(saved.head)
    calibration = (
        read_instances(recipe.calibrate, head, most=recipe.calibration_lines) if recipe.calibrate else []
    )
    labelled = read_instances(recipe.labelled, head, labelled=True) if recipe.labelled else []
    measured = export(
        saved,
        recipe.output,
        alphas=recipe.alphas,
        head=recipe.head,
        precision=recipe.precision,
        calibration=calibration,
        method=recipe.calibration,
        labelled=labelled,
        onnx=recipe.onnx,
    )
    say(measured, recipe, labelled=len(labelled))
