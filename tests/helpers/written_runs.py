"""Pruning runs written by hand."""

import json

import numpy as np

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.architecture.cost import ParameterCost

BASE = Architecture(h=4, layers=(LayerDims(2, 2, 2, 8), LayerDims(2, 2, 2, 8)), vocab_size=10)


SMALL = Architecture(h=3, layers=(LayerDims(1, 2, 1, 5), LayerDims(2, 1, 2, 7)), vocab_size=10)


def write_run(path, *, trained=True, evaluated=True):
    """The files of a run of one round, as far as they are drawn."""
    losses = [{'mlm_loss': loss, 'instances': 64} if evaluated else {} for loss in (2.0, 3.0, 2.5)]
    rows = [
        {
            'round': 0,
            'parameters': int(ParameterCost().cost(BASE)),
            'architecture': BASE.to_dict(),
            'after_cut': None,
            'recovered': losses[0],
        },
        {
            'round': 1,
            'parameters': int(ParameterCost().cost(SMALL)),
            'architecture': SMALL.to_dict(),
            'after_cut': losses[1],
            'recovered': losses[2],
        },
    ]
    (path / 'round-1').mkdir(parents=True)
    (path / 'rounds.json').write_text(json.dumps(rows))
    kept = {key: list(range(width)) for key, width in SMALL.widths().items()}
    random = np.random.RandomState(0)
    alphas = {key: random.rand(width) if trained else np.ones(width) for key, width in BASE.widths().items()}
    np.savez(path / 'round-1' / 'alphas.npz', **alphas)
    (path / 'round-1' / 'selection.json').write_text(json.dumps({'kept': kept}))
    return path
