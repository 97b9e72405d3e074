"""How far the embeddings of sentences stay those of the network before pruning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np
from mxnet import autograd
from scipy.stats import spearmanr

from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel
from ..network.running import context_of, feed_of
from ..network.saved_model import SavedModel, read_model
from ..runs.display import markdown_table
from ..runs.files import write_file
from .job import Job

EMBEDDINGS = 'embeddings.json'
INSTANCES = 512  # held-out instances whose embeddings are compared


def embed(model: OptBERTModel, batches: Iterable[Any]) -> np.ndarray:
    """The embeddings of some instances: the mean of their tokens' states, scaled to length 1.

    Parameters
    ----------
    model : OptBERTModel
        Built with `OF_STATES`.
    batches : iterable of Batch or TaskBatch

    Returns
    -------
    np.ndarray of float32, shape (instances, h)
    """
    rows: List[np.ndarray] = []
    for batch in batches:
        with autograd.predict_mode():
            states = model(*feed_of(batch, TOKEN_INPUTS, ctx=context_of(model)).values())[0]
        real = batch.instance_weights > 0
        rows.append((states[-1].sum(axis=1).asnumpy() / batch.valid_length[:, np.newaxis])[real])
    means = np.concatenate(rows)
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)


def compare(before: np.ndarray, after: np.ndarray, units: np.ndarray) -> Dict[str, float]:
    """How alike the embeddings of two networks are.

    Parameters
    ----------
    before, after : np.ndarray, shape (instances, h)
        Of length 1; h may differ.
    units : np.ndarray of int
        The hidden units of the first that the second has.

    Returns
    -------
    dict
        ``cosine``: the mean cosine between the two embeddings of a sentence, on the units that both have.
        ``pair_similarity``: Spearman's correlation of the cosines of all pairs of different sentences.
    """
    cut = before[:, units]
    cosines = (cut * after).sum(axis=1) / np.maximum(np.linalg.norm(cut, axis=1), 1e-12)
    pairs = np.triu_indices(len(before), 1)
    one, other = ((values @ values.T)[pairs] for values in (before, after))
    return {'cosine': float(cosines.mean()), 'pair_similarity': float(spearmanr(one, other)[0])}


def write_embeddings(job: Job, networks: Mapping[str, SavedModel], number: int) -> None:
    """Leave embeddings.json of a round: what `compare` gives of each network and the one before pruning."""
    start = read_model(job.directory(0) / 'model')

    before, units = job.goal.embeddings(start), job.match(number).units
    record = {name: compare(before, job.goal.embeddings(saved), units) for name, saved in networks.items()}
    text = json.dumps({'round': number, 'instances': len(before), **record}, indent=1) + '\n'
    write_file(job.directory(number) / EMBEDDINGS, text.encode())


def embeddings_section(output: Path, rounds: int) -> List[str]:
    """What the rounds of a run did to the embeddings, as paragraphs of Markdown; nothing if no round says."""
    cells: List[Sequence[Any]] = []
    instances = 0
    for number in range(1, rounds + 1):
        path = Path(output) / f'round-{number}' / EMBEDDINGS
        if path.exists():
            record = json.loads(path.read_text(encoding='utf-8'))
            instances = record.pop('instances')
            number = record.pop('round')
            cells += [
                (number, name, f'{values["cosine"]:.3f}', f'{values["pair_similarity"]:.3f}')
                for name, values in record.items()
            ]
    if not cells:
        return []
    return [
        '## Embeddings',
        markdown_table(['round', 'network', 'cosine', 'pair similarity'], cells),
        f'Embeddings are means of tokens, of {instances} held-out instances, compared with those of the '
        'network before pruning. Cosine: mean over the instances, on the units that stayed. Pair similarity: '
        'rank correlation of the cosines of all pairs.',
    ]
