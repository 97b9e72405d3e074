"""Let every library that reads exports read every export, and say how far it is from the network.

The networks are an encoder, a classifier and a network that answers questions. Each has the widths of the
given model, uneven widths, and a layer without filters. Widths are cut at random and heads are random, since
only numbers are compared. Each is exported in float32, int8 and bfloat16.

The environment of the libraries is made by

    python benchmarks/peers/install.py peers --only consumers
"""

from __future__ import annotations

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Mapping, Sequence, Tuple

import numpy as np
from consumer_trials import HEADS, IN_C, IN_PYTHON, SERVICE, WIDTHS, Cell, Trial, compiled, networks
from workers import SCRIPTS, peer_python

from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.deployment.description import SYMBOL
from gluon_optbert.deployment.instances import read_instances
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import table_beside, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict

PRECISIONS = ('float32', 'int8', 'bfloat16')
SENTENCES, CALIBRATION = 8, 64
NO_KERNELS = 'ONNX Runtime has no bfloat16 in its CPU kernels'


@dataclasses.dataclass(frozen=True)
class Consumer:
    """A library that reads exports.

    Parameters
    ----------
    name : str
    files : mapping of precision to (folder, file)
        What it reads of a network's exports.
    without : mapping of precision or head to str
        Why it does not read an export.
    """

    name: str
    files: Mapping[str, Tuple[str, str]]
    without: Mapping[str, str] = dataclasses.field(default_factory=dict)


CONSUMERS = (
    Consumer(
        'Transformers',
        {'float32': ('transformers', 'model.safetensors'), 'bfloat16': ('transformers', 'model.safetensors')},
        {'int8': 'PyTorch has no int8 weights in safetensors for BERT; quantise the loaded network there'},
    ),
    Consumer(
        'sentence-transformers',
        {'float32': ('sentences', 'onnx/model.onnx'), 'int8': ('sentences', 'onnx/model_quantized.onnx')},
        {'bfloat16': NO_KERNELS, 'classifier': 'gives embeddings only', 'questions': 'gives embeddings only'},
    ),
    Consumer(
        'Optimum',
        {'float32': ('optimum', 'model.onnx'), 'int8': ('optimum', 'model_quantized.onnx')},
        {'bfloat16': NO_KERNELS},
    ),
    Consumer(
        'ONNX Runtime',
        {'float32': ('float32', 'model.onnx'), 'int8': ('int8', 'model.onnx')},
        {'bfloat16': NO_KERNELS},
    ),
    Consumer(
        'ONNX Runtime, dynamic',
        {'int8': ('int8', 'model_dynamic.onnx')},
        {'float32': 'the file is in int8', 'bfloat16': 'the file is in int8'},
    ),
    Consumer(
        'OpenVINO',
        {
            'float32': ('float32', 'model.onnx'),
            'int8': ('int8', 'model.onnx'),
            'bfloat16': ('float32', 'model.onnx'),
        },
    ),
    *(
        Consumer(
            name,
            {precision: (precision, SYMBOL) for precision in ('float32', 'bfloat16')},
            {'int8': 'int8 is written as ONNX; the network for MXNet stays in float32'},
        )
        for name in (IN_PYTHON, IN_C)
    ),
    Consumer(
        SERVICE,
        {
            'float32': ('float32', 'model.onnx'),
            'int8': ('int8', 'model.onnx'),
            'bfloat16': ('float32', 'model.onnx'),
        },
    ),
)


class ConsumersRecipe(Recipe):
    """What is tried."""

    model: Path = option('model directory of an encoder')
    text: Path = option('file with a sentence on each line, for the inputs and for the ranges of int8')
    peers: Path = option(
        "directory of the peers' environments, made by benchmarks/peers/install.py", Path('peers')
    )
    output: Path | None = option('JSON file to write, the table as Markdown beside it', None)


def cells_of(widths: str, head: str) -> List[Cell]:
    """The cells of a network: what each consumer reads, or why it reads nothing."""
    cells = []
    for consumer in CONSUMERS:
        for precision in PRECISIONS:
            reason = consumer.without.get(head) or consumer.without.get(precision)
            folder, file = (None, None) if reason else consumer.files[precision]
            cells.append(
                {
                    'consumer': consumer.name,
                    'precision': precision,
                    'widths': widths,
                    'head': head,
                    'folder': folder,
                    'file': file,
                    **({'without': reason} if reason else {}),
                }
            )
    return cells


def table(cells: Sequence[Cell]) -> str:
    """A table for each head: consumers in rows, precisions and widths in columns."""
    parts, notes = [], {}

    def text(cell: Cell) -> str:
        if 'difference' in cell:
            return f'{cell["difference"]:.1e}'
        reason = cell.get('error') or cell['without']
        return f'– ({notes.setdefault(reason, len(notes) + 1)})'

    for head in HEADS:
        rows = []
        for consumer in CONSUMERS:
            some = [cell for cell in cells if (cell['consumer'], cell['head']) == (consumer.name, head)]
            order = {(cell['precision'], cell['widths']): text(cell) for cell in some}
            rows.append([consumer.name, *(order[p, w] for p in PRECISIONS for w in WIDTHS)])
        columns = [f'{precision}, {widths}' for precision in PRECISIONS for widths in WIDTHS]
        parts += [f'### {head.capitalize()}', markdown_table([None, *columns], rows)]
    parts += [f'({number}) {reason}.' for reason, number in notes.items()]
    return '\n\n'.join(parts)


@command
def main(argv=None):
    """Export, let every consumer read, print the tables; 1 if one fails."""
    example = 'python benchmarks/try_consumers.py models/minilm --text sentences.txt --output consumers.json'
    recipe = parse(ConsumersRecipe, argv, description=__doc__, positional='model', example=example)
    if recipe.output:
        table_beside(recipe.output)
    text = [one.first for one in read_instances(recipe.text, PRETRAINING, most=SENTENCES + CALIBRATION)]
    python = peer_python(recipe.peers, 'consumers')
    every: List[Cell] = []
    with tempfile.TemporaryDirectory() as place:
        program = compiled(Path(place))
        for (widths, head), saved in networks(read_model(recipe.model)).items():
            folder = Path(place) / f'{WIDTHS.index(widths)}-{head}'
            trial = Trial(saved, widths, head, text[SENTENCES:], text[:SENTENCES], folder)
            cells = cells_of(widths, head)
            np.savez(folder / f'feed-{head}.npz', **trial.feed)
            (folder / 'sentences.json').write_text(json.dumps(text[:SENTENCES]))
            (folder / 'jobs.json').write_text(json.dumps(trial.jobs(cells)))
            subprocess.run([str(python), str(SCRIPTS / 'consumer.py'), str(folder / 'jobs.json')], check=True)
            trial.fill(cells, program, python)
            every += cells
            read, failed = (sum(name in cell for cell in cells) for name in ('difference', 'error'))
            print(f'{head}, {widths}: {read} read, {failed} failed', flush=True)
    print(table(every))
    if recipe.output:
        result = {'recipe': to_dict(recipe), 'cells': every, **origin_here()}
        write_file(recipe.output.with_suffix('.md'), (table(every) + '\n').encode())
        write_file(recipe.output, (json.dumps(result, indent=1) + '\n').encode())
        print(f'wrote {recipe.output} and its tables as .md')
    return int(any('error' in cell for cell in every))


if __name__ == '__main__':
    sys.exit(main())
