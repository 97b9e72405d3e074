"""The recipes of BERT's phases and of Undivided Attention, for as many steps as BERT."""

import pytest

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.cutting.baselines import select_blocks
from gluon_optbert.runs.recipe import RecipeError, check_alternatives, fill, find_recipe, read_yaml
from gluon_optbert.training.recipe import PretrainRecipe


def recipe(name, **more):
    return fill(PretrainRecipe, {**read_yaml(find_recipe(name)), 'shards': 'shards', 'output': 'out', **more})


def test_the_phases_of_bert_base_are_its_million_steps():
    whole = recipe('bert_base')
    first, second = recipe('bert_base_128'), recipe('bert_base_512', model='first')
    assert (first.steps, second.steps) == (900_000, 100_000) and first.steps + second.steps == whole.steps
    assert first.schedule(first.steps).warmup_steps == whole.schedule(whole.steps).warmup_steps == 10_000
    assert first.learning_rate == whole.learning_rate and first.batch_size == second.batch_size == 256
    there = whole.schedule(whole.steps)(first.steps)
    assert second.learning_rate == pytest.approx(there, rel=0.02)  # counted after the rise


def test_what_a_model_directory_has_is_not_stated_beside_it():
    for name, value in (('architecture', 'bert_9'), ('initial_std', 0.04)):
        with pytest.raises(RecipeError, match='exclude each other: a model directory has'):
            check_alternatives(PretrainRecipe, {'model': 'first', name: value})


def test_undivided_attention_trains_half_of_the_blocks():
    architecture = resolve(recipe('undivided').architecture)
    assert [bool(layer.f) for layer in architecture.layers] == [False, True] * 6


def test_undivided_attention_prunes_to_the_same_network():
    values, cost = read_yaml(find_recipe('undivided_prune')), ParameterCost()
    assert (values['method'], values['prune'], values['rounds']) == ('blocks', 'f', 1)
    target = values['target'] * cost.cost(bert_base())
    left = select_blocks(bert_base(), cost, target).architecture(bert_base())
    assert left == resolve('undivided_every_2')
