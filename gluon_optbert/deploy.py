"""Export: a symbol and parameters that plain MXNet loads, in a directory that describes itself.

    model-symbol.json  model-0000.params  architecture.json  vocab.txt  manifest.json
"""
from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from .checkpoint import SavedModel, check_manifest, write_manifest
from .cost import ParameterCost
from .heads import PRETRAINING
from .staging import new_directory
from .model import OptBERTModel, build
from .recipe import RunFailed
from .selection import Alphas, Selection, keep_all
from .shrink import shrink
from .vocabulary import vocabulary_hash, write_vocabulary

FORMAT, VERSION = 'gluon_optbert deployment', 1
TOLERANCE = 1e-5  # of the largest activation: float32 has 6e-8, and sums run in another order
INPUTS = {'input_ids': ('batch', 'length'), 'token_types': ('batch', 'length'), 'valid_length': ('batch',),
          'masked_positions': ('batch', 'masked')}
OUTPUTS = {'encoded': ('batch', 'length', 'h'), 'pooled': ('batch', 'h'), 'next_sentence_scores': ('batch', 2),
           'masked_scores': ('batch', 'masked', 'vocab_size')}
TASK_OUTPUTS = {'classification': ('batch', 'labels'), 'regression': ('batch', 1), 'question_answering': ('batch', 'length', 2)}
HEADS = {'encoder': 3, 'pretraining': 4, 'task': 3}  # and how many inputs each takes


class NotEqual(RunFailed):
    """Two routes that should compute the same do not."""


def relative_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference between two arrays over the largest magnitude of the second; inf if one is not finite."""
    if found.shape != wanted.shape or not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return float('inf')
    return float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))


def random_feed(architecture: Any, *, batch: int, length: int, seed: int = 0) -> Dict[str, np.ndarray]:
    """Random inputs of a shape, with padding in every second row."""
    generator = np.random.RandomState(seed)
    valid = np.full(batch, length)
    valid[1::2] = np.maximum(2, length // 2)
    return {'input_ids': generator.randint(0, architecture.vocab_size, (batch, length)),
            'token_types': generator.randint(0, architecture.token_types, (batch, length)),
            'valid_length': valid, 'masked_positions': generator.randint(0, 2, (batch, 3))}


def run(block: Any, feed: Mapping[str, np.ndarray], names: Sequence[str]) -> List[np.ndarray]:
    """What a block makes of inputs given by name."""
    outputs = block(*(mx.nd.array(feed[name], dtype='float32') for name in names))
    return [output.asnumpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


def _network(saved: SavedModel, head: str, **options: Any) -> OptBERTModel:
    whole = head == 'pretraining'
    return build(saved.architecture, saved.parameters, trainable=False, use_classifier=whole, use_decoder=whole, head=saved.head,
                 prefix='bert_', **options)


def without_gates(saved: SavedModel, alphas: Optional[Alphas] = None) -> SavedModel:
    """Fold gates into the weights and cut the units at zero; a model without gates as it is.

    Parameters
    ----------
    saved : SavedModel
    alphas : mapping of width key to np.ndarray, optional
        Gates to use instead of the model's own.

    Raises
    ------
    ValueError
        If a gate vector has no unit left.
    """
    alphas = saved.alphas if alphas is None else alphas
    if not alphas:
        return saved
    whole = keep_all(saved.architecture, ParameterCost())
    kept = {key: np.flatnonzero(alphas[key]) if key in alphas else indices for key, indices in whole.kept.items()}
    empty = [key for key, indices in kept.items() if len(indices) == 0 and len(whole.kept[key])]
    if empty:
        raise ValueError(f'gates: every unit of {", ".join(empty)} is at zero')
    alphas = {key: alphas.get(key, np.ones(len(indices))) for key, indices in whole.kept.items()}
    parameters, architecture = shrink(saved.parameters, saved.architecture, alphas,
                                      Selection(kept, whole.cost, whole.target))
    return SavedModel(architecture, parameters, saved.vocabulary, saved.recipe, saved.progress)


def _chosen_head(saved: SavedModel, head: Optional[str]) -> str:
    """The head to export; ValueError if there is no such head, or not on this network."""
    default = 'encoder' if saved.head == PRETRAINING else 'task'
    if head is not None and head not in HEADS:
        raise ValueError(f'head must be one of {", ".join(HEADS)}, found {head!r}')
    if head is not None and (head == 'task') != (default == 'task'):
        raise ValueError(f'the network has the head of {saved.head.task or saved.head.kind}, so {head!r} cannot be exported; '
                         f'{default!r} can')
    return head or default


def export(saved: SavedModel, output: Path, *, head: Optional[str] = None) -> Dict[str, float]:
    """Write a deployment directory; it is loaded again by plain MXNet and compared before it counts as written.

    Parameters
    ----------
    saved : SavedModel
        Gates, if it has them, are folded and cut on the way.
    output : Path
    head : str, optional
        ``encoder``: encoded tokens and pooled output. ``pretraining``: the NSP and MLM scores as well. ``task``: the scores of
        the task that the network was fine-tuned for. By default the task's if it has one, else the encoder's.

    Returns
    -------
    dict of output name to float
        The largest difference of the loaded export, relative to the largest value of that output.

    Raises
    ------
    FileExistsError, ValueError
        Bad input.
    NotEqual
        If the export computes something else.
    """
    head = _chosen_head(saved, head)
    saved = without_gates(saved)
    names = list(INPUTS)[:HEADS[head]]
    shapes = {'scores': TASK_OUTPUTS[saved.head.kind]} if head == 'task' else OUTPUTS
    outputs = list(shapes)[:4 if head == 'pretraining' else 2]
    network = _network(saved, head)
    with new_directory(output) as staged:
        symbol = mx.sym.Group(list(network(*(mx.sym.var(name, dtype='float32') for name in names))))
        symbol.save(str(staged / 'model-symbol.json'))
        used = set(symbol.list_inputs())
        mx.nd.save(str(staged / 'model-0000.params'), {
            'arg:' + name: parameter.data() for name, parameter in network.collect_params().items() if name in used})
        (staged / 'architecture.json').write_text(saved.architecture.to_json(), encoding='utf-8')
        write_vocabulary(saved.vocabulary, staged / 'vocab.txt')
        differences = _compare(staged, network, saved, names, outputs)
        worst = max(differences, key=differences.get)
        if not differences[worst] <= TOLERANCE:
            raise NotEqual(f'{output}: the export\'s {worst} is off by {differences[worst]:.1e} of its largest value, '
                           f'more than {TOLERANCE:.0e}; nothing was written')
        write_manifest(staged, form=FORMAT, version=VERSION, head=head, max_length=saved.architecture.max_length,
                       inputs={name: {'shape': INPUTS[name], 'dtype': 'float32'} for name in names},
                       outputs={name: {'shape': shapes[name]} for name in outputs},
                       **({'task': saved.head.to_dict()} if head == 'task' else {}),
                       vocabulary_sha256=vocabulary_hash(saved.vocabulary), relative_difference=differences)
    return differences


def _compare(directory: Path, network: OptBERTModel, saved: SavedModel, names: Sequence[str],
             outputs: Sequence[str]) -> Dict[str, float]:
    """The largest relative differences between a network and its export, over two shapes."""
    loaded = import_symbol(directory, names)
    differences = dict.fromkeys(outputs, 0.0)
    longest = min(48, saved.architecture.max_length)
    for batch, length in ((1, min(7, longest)), (3, longest)):
        feed = random_feed(saved.architecture, batch=batch, length=length)
        for name, found, wanted in zip(outputs, run(loaded, feed, names), run(network, feed, names)):
            differences[name] = max(differences[name], relative_difference(found, wanted))
    return differences


def import_symbol(directory: Path, names: Sequence[str]) -> mx.gluon.SymbolBlock:
    """The exported network, as any program with MXNet alone loads it."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Cannot decide type for the following arguments')  # of the inputs; they are float32
        return mx.gluon.SymbolBlock.imports(str(directory / 'model-symbol.json'), list(names),
                                            str(directory / 'model-0000.params'))


def load_deployment(directory: Path) -> Tuple[mx.gluon.SymbolBlock, Dict[str, Any]]:
    """The network of a deployment directory, hybridized, and its manifest.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is incomplete or was changed.
    """
    directory = Path(directory)
    manifest = check_manifest(directory, form=FORMAT, version=VERSION)
    block = import_symbol(directory, list(manifest['inputs']))
    block.hybridize(static_alloc=True, static_shape=True)
    return block, manifest


def latency_ms(blocks: Mapping[str, Any], feeds: Mapping[str, Mapping[str, np.ndarray]], names: Sequence[str], *,
               repeats: int = 15) -> Dict[str, float]:
    """The median time of a forward pass of each block in milliseconds, the blocks taken in turn.

    Parameters
    ----------
    blocks, feeds : mapping of the same keys
    names : sequence of str
        The inputs' names in their order.
    """
    feeds = {key: [mx.nd.array(feed[name], dtype='float32') for name in names] for key, feed in feeds.items()}
    times: Dict[str, List[float]] = {key: [] for key in blocks}
    for attempt in range(repeats + 2):
        for key, block in blocks.items():
            mx.nd.waitall()
            began = time.perf_counter()
            outputs = block(*feeds[key])
            for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
                output.wait_to_read()
            if attempt >= 2:  # the first calls build the graph
                times[key].append(time.perf_counter() - began)
    return {key: 1e3 * float(np.median(values)) for key, values in times.items()}
