"""Refusals of a pruning run: contradictory recipes, and networks and shards that do not suit it."""

import dataclasses

import pytest
from helpers.pruned import recipe_for
from helpers.tiny import TOKENS, network, random_alphas, saved_model

from gluon_optbert.api import recipe_of
from gluon_optbert.architecture.cost import LATENCY_FEATURES
from gluon_optbert.architecture.heads import Head
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe, unreachable
from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.files import write_json
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.text.tokenizer import vocabulary_of


def test_steps_follow_from_the_pre_training_where_not_given(model_directory, tmp_path):
    recipe = recipe_for(tmp_path, model_directory, tmp_path, alpha_steps=None, recovery_steps=None)
    assert recipe.round_steps(read_model(model_directory)) == (1, 50)  # 1/1000 and 1/20 of 1,000
    assert recipe_for(tmp_path, model_directory, tmp_path).round_steps(read_model(model_directory)) == (3, 4)


@pytest.mark.parametrize('method, needed', [('random', False), ('fisher', True), ('alpha', True)])
def test_steps_of_gates_are_needed_where_batches_rank_the_units(model_directory, tmp_path, method, needed):
    recipe = recipe_for(tmp_path, model_directory, tmp_path, method=method, alpha_steps=None)
    unknown = dataclasses.replace(read_model(model_directory), progress=Progress())
    if needed:
        with pytest.raises(ValueError, match='give --alpha-steps'):
            recipe.round_steps(unknown)
    else:
        assert recipe.round_steps(unknown)[1] == recipe.recovery_steps


@pytest.mark.parametrize(
    'change, named',
    [
        ({'target': 1.0}, 'target must be less than 1'),
        ({'targets': '0.8,0.9'}, 'targets must decrease, found 0.8, 0.9'),
        ({'prune': 'hax'}, 'prune must be made of'),
        ({'relative_gates': 'hx'}, 'relative_gates must be letters of hakvf, or none'),
        ({'objective': 'latency'}, 'the objective latency and latency_model go together'),
        ({'unweighted': True, 'method': 'magnitude'}, 'unweighted is about trained gates'),
        ({'alpha_steps': 'auto', 'method': 'random'}, 'alpha_steps auto is about trained gates'),
        ({'split_half': True, 'method': 'magnitude'}, 'split_half is about trained gates'),
        ({'method': 'layers', 'prune': 'f'}, 'the method layers takes whole layers'),
        ({'multiple_of': 8, 'prune': 'a'}, 'multiple_of rounds h, k, v and f only'),
        ({'teacher': 'parent', 'teacher_weights': 'labels=0,scores=0,states=0'}, 'all teacher_weights are 0'),
        ({'alpha_steps': 'often'}, "alpha_steps must be .* or must be 'auto'"),
        ({'alpha_steps': 'auto', 'alpha_learning_rate': 0.0005}, 'can stop after step 2000 at the earliest'),
        ({'alpha_steps': 'auto', 'alpha_learning_rate': 5e-324}, 'alpha_limit is 1000'),
        ({'alpha_steps': 'auto', 'alpha_window': 1000}, 'can stop after step 1200 at the earliest'),
        ({'roundz': 3}, r'did you mean rounds\?'),
    ],
)
def test_contradictory_recipe_is_refused_by_name(change, named):
    with pytest.raises(RecipeError, match=named):
        fill(PruneRecipe, {'model': 'm', 'shards': 's', 'output': 'o', **change})


@pytest.mark.parametrize(
    'cls, stated, why',
    [
        (PruneRecipe, {'gamma': 0.1, 'method': 'fisher'}, 'the method fisher trains no gates'),
        (PruneRecipe, {'alpha_limit': 9, 'alpha_steps': 5}, 'it goes with alpha_steps auto'),
        (PruneRecipe, {'rounds': 2, 'targets': '0.8,0.6'}, 'targets has the share of every round'),
        (PruneRecipe, {'fit_tokens': 9}, 'it goes with reconstruct'),
        (PruneRecipe, {'length': 64}, 'the objective is parameters'),
        (PruneRecipe, {'drop': 'first'}, 'it goes with the method layers'),
        (TaskPruneRecipe, {'recover_after': 'last', 'steps': 0}, 'nothing is trained after a cut'),
        (TaskPruneRecipe, {'relative_gates': 'h', 'penalty': 'l0'}, 'the gates of the penalty l0 are'),
    ],
)
def test_flags_and_keywords_that_nothing_reads_are_refused(cls, stated, why):
    """A recipe may have them: it serves several runs."""
    given = {'model': 'm', 'output': 'o', **({'shards': 's'} if cls is PruneRecipe else {}), **stated}
    flags = {name: '--' + name.replace('_', '-') for name in given}
    words = [part for name, value in given.items() for part in (flags[name], str(value))]
    said = f'nothing would read {flags[next(iter(stated))]}: {why}'
    with pytest.raises(RecipeError, match=said):
        parse(cls, words, description='', example='')
    with pytest.raises(RecipeError, match=said):
        recipe_of(cls, None, given)
    assert recipe_of(cls, fill(cls, given), {}).unread()


@pytest.fixture
def refused(shards_directory, model_directory, tmp_path):
    """Message of a run that is refused, before there is anything at its output."""

    def refusal(**more):
        recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', **more)
        with pytest.raises(ValueError) as exception:
            prune(recipe)
        assert not recipe.output.exists() and not list(tmp_path.glob('.*'))
        return str(exception.value)

    return refusal


@pytest.mark.parametrize(
    'change, what',
    [
        ({'prune': 'f', 'target': 0.3}, 'target 0.3 cannot be reached by pruning f'),
        ({'method': 'layers', 'target': 1e-3}, 'dropping layers: with one layer left'),
        ({'method': 'blocks', 'prune': 'f', 'target': 1e-3}, 'dropping intermediate blocks: without any'),
        ({'batch_size': 2**50}, 'take a smaller --batch-size'),
        ({'batch_size': 7, 'accumulate': 2}, 'batch_size 7 does not divide'),
    ],
)
def test_what_the_network_and_the_data_do_not_allow_is_refused(refused, change, what):
    assert what in refused(**change)


@pytest.mark.parametrize('until', [0, -1])
def test_a_last_round_that_is_none_is_refused(tmp_path, until):
    with pytest.raises(ValueError, match=f'until must be the number of a round, from 1, found {until}'):
        prune(recipe_for(tmp_path, tmp_path, tmp_path / 'run'), until=until)


@pytest.mark.parametrize('role, field', [('network', 'model'), ('teacher', 'teacher')])
def test_network_with_too_few_positions_for_the_shards_is_refused(refused, tmp_path, role, field):
    write_model(tmp_path / 'short', saved_model(network(max_length=15)))
    said = refused(**{field: str(tmp_path / 'short')})
    assert f'shards have up to 16 tokens, the {role} has 15 positions' in said


def test_network_that_does_not_suit_is_refused(refused, tmp_path):
    ours, sst2 = saved_model(), Head('classification', ('no', 'yes'), 'SST-2')
    tuned = dataclasses.replace(ours, parameters=read_parameters(build(network(), head=sst2)), head=sst2)
    unsuited = {
        'made with another vocabulary': dataclasses.replace(
            ours, vocabulary=vocabulary_of([*TOKENS[:-1], '!'])
        ),
        'the head of SST-2': tuned,
        'still has its gates': saved_model(alphas=random_alphas(network())),
        '--alpha-steps': dataclasses.replace(ours, progress=Progress()),
    }
    for words, start in unsuited.items():
        write_model(tmp_path / 'start', start, replace=True)
        assert words in refused(model=tmp_path / 'start', alpha_steps=None, labels='mlm')


def test_a_network_without_cost_is_refused(refused, tmp_path):
    free = {'batch': 1, 'length': 8, 'coefficients': dict.fromkeys(LATENCY_FEATURES, 0.0)}
    write_json(tmp_path / 'free.json', free)
    said = refused(objective='latency', latency_model=tmp_path / 'free.json', method='magnitude')
    assert said == 'the network costs no ms, so there is nothing to save; take another objective'


def test_the_layer_that_stays_decides_what_dropping_layers_can_reach(shards_directory, tmp_path):
    architecture = network((2, 4, 4, 200), (2, 4, 4, 4))
    for drop, fits in (('first', True), ('last', False)):
        recipe = recipe_for(
            shards_directory, tmp_path, tmp_path / 'run', method='layers', drop=drop, target=0.4
        )
        assert (unreachable(recipe, architecture) is None) is fits
