"""One network in try_consumers.py: its exports, its inputs, and what every library makes of them."""

from __future__ import annotations

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import dataclasses
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from service import LoadRecipe, started
from workers import SCRIPTS

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.parameters import network_shapes
from gluon_optbert.cutting.selection import Selection
from gluon_optbert.cutting.shrink import cut
from gluon_optbert.deployment.description import PARAMETERS, SYMBOL
from gluon_optbert.deployment.export import export, kind_of, network_of, relative_difference
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.deployment.mxnet_network import import_symbol
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.running import run
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.text.tokenizer import make_tokenizer

HEADS = {
    'encoder': PRETRAINING,
    'classifier': Head('classification', ('0', '1')),
    'questions': Head('question_answering'),
}
WIDTHS = ('plain', 'uneven', 'f = 0')
QUESTION = 'What is it about?'
LONGEST = 48  # tokens
# Consumers that are called from here.
IN_PYTHON, IN_C, SERVICE = 'MXNet in Python', 'MXNet in C', 'the service'
Cell = Dict[str, Any]


def networks(saved: SavedModel) -> Dict[Tuple[str, str], SavedModel]:
    """The networks by widths and head."""
    made = {}
    for widths in WIDTHS:
        parameters, architecture = saved.parameters, saved.architecture
        if widths != 'plain':
            parameters, architecture = cut(parameters, architecture, _selection(architecture, widths))
        for name, head in HEADS.items():
            random = np.random.RandomState(1)
            shapes = network_shapes(architecture, head)
            arrays = {
                key: parameters[key]
                if key in parameters
                else random.normal(0, 0.05, shape).astype(np.float32)
                for key, shape in shapes.items()
            }
            made[widths, name] = dataclasses.replace(
                saved, architecture=architecture, parameters=arrays, head=head
            )
    return made


def _selection(architecture: Any, widths: str) -> Selection:
    """Random units: about three quarters of every width, or no filters in the middle layer."""
    random, middle = np.random.RandomState(0), f'f{len(architecture.layers) // 2}'
    kept = {}
    for key, width in architecture.widths().items():
        share = random.uniform(0.5, 1) if widths == 'uneven' else float(key != middle)
        count = max(int(widths == 'uneven'), round(share * width))
        kept[key] = np.sort(random.permutation(width)[:count])
    return Selection(kept, 0.0, 0.0)


def write_exports(saved: SavedModel, head: str, text: Sequence[Instance], place: Path) -> None:
    """Every export of a network, each in a folder of its own."""
    export(saved, place / 'float32', onnx=True)
    export(saved, place / 'int8', precision='int8', calibration=text, onnx=True)
    export(saved, place / 'bfloat16', precision='bfloat16')
    export_transformers(saved, place / 'transformers')
    export_onnx(saved, place / 'optimum', precision='int8', calibration=text)
    if head == 'encoder':
        export_onnx(saved, place / 'sentences', precision='int8', calibration=text, sentences=True)


def feed_of(saved: SavedModel, head: str, sentences: Sequence[str]) -> Dict[str, np.ndarray]:
    """Padded token ids of sentences, or of a question and each of them, by the names of Transformers."""
    tokenize, vocabulary = make_tokenizer(saved.vocabulary), saved.vocabulary
    start, end = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]
    first = [*tokenize(QUESTION), end] if head == 'questions' else []
    rows = [[start, *first, *tokenize(sentence)[:LONGEST], end] for sentence in sentences]
    length = max(map(len, rows))
    names = ('input_ids', 'attention_mask', 'token_type_ids')
    feed = {name: np.zeros((len(rows), length), np.int64) for name in names}
    for i, row in enumerate(rows):
        feed['input_ids'][i, : len(row)] = row
        feed['attention_mask'][i, : len(row)] = 1
        feed['token_type_ids'][i, len(first) + 1 : len(row)] = int(bool(first))
    return feed


def plain_feed(feed: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """The same by the names of exports for MXNet."""
    return {
        'input_ids': feed['input_ids'],
        'token_types': feed['token_type_ids'],
        'valid_length': feed['attention_mask'].sum(axis=1),
    }


def in_c(
    program: Path, directory: Path, feed: Mapping[str, np.ndarray], shape: Tuple[int, ...]
) -> np.ndarray:
    """The first output of an export by the C interface of MXNet."""
    path = program.with_suffix('.feed')
    path.write_bytes(b''.join(np.asarray(feed[name], np.float32).tobytes() for name in TOKEN_INPUTS))
    words = [program, directory / SYMBOL, directory / PARAMETERS, path, *feed['input_ids'].shape]
    done = subprocess.run(list(map(str, words)), capture_output=True)
    if done.returncode:
        raise RuntimeError((done.stderr.decode().strip().splitlines() or ['it ended'])[-1])
    return np.frombuffer(done.stdout, np.float32).reshape(shape)


def compiled(place: Path) -> Path:
    """The C program; CalledProcessError if there is no compiler."""
    package, program = Path(mx.__file__).parent, place / 'predict'
    words = ['gcc', SCRIPTS / 'predict.c', '-o', program, '-I', package / 'include', '-L', package, '-lmxnet']
    subprocess.run([*map(str, words), f'-Wl,-rpath,{package}'], check=True, capture_output=True)
    return program


def served(python: Path, directory: Path, head: str, sentences: Sequence[str], precision: str) -> List[Any]:
    """What the service answers to sentences, or to a question about each; in bfloat16 by OpenVINO."""
    flags = {'engine': 'openvino', 'precision': precision} if precision == 'bfloat16' else {}
    recipe = LoadRecipe(service=str(directory), **flags)
    items = [{'question': QUESTION, 'context': s} if head == 'questions' else {'text': s} for s in sentences]
    with started(recipe, python=python) as address:
        request = urllib.request.Request(
            f'{address}/{"embed" if head == "encoder" else "predict"}',
            json.dumps({'instances': items}).encode(),
            {'Content-Type': 'application/json'},
        )
        with urllib.request.urlopen(request) as response:
            return next(iter(json.loads(response.read()).values()))


def service_difference(directory: Path, head: str, sentences: Sequence[str], answers: List[Any]) -> float:
    """How far the service's answers are from those of plain MXNet in float32.

    Of embeddings and probabilities it is the largest difference, of answers to questions the share that
    differ.
    """
    predictor = Predictor(directory, engine='mxnet')
    if head == 'encoder':
        return float(np.abs(np.array(answers) - predictor.encode(sentences)).max())
    if head == 'classifier':
        wanted = [one.probabilities for one in predictor.predict(sentences)]
        return max(
            abs(answer['probabilities'][label] - share)
            for answer, shares in zip(answers, wanted)
            for label, share in shares.items()
        )
    texts = [one.text for one in predictor.predict((QUESTION, sentence) for sentence in sentences)]
    return float(np.mean([answer['text'] != text for answer, text in zip(answers, texts)]))


class Trial:
    """One network: its exports, its inputs, and what every consumer makes of them.

    Parameters
    ----------
    saved : SavedModel
    widths, head : str
    text : sequence of Instance
    sentences : sequence of str
    place : Path
    """

    def __init__(
        self,
        saved: SavedModel,
        widths: str,
        head: str,
        text: Sequence[str],
        sentences: Sequence[str],
        place: Path,
    ):
        self.widths, self.head, self.place, self._sentences = widths, head, place, sentences
        instances = [Instance(QUESTION, line) if head == 'questions' else Instance(line) for line in text]
        write_exports(saved, head, instances, place)
        self.feed = feed_of(saved, head, sentences)
        network = network_of(saved, kind_of(saved))
        self.wanted = run(network, plain_feed(self.feed), TOKEN_INPUTS)
        self._embeddings = (
            Predictor(place / 'float32', engine='mxnet').encode(sentences) if head == 'encoder' else None
        )

    def _in_python(self, directory: Path) -> List[np.ndarray]:
        feed = plain_feed(self.feed)
        return run(import_symbol(directory, TOKEN_INPUTS), feed, TOKEN_INPUTS)

    def jobs(self, cells: List[Cell]) -> List[Dict[str, str]]:
        """What is computed in another environment, for cells whose exports another library reads."""
        return [
            {
                'library': cell['consumer'].partition(',')[0],
                'directory': str(self.place / cell['folder']),
                'file': cell['file'],
                'head': self.head,
                'precision': cell['precision'],
                'output': str(self.place / f'{i}.npz'),
            }
            for i, cell in enumerate(cells)
            if cell['folder'] and cell['consumer'] not in (IN_PYTHON, IN_C, SERVICE)
        ]

    def fill(self, cells: List[Cell], program: Path, python: Path) -> None:
        """The differences of all cells, those of other environments from the files that they have left."""
        for i, cell in enumerate(cells):
            if cell['folder'] is None:
                continue
            directory, output = self.place / cell['folder'], self.place / f'{i}.npz'
            try:
                if cell['consumer'] == IN_PYTHON:
                    cell['difference'] = self._worst(self._in_python(directory))
                elif cell['consumer'] == IN_C:
                    first = in_c(program, directory, plain_feed(self.feed), self.wanted[0].shape)
                    cell['difference'] = self._worst([first])
                elif cell['consumer'] == SERVICE:
                    answers = served(python, directory, self.head, self._sentences, cell['precision'])
                    cell['difference'] = service_difference(
                        self.place / 'float32', self.head, self._sentences, answers
                    )
                elif Path(f'{output}.error').exists():
                    cell['error'] = Path(f'{output}.error').read_text()
                else:
                    with np.load(output) as arrays:
                        cell['difference'] = self._of_library(dict(arrays))
            except Exception as error:  # a cell of the table, whatever it is
                cell['error'] = f'{type(error).__name__}: {error}'.splitlines()[0][:300]

    def _of_library(self, arrays: Mapping[str, np.ndarray]) -> float:
        if 'embeddings' in arrays:
            return float(np.abs(arrays['embeddings'] - self._embeddings).max())
        if 'start_logits' in arrays:
            return self._worst([np.stack([arrays['start_logits'], arrays['end_logits']], axis=-1)])
        names = ('last_hidden_state', 'pooler_output', 'logits')
        return self._worst([arrays[name] for name in names if name in arrays])

    def _worst(self, outputs: Sequence[np.ndarray]) -> float:
        """The largest relative difference at tokens that are no padding."""
        valid = self.feed['attention_mask'].astype(bool)

        def read(array: np.ndarray) -> np.ndarray:
            return array[valid] if array.shape[:2] == valid.shape else array

        return max(relative_difference(read(one), read(two)) for one, two in zip(outputs, self.wanted))
