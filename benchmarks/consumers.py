"""Let every library that reads exports read every export, and say how far it is from the network.

The networks are an encoder, a classifier and a network that answers questions. Each has the widths of the
given model, uneven widths, and a layer without filters. Widths are cut at random and heads are random, since
only numbers are compared. Each is exported in float32, int8 and bfloat16.

The environment of the libraries is made by

    python benchmarks/peers/install.py peers --only consumers
"""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured import Measured, parsed, write
from workers import SCRIPTS, peer_python

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.parameters import network_shapes
from gluon_optbert.cutting.selection import Selection
from gluon_optbert.cutting.shrink import cut
from gluon_optbert.deployment.export import export, kind_of, network_of, relative_difference
from gluon_optbert.deployment.instances import Instance, read_instances
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.running import run
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.recipe import option
from gluon_optbert.text.tokenizer import make_tokenizer

PRECISIONS = ('float32', 'int8', 'bfloat16')
HEADS = {
    'encoder': PRETRAINING,
    'classifier': Head('classification', ('0', '1')),
    'questions': Head('question_answering'),
}
WIDTHS = ('plain', 'uneven', 'f = 0')
QUESTION = 'What is it about?'
LONGEST = 48  # tokens
SENTENCES, CALIBRATION = 8, 64
# the folder and the file that a library reads of a network in a precision; where there is none, why
_FLOAT32, _INT8 = ('float32', 'model.onnx'), ('int8', 'model.onnx')
_NO_KERNELS = 'ONNX Runtime has no bfloat16 in its CPU kernels'
CONSUMERS: dict[str, dict[str, Any]] = {
    'Transformers': {
        'float32': ('transformers', 'model.safetensors'),
        'int8': 'PyTorch has no int8 weights in safetensors for BERT; quantise the loaded network there',
        'bfloat16': ('transformers', 'model.safetensors'),
    },
    'sentence-transformers': {
        'float32': ('sentences', 'onnx/model.onnx'),
        'int8': ('sentences', 'onnx/model_quantized.onnx'),
        'bfloat16': _NO_KERNELS,
    },
    'Optimum': {
        'float32': ('optimum', 'model.onnx'),
        'int8': ('optimum', 'model_quantized.onnx'),
        'bfloat16': _NO_KERNELS,
    },
    'ONNX Runtime': {'float32': _FLOAT32, 'int8': _INT8, 'bfloat16': _NO_KERNELS},
    'OpenVINO': {'float32': _FLOAT32, 'int8': _INT8, 'bfloat16': _FLOAT32},
}
Cell = dict[str, Any]


class ConsumersRecipe(Measured):
    """What is tried."""

    model: Path = option('model directory of an encoder')
    text: Path = option('file with a sentence on each line, for the inputs and for the ranges of int8')
    peers: Path = option("directory of the peers' environments", Path('peers'))


def networks(saved: SavedModel) -> dict[tuple[str, str], SavedModel]:
    """The networks by widths and head."""
    made = {}
    for widths in WIDTHS:
        parameters, architecture = saved.parameters, saved.architecture
        if widths != 'plain':
            random, middle, kept = np.random.RandomState(0), f'f{len(architecture.layers) // 2}', {}
            for key, width in architecture.widths().items():
                share = random.uniform(0.5, 1) if widths == 'uneven' else float(key != middle)
                count = max(int(widths == 'uneven'), round(share * width))
                kept[key] = np.sort(random.permutation(width)[:count])
            parameters, architecture = cut(parameters, architecture, Selection(kept, 0.0, 0.0))
        for name, head in HEADS.items():
            random = np.random.RandomState(1)
            arrays = {
                key: parameters[key]
                if key in parameters
                else random.normal(0, 0.05, shape).astype(np.float32)
                for key, shape in network_shapes(architecture, head).items()
            }
            made[widths, name] = dataclasses.replace(
                saved, architecture=architecture, parameters=arrays, head=head
            )
    return made


def feed_of(saved: SavedModel, head: str, sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """Padded token ids of sentences, or of a question and each of them, by the names of Transformers."""
    tokenize, vocabulary = make_tokenizer(saved.vocabulary), saved.vocabulary
    start, end = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]
    first = [*tokenize(QUESTION), end] if head == 'questions' else []
    rows = [[start, *first, *tokenize(sentence)[:LONGEST], end] for sentence in sentences]
    shape = len(rows), max(map(len, rows))
    feed = {name: np.zeros(shape, np.int64) for name in ('input_ids', 'attention_mask', 'token_type_ids')}
    for i, row in enumerate(rows):
        feed['input_ids'][i, : len(row)] = row
        feed['attention_mask'][i, : len(row)] = 1
        feed['token_type_ids'][i, len(first) + 1 : len(row)] = int(bool(first))
    return feed


def cells_of(
    saved: SavedModel, widths: str, head: str, text: Sequence[str], place: Path, python: Path
) -> list[Cell]:
    """What every consumer makes of one network: the difference, an error, or why it reads nothing.

    Parameters
    ----------
    saved : SavedModel
    widths, head : str
    text : sequence of str
        Sentences to compare on, and after them those that the ranges of int8 are measured on.
    place : Path
        A new directory for the exports.
    python : Path
        The interpreter of the libraries.
    """
    sentences = text[:SENTENCES]
    feed = feed_of(saved, head, sentences)
    measured_on = [
        Instance(QUESTION, line) if head == 'questions' else Instance(line) for line in text[SENTENCES:]
    ]
    export(saved, place / 'float32', onnx=True)
    export(saved, place / 'int8', precision='int8', calibration=measured_on)
    export_transformers(saved, place / 'transformers')
    export_onnx(saved, place / 'optimum', precision='int8', calibration=measured_on)
    plain = {
        'input_ids': feed['input_ids'],
        'token_types': feed['token_type_ids'],
        'valid_length': feed['attention_mask'].sum(axis=1),
    }
    wanted = run(network_of(saved, kind_of(saved)), plain, TOKEN_INPUTS)
    embeddings = None
    if head == 'encoder':
        export_onnx(saved, place / 'sentences', precision='int8', calibration=measured_on, sentences=True)
        embeddings = Predictor(place / 'float32', engine='mxnet').encode(sentences)
    cells, jobs = [], []
    for consumer, files in CONSUMERS.items():
        for precision, source in files.items():
            if consumer == 'sentence-transformers' and head != 'encoder':
                source = 'gives embeddings only'
            cell = {'consumer': consumer, 'precision': precision, 'widths': widths, 'head': head}
            if isinstance(source, str):
                cells.append({**cell, 'without': source})
                continue
            folder, file = source
            output = place / f'{len(cells)}.npz'
            cells.append({**cell, 'folder': folder, 'file': file})
            job = {'library': consumer, 'directory': str(place / folder), 'file': file, 'head': head}
            jobs.append({**job, 'precision': precision, 'output': str(output)})
    np.savez(place / f'feed-{head}.npz', **feed)
    (place / 'sentences.json').write_text(json.dumps(sentences))
    (place / 'jobs.json').write_text(json.dumps(jobs))
    subprocess.run([str(python), str(SCRIPTS / 'consumer.py'), str(place / 'jobs.json')], check=True)
    for number, cell in enumerate(cells):
        output = place / f'{number}.npz'
        if 'without' in cell:
            continue
        if not output.exists():
            cell['error'] = Path(f'{output}.error').read_text()
            continue
        with np.load(output) as arrays:
            cell['difference'] = difference(dict(arrays), wanted, embeddings, feed['attention_mask'] > 0)
    return cells


def difference(
    arrays: Mapping[str, np.ndarray],
    wanted: Sequence[np.ndarray],
    embeddings: np.ndarray | None,
    valid: np.ndarray,
) -> float:
    """The largest relative difference at tokens that are no padding; of embeddings, the largest one."""
    if 'embeddings' in arrays:
        return float(np.abs(arrays['embeddings'] - embeddings).max())
    if 'start_logits' in arrays:
        outputs = [np.stack([arrays['start_logits'], arrays['end_logits']], axis=-1)]
    else:
        names = ('last_hidden_state', 'pooler_output', 'logits')
        outputs = [arrays[name] for name in names if name in arrays]

    def read(array: np.ndarray) -> np.ndarray:
        return array[valid] if array.shape[:2] == valid.shape else array

    return max(relative_difference(read(one), read(two)) for one, two in zip(outputs, wanted))


def table(cells: Sequence[Cell]) -> str:
    """A table for each head: consumers in rows, precisions and widths in columns."""
    parts, notes = [], {}
    for head in HEADS:
        rows = []
        for consumer in CONSUMERS:
            row = [consumer]
            for precision in PRECISIONS:
                for widths in WIDTHS:
                    where = (consumer, head, precision, widths)
                    (cell,) = (
                        one
                        for one in cells
                        if (one['consumer'], one['head'], one['precision'], one['widths']) == where
                    )
                    if 'difference' in cell:
                        row.append(f'{cell["difference"]:.1e}')
                    else:
                        reason = cell.get('error') or cell['without']
                        row.append(f'– ({notes.setdefault(reason, len(notes) + 1)})')
            rows.append(row)
        columns = [f'{precision}, {widths}' for precision in PRECISIONS for widths in WIDTHS]
        parts += [f'### {head.capitalize()}', markdown_table([None, *columns], rows)]
    parts += [f'({number}) {reason}.' for reason, number in notes.items()]
    return '\n\n'.join(parts)


@command
def main(argv=None):
    """Export, let every consumer read, print the tables; 1 if one fails."""
    recipe = parsed(
        ConsumersRecipe,
        argv,
        description=__doc__,
        positional='model',
        example='python benchmarks/consumers.py models/minilm --text sentences.txt --output consumers.json',
    )
    text = [one.first for one in read_instances(recipe.text, PRETRAINING, most=SENTENCES + CALIBRATION)]
    python = peer_python(recipe.peers, 'consumers')
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as place:
        for number, ((widths, head), saved) in enumerate(networks(read_model(recipe.model)).items()):
            folder = Path(place) / str(number)
            folder.mkdir()
            some = cells_of(saved, widths, head, text, folder, python)
            cells += some
            read, failed = (sum(name in cell for cell in some) for name in ('difference', 'error'))
            print(f'{head}, {widths}: {read} read, {failed} failed', flush=True)
    text = table(cells)
    print(text)
    write(recipe, text, cells=cells)
    return int(any('error' in cell for cell in cells))


if __name__ == '__main__':
    sys.exit(main())
