"""Pruning after pre-training where the network has learnt something, more steps elsewhere."""

import json
import shlex

import numpy as np
import pytest
from helpers.pretrained import recipe_for

from gluon_optbert.architecture.named import resolve
from gluon_optbert.commands.training import advice, after_shards, pruning_recipe
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import fill
from gluon_optbert.runs.starting import again
from gluon_optbert.text.batches import frequency_loss
from gluon_optbert.text.make_shards import ShardRecipe


def measured(mlm_loss):
    return Progress(mlm_loss=mlm_loss, mlm_accuracy=0.1, nsp_loss=0.7, nsp_accuracy=0.5, instances=16)


def further(**changed):
    return again('optbert-pretrain', ['small', '--steps', '6', '--resume', '--seed=2'], **changed)


def guessing(shards):
    return frequency_loss(shards['train'], shards['heldout'])


def test_guesses_know_the_frequencies_of_the_training_text_alone(shards):
    def masked(split):
        parts = [shards[split].read(number) for number in range(len(shards[split].files))]
        return np.concatenate([part['masked_lm_ids'][part['masked_lm_weights'] > 0] for part in parts])

    tokens = shards['train'].manifest.vocabulary.size
    counts = np.bincount(masked('train').astype(int), minlength=tokens) + 0.1
    losses = -np.log(counts / counts.sum())
    assert guessing(shards) == pytest.approx(losses[masked('heldout').astype(int)].mean())
    assert guessing(shards) > frequency_loss(shards['heldout'], shards['heldout'])


def test_network_that_has_learnt_something_is_pruned_next(shards_directory, shards, tmp_path):
    recipe = recipe_for(shards_directory, tmp_path / 'model')
    said = advice(recipe, measured(guessing(shards) - 0.01), further)
    assert said[0].startswith('held-out MLM loss ') and '10.0% of the tokens right' in said[0]
    assert f'mlm_loss still falls at the end of {recipe.output}/metrics.jsonl' in said[1]
    assert (
        said[-1].startswith('next: python pretrain/run_prune.py ') and f'--model {recipe.output}' in said[-1]
    )


def test_network_that_guesses_is_trained_further(shards_directory, shards, tmp_path):
    for steps, more in ((6, 100), (2000, 20000)):
        recipe = recipe_for(shards_directory, tmp_path / 'my model', steps=steps)
        said = advice(recipe, measured(guessing(shards) + 0.01), further)
        words = ['small', '--seed=2', '--steps', str(more), '--output', f'{tmp_path}/my model-2']
        assert said[-1].startswith('next, to train it for longer: python pretrain/run_pretraining.py small ')
        assert shlex.split(said[-1])[-len(words) :] == words
    assert not any('run_prune' in text for text in said)
    recipe = recipe_for(shards_directory, tmp_path / 'model', model=str(tmp_path), train='heads')
    said = advice(recipe, measured(guessing(shards) + 0.01), further)
    assert said[-1].startswith('next, to train all weights: python pretrain/run_pretraining.py --model ')
    assert f'--model {tmp_path}/model --shards' in said[-1] and '--train' not in said[-1]


@pytest.mark.parametrize('shards_are_there, progress', [(True, Progress(step=6)), (False, measured(1.0))])
def test_without_a_measurement_or_shards_there_are_no_figures(
    shards_directory, tmp_path, shards_are_there, progress
):
    shards = shards_directory if shards_are_there else tmp_path / 'gone'
    [said] = advice(recipe_for(shards, tmp_path / 'model'), progress, further)
    assert said.startswith('next: python pretrain/run_prune.py ')


IMPORTED = {'recipe.yaml': 'source: downloads/bert\n', 'architecture.json': resolve('bert_base').to_json()}


@pytest.mark.parametrize(
    'files, pairs, words',
    [
        ({}, True, ['run_pretraining.py', 'small.yaml']),
        ({'config.json': {}}, True, ['import_checkpoint.py', 'start']),
        ({'progress.json': {}, **IMPORTED}, True, ['run_prune.py', 'imported_prune.yaml', '--model start']),
        ({'progress.json': {'untrained': ['nsp']}, **IMPORTED}, True, ['imported_heads.yaml', 'start-heads']),
        ({'progress.json': {'untrained': ['nsp']}, **IMPORTED}, False, ['imported_prune.yaml']),
        ({'progress.json': {'untrained': ['mlm', 'nsp']}, **IMPORTED}, True, ['encoder.yaml']),
        ({'progress.json': {}, 'head.json': {}, **IMPORTED}, True, ['run_pretraining.py', 'small.yaml']),
    ],
)
def test_shards_are_for_the_network_beside_their_vocabulary(tmp_path, monkeypatch, files, pairs, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / 'start', files)
    values = {'input': 'text', 'vocab': 'start/vocab.txt', 'output': 'shards', 'next_sentence': pairs}
    said = after_shards(fill(ShardRecipe, values))
    assert all(word in said for word in [*words, '--output']), said
    assert ('--shards shards' in said) == ('config.json' not in files)


def write(directory, files):
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    'recipe, architecture, name',
    [
        ('steps: 6000', 'l4_h256_a4', 'small_prune'),
        ('{steps: 1000, model: models/imported}', 'bert_base', 'imported_prune'),
        ('{steps: 600, train: heads}', 'l4_h64_a4', 'imported_prune'),
        ('steps: 1000000', 'bert_base', 'optbert_prune'),
    ],
)
def test_the_recipe_of_pruning_fits_the_network(tmp_path, recipe, architecture, name):
    write(tmp_path / 'm', {'recipe.yaml': recipe, 'architecture.json': resolve(architecture).to_json()})
    assert pruning_recipe(tmp_path / 'm') == name
