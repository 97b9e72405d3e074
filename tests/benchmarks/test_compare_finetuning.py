"""benchmarks/compare_finetuning.py: both sides have the same instances, and their runs are in the result."""

import json
import sys

import numpy as np
import pytest
from compare_finetuning import CompareRecipe, job, main
from helpers.checkpoints import write_hugging_face
from helpers.finetuned import flags_of, write_glue

from gluon_optbert.finetuning.recipes import prepare_glue
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_hugging_face
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import Workers

FAKE = """
import json, sys
import numpy as np
script, checkpoint, job, scores, settings = sys.argv[1:]
settings = json.loads(settings)
with np.load(job) as arrays:
    sizes = {name: sum(len(arrays[key]) for key in arrays if key.startswith(name) and key.endswith('/rows'))
             for name in settings['heldout']}
print(json.dumps({'ready': {'torch': 'none'}}))
for epoch in (1, 2):
    print(json.dumps({'epoch': epoch, 'loss': 0.5, 'training_seconds': 2.0, 'evaluation_seconds': 0.5}))
np.savez(scores, **{f'{epoch}/{name}': np.eye(2)[(np.arange(size) + epoch) % 2]
                    for name, size in sizes.items() for epoch in (1, 2)})
print(json.dumps({'seconds': 9.0}))
"""


@pytest.fixture(scope='module')
def values(tmp_path_factory):
    """A recipe: a checkpoint, what it is imported as, data, and a peer that answers at once."""
    base = tmp_path_factory.mktemp('start')
    write_hugging_face(base / 'hf')
    write_model(base / 'model', convert(read_hugging_face(base / 'hf')).model)
    write_glue(base / 'glue')
    (base / 'fake.py').write_text(FAKE)
    (base / 'python').write_text(f'#!/bin/sh\nexec {sys.executable} {base / "fake.py"} "$@"\n')
    (base / 'python').chmod(0o755)
    places = {'model': base / 'model', 'checkpoint': base / 'hf', 'data': base / 'glue'}
    numbers = {'max_length': 16, 'epochs': 2, 'batch_size': 8, 'learning_rate': 0.01, 'seeds': '1'}
    return {**places, **numbers, 'task': 'SST-2', 'peer': base / 'python', 'output': base / 'result.json'}


def test_both_sides_are_in_the_result(values, capsys):
    words = flags_of(values)
    assert main(words) == 0
    result = json.loads(values['output'].read_text())
    assert [run['side'] for run in result['runs']] == ['here', 'peer']
    assert result['runs'][1]['seconds'] == {'training': 4.0, 'evaluation': 1.0, 'total': 9.0}
    difference = [run['scores']['dev/accuracy'] for run in result['runs']]
    summed = result['summary']['scores']['dev/accuracy']
    assert summed['difference'] == pytest.approx(difference[0] - difference[1])
    marks = [[mark == '1' for mark in run['right']['dev']] for run in result['runs']]
    assert [100 * np.mean(own) for own in marks] == pytest.approx(difference)
    apart = np.subtract(*np.array(marks, float))
    assert summed['error'] == pytest.approx(100 * apart.std(ddof=1) / len(apart) ** 0.5)
    assert 'Transformers' in capsys.readouterr().out
    assert main(words) == 2  # nothing is overwritten


@pytest.mark.parametrize('batches', ['same', 'shuffled'])
def test_peer_is_handed_every_instance_once_an_epoch(values, batches):
    recipe = fill(CompareRecipe, {**{k: str(v) for k, v in values.items()}, 'peer_batches': batches})
    exercise = prepare_glue(recipe.own(), read_model(recipe.model), workers=Workers())
    handed = job(recipe, 1, exercise)
    assert {name.partition('/')[0] for name in handed if name.endswith('/labels')} == {'train'}
    rows = [handed[f'train/{step}/rows'] for step in range(len(handed['learning_rates']))]
    size, first = len(exercise.train), rows[0]
    epochs = np.split(np.concatenate(rows), [size])
    assert all(sorted(epoch) == list(range(size)) for epoch in epochs) and (epochs[0] != epochs[1]).any()
    assert (handed['train/0/labels'] == exercise.train.labels[first]).all()
    assert (handed['train/0/attention_mask'].sum(axis=1) == exercise.train.lengths[first]).all()
    assert sorted(handed['dev/0/rows']) == list(range(len(exercise.heldout['dev'])))
