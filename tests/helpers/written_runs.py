"""Pruning runs, and results of fine-tuning, written by hand."""

import json

import numpy as np
import yaml

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.cutting.selection import Selection
from gluon_optbert.finetuning.result import FineTuningResult, SeedRun
from gluon_optbert.runs.progress import Epoch

BASE = Architecture(h=4, layers=(LayerDims(2, 2, 2, 8), LayerDims(2, 2, 2, 8)), vocab_size=10)
SMALL = Architecture(h=3, layers=(LayerDims(1, 2, 1, 5), LayerDims(2, 1, 2, 7)), vocab_size=10)
TINY = Architecture(h=2, layers=(LayerDims(1, 1, 1, 3), LayerDims(1, 1, 1, 2)), vocab_size=10)


def _round(number, architecture, **measured):
    """A row of ``rounds.json``."""
    return {
        'round': number,
        'parameters': int(ParameterCost().cost(architecture)),
        'flops': int(sum(count_flops(architecture, 128).values())),
        'architecture': architecture.to_dict(),
        **measured,
    }


def _write_cut(directory, before, after, draw=np.ones):
    """The gates that a round drew for every width, and what it kept."""
    np.savez(directory / 'alphas.npz', **{key: draw(width) for key, width in before.widths().items()})
    kept = {key: np.arange(width) for key, width in after.widths().items()}
    (directory / 'selection.json').write_text(json.dumps(Selection(kept, 0.0, 0.0).to_dict()))


def write_run(path, *, loss=2.0, trained=True, evaluated=True):
    """The files of a run of one round, as far as they are drawn; the loss is that of its first network."""
    start, cut, recovered = (
        {'mlm_loss': value, 'mlm_accuracy': 0.25, 'instances': 64} if evaluated else {}
        for value in (loss, 3.0, 2.5)
    )
    rows = [_round(0, BASE, recovered=start), _round(1, SMALL, after_cut=cut, recovered=recovered)]
    (path / 'round-1').mkdir(parents=True)
    (path / 'rounds.json').write_text(json.dumps(rows))
    _write_cut(path / 'round-1', BASE, SMALL, np.random.RandomState(0).rand if trained else np.ones)
    return path


def measured(score, instances=872):
    """A score of a round, or a text of marks, 1 for every instance that was answered right."""
    marks = {}
    if isinstance(score, str):
        marks, instances = {'right': score}, len(score)
        score = 100 * score.count('1') / instances
    error = 100 * (score / 100 * (1 - score / 100) / instances) ** 0.5
    return {
        'scores': {'dev/accuracy': score},
        'metric': 'dev/accuracy',
        'instances': instances,
        'standard_error': error,
        **marks,
    }


def write_task_run(path, networks, scores, *, trained_for='SST-2', commit='c0ffee1', cut=None, **recipe):
    """The files of a run of `finetune/run_prune.py`, as far as they are read.

    The first network and score are those of the network that went in; `cut` has the scores after each cut.
    """
    rows = []
    for number, (architecture, score) in enumerate(zip(networks, scores)):
        stages = {'recovered': measured(score)}
        if number:
            stages['before'] = measured(scores[number - 1])
            stages['after_cut'] = measured(cut[number - 1] if cut else score - 1)
        rows.append(_round(number, architecture, **stages))
        model = path / f'round-{number}' / 'model'
        model.mkdir(parents=True)
        (model / 'architecture.json').write_text(architecture.to_json())
        (model / 'head.json').write_text(json.dumps({'kind': 'classification', 'task': trained_for}))
        _write_cut(model.parent, architecture, architecture)
    (path / 'rounds.json').write_text(json.dumps(rows))
    settings = {
        'output': str(path),
        'model': 'runs/sst2/seed-1',
        'task': None,
        'method': 'alpha',
        'gamma': 0.01,
        'objective': 'flops',
        'reconstruct': False,
        'rotate_heads': False,
        'steps': None,
        'seed': 1,
        'target': 0.5,
        'rounds': len(networks) - 1,
        'targets': [],
    }
    (path / 'recipe.yaml').write_text(yaml.safe_dump({**settings, **recipe}))
    (path / 'origin.json').write_text(json.dumps([{'commit': commit, 'workers': 1}]))
    return path


def result_of(architecture, *scores, task='SST-2', sha256='0', majority=50.0, right=None, **more):
    """The result of fine-tuning a network, with an accuracy in percent and marks of instances by seed."""
    name, marks = 'dev/accuracy', right or [None] * len(scores)
    runs = tuple(
        SeedRun(seed, (Epoch(1, 4, {name: score - 1}),), 2, {name: score}, 1.0, own and {'dev': own})
        for seed, (score, own) in enumerate(zip(scores, marks), start=1)
    )
    values = {'samples': {}, 'recipe': {}, 'origin': {}, 'majority': {name: majority}, **more}
    return FineTuningResult(task, name, sha256, 9, architecture.to_dict(), runs=runs, **values)
