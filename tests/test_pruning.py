"""Pruning runs: the documented files, the exactness of every round, what is refused, and that a killed run ends the same."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from gluon_optbert import pruning
from gluon_optbert.checkpoint import SavedModel, read_model, write_model
from gluon_optbert.cost import FlopsCost, ParameterCost
from gluon_optbert.heads import Head
from gluon_optbert.model import build, read_parameters
from gluon_optbert.pruning import PruneRecipe, prune, summary
from gluon_optbert.recipe import RecipeError, fill
from gluon_optbert.selection import Selection, select_units, truncate
from gluon_optbert.shrink import shrink
from gluon_optbert.vocabulary import vocabulary_of
from tiny import (ROOT, TOKENS, contents, environment, network, outputs_of, random_alphas, random_inputs, relative_difference,
                  run, saved_model, vocabulary, write_saved_model, write_shards)

ROUND = {'alphas.npz', 'selection.json', 'shrunk', 'model'}
MODEL = {'architecture.json', 'manifest.json', 'model.params', 'progress.json', 'recipe.yaml', 'vocab.txt'}
TIMES = ('tokens_per_second', 'data_wait')


def values_for(made_of, start, output, **more):
    return {'shards': str(made_of), 'model': str(start), 'output': str(output), 'target': 0.6, 'rounds': 2, 'batch_size': 8,
            'alpha_steps': 3, 'alpha_learning_rate': 0.05, 'gamma': 0.01, 'recovery_steps': 4, 'learning_rate': 0.002,
            'warmup': 0.3, 'log_every': 2, 'evaluate_every': 0, 'checkpoint_every': 2, **more}


def recipe_for(*args, **more):
    return fill(PruneRecipe, values_for(*args, **more))


@pytest.fixture(scope='module')
def finished(shards_directory, model_directory, tmp_path_factory):
    """An uninterrupted run of two rounds: its directory and what `prune` returned."""
    output = tmp_path_factory.mktemp('pruned') / 'run'
    return output, prune(recipe_for(shards_directory, model_directory, output))


def alphas_of(directory):
    with np.load(str(directory / 'alphas.npz'), allow_pickle=False) as packed:
        return {key: packed[key] for key in packed.files}


def selection_of(directory):
    return Selection.from_dict(json.loads((directory / 'selection.json').read_text()))


def records(directory):
    lines = (directory / 'metrics.jsonl').read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def results(directory):
    """What has to be the same bits in two runs: everything but recipes, which name their output, and times."""
    found = {name: digest for name, digest in contents(directory).items()
             if not name.endswith(('recipe.yaml', 'manifest.json', 'metrics.jsonl'))}
    return found, records(directory)


def test_run_leaves_the_documented_files(finished):
    output, _ = finished
    assert os.listdir(output.parent) == ['run']
    assert set(os.listdir(output)) == {'recipe.yaml', 'metrics.jsonl', 'rounds.json', 'pruning.md', 'round-0', 'round-1',
                                       'round-2'}
    assert os.listdir(output / 'round-0') == ['model']
    for number in (1, 2):
        assert set(os.listdir(output / f'round-{number}')) == ROUND
        for name in ('shrunk', 'model'):
            assert set(os.listdir(output / f'round-{number}' / name)) == MODEL
    assert fill(PruneRecipe, yaml.safe_load((output / 'recipe.yaml').read_text())).rounds == 2


def test_every_round_is_a_plain_model_directory_at_its_target(finished):
    output, rows = finished
    whole = ParameterCost().cost(read_model(output / 'round-0' / 'model').architecture)
    for number in (1, 2):
        selection = selection_of(output / f'round-{number}')
        for name in ('shrunk', 'model'):
            saved = read_model(output / f'round-{number}' / name)
            assert saved.alphas is None
            assert ParameterCost().cost(saved.architecture) == selection.cost == rows[number]['parameters']
            outputs_of(build(saved.architecture, saved.parameters), random_inputs(saved.architecture))
        assert selection.target == pytest.approx(whole * (1 - 0.4 * number / 2))
        before = read_model(output / f'round-{number - 1}' / 'model').architecture
        dearest = max(ParameterCost().prices(before).values())
        assert selection.target - dearest < selection.cost <= selection.target


def test_every_round_follows_from_its_own_files(finished):
    """alphas.npz decides selection.json, and both decide the shrunk network, bit for bit."""
    output, _ = finished
    for number in (1, 2):
        directory = output / f'round-{number}'
        before, shrunk = read_model(output / f'round-{number - 1}' / 'model'), read_model(directory / 'shrunk')
        alphas, selection = alphas_of(directory), selection_of(directory)
        again = select_units(alphas, before.architecture, ParameterCost(), selection.target)
        assert again.to_dict() == selection.to_dict()
        parameters, architecture = shrink(before.parameters, before.architecture, alphas, selection)
        assert architecture == shrunk.architecture
        assert all(np.array_equal(value, shrunk.parameters[name]) for name, value in parameters.items())


def test_gated_network_of_every_round_equals_its_shrunk_one(finished):
    output, _ = finished
    for number in (1, 2):
        directory = output / f'round-{number}'
        before, shrunk = read_model(output / f'round-{number - 1}' / 'model'), read_model(directory / 'shrunk')
        selection = selection_of(directory)
        gated = build(before.architecture, before.parameters, gated=True)
        gated.gates.set(truncate(alphas_of(directory), selection))
        inputs = random_inputs(before.architecture)
        wanted = outputs_of(gated, inputs)
        for name in ('encoded', 'pooled'):
            wanted[name] = wanted[name][..., selection.kept['h']]
        assert relative_difference(outputs_of(build(shrunk.architecture, shrunk.parameters), inputs), wanted) <= 1e-5


def test_selection_explains_itself(finished):
    output, _ = finished
    for number in (1, 2):
        directory = output / f'round-{number}'
        story, alphas = json.loads((directory / 'selection.json').read_text()), alphas_of(directory)
        before = read_model(output / f'round-{number - 1}' / 'model').architecture
        assert story['round'] == number and story['cost_before'] == ParameterCost().cost(before)
        assert story['prices'] == ParameterCost().prices(before)
        for key, removed in story['removed_unit_and_alpha'].items():
            assert sorted([unit for unit, _ in removed] + story['kept'][key]) == list(range(before.widths()[key]))
            for unit, alpha in removed:
                assert alpha == pytest.approx(float(alphas[key][unit]), abs=1e-6)


def test_recovery_trains_the_weights(finished):
    output, _ = finished
    for number in (1, 2):
        shrunk, model = (read_model(output / f'round-{number}' / name) for name in ('shrunk', 'model'))
        changed = [name for name, value in model.parameters.items() if (value != shrunk.parameters[name]).any()]
        assert len(changed) > len(shrunk.parameters) / 2


def test_rounds_json_is_the_summary_and_tells_every_loss(finished):
    output, rows = finished
    assert json.loads((output / 'rounds.json').read_text()) == rows == summary(output)
    assert [row['round'] for row in rows] == [0, 1, 2]
    assert rows[0]['before'] is None
    for row in rows[1:]:
        for name in ('before', 'after_cut', 'recovered'):
            assert np.isfinite(row[name]['mlm_loss']) and row[name]['instances'] == 16
    text = (output / 'pruning.md').read_text()
    assert text.count('\n| ') == 5 and f'{rows[2]["recovered"]["mlm_loss"]:.3f}' in text


def test_before_of_a_round_is_what_the_last_one_recovered(finished):
    _, rows = finished
    assert rows[2]['before']['mlm_loss'] == pytest.approx(rows[1]['recovered']['mlm_loss'], rel=1e-5)


def test_metrics_tell_phases_and_rounds(finished):
    found = [(record['round'], record['phase'], record['step']) for record in records(finished[0]) if 'mlm' in record]
    assert found == [(number, phase, step) for number in (1, 2)
                     for phase, steps in (('gates', (2, 3)), ('recovery', (2, 4))) for step in steps]
    assert all('penalty' in record for record in records(finished[0]) if record['phase'] == 'gates')


def test_only_the_letters_asked_for_lose_units_and_train_gates(shards_directory, model_directory, tmp_path):
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', prune='fv', rounds=1, target=0.8))
    before, after = network(), read_model(tmp_path / 'run' / 'round-1' / 'model').architecture
    assert after.h == before.h and after.layers != before.layers
    assert all((layer.a, layer.k) == (2, 4) for layer in after.layers)
    for key, alpha in alphas_of(tmp_path / 'run' / 'round-1').items():
        assert (alpha == 1).all() == (key[0] not in 'fv')


@pytest.mark.parametrize('architecture', [network((2, 4, 4, 0), (2, 4, 4, 16)), network((2, 3, 4, 8), (1, 2, 2, 3), e=4)],
                         ids=['f=0', 'e<h'])
@pytest.mark.parametrize('method', ['alpha', 'random'])
def test_any_architecture_is_pruned(shards_directory, tmp_path, architecture, method):
    start = write_saved_model(tmp_path / 'start', architecture=architecture)
    rows = prune(recipe_for(shards_directory, start, tmp_path / 'run', target=0.7, method=method))
    assert rows[2]['parameters'] <= 0.7 * rows[0]['parameters']
    left = read_model(tmp_path / 'run' / 'round-2' / 'model').architecture
    assert [layer.f == 0 for layer in left.layers] == [layer.f == 0 for layer in architecture.layers]
    assert left.e == architecture.e


def test_flops_are_an_objective(shards_directory, model_directory, tmp_path):
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', objective='flops', length=16, target=0.5))
    before, after = (read_model(tmp_path / 'run' / f'round-{number}' / 'model').architecture for number in (0, 2))
    cost = FlopsCost(16)
    assert cost.cost(after) <= 0.5 * cost.cost(before)
    assert selection_of(tmp_path / 'run' / 'round-2').cost == cost.cost(after)


def test_random_method_draws_from_the_seed_and_trains_no_gates(shards_directory, model_directory, tmp_path):
    for name, seed in (('one', 1), ('again', 1), ('other', 2)):
        prune(recipe_for(shards_directory, model_directory, tmp_path / name, method='random', seed=seed, rounds=1))
        assert all((alpha == 1).all() for alpha in alphas_of(tmp_path / name / 'round-1').values())
        assert {record['phase'] for record in records(tmp_path / name)} == {'recovery'}
    one, again, other = (selection_of(tmp_path / name / 'round-1').to_dict() for name in ('one', 'again', 'other'))
    assert one == again != other
    assert results(tmp_path / 'one') == results(tmp_path / 'again')


def test_steps_follow_from_the_pre_training_where_not_given(model_directory, tmp_path):
    recipe = recipe_for(tmp_path, model_directory, tmp_path, alpha_steps=None, recovery_steps=None)
    assert recipe.steps(read_model(model_directory)) == (1, 50)  # 1/1000 and 1/20 of 1,000
    assert recipe_for(tmp_path, model_directory, tmp_path).steps(read_model(model_directory)) == (3, 4)


@pytest.mark.parametrize('change, named', [
    ({'target': 1.0}, 'target must lie between 0 and 1'), ({'target': 0}, 'target'), ({'rounds': 0}, 'rounds'),
    ({'prune': 'hax'}, 'prune must be made of'), ({'prune': 'hh'}, 'prune'), ({'prune': ''}, 'prune'),
    ({'alpha_steps': 0}, 'alpha_steps'), ({'recovery_steps': -1}, 'recovery_steps'), ({'length': 0}, 'length'),
    ({'gamma': -1}, 'gamma'), ({'alpha_learning_rate': 0}, 'alpha_learning_rate'), ({'method': 'best'}, 'method must be one of'),
    ({'objective': 'speed'}, 'objective must be one of'), ({'roundz': 3}, "did you mean 'rounds'")])
def test_contradictory_recipe_is_refused_by_name(tmp_path, change, named):
    with pytest.raises(RecipeError, match=named):
        recipe_for(tmp_path, tmp_path, tmp_path / 'run', **change)


def test_all_contradictions_are_said_at_once(tmp_path):
    with pytest.raises(RecipeError) as error:
        recipe_for(tmp_path, tmp_path, tmp_path / 'run', target=2, rounds=0, prune='x', gamma=-1, batch_size=0)
    assert len(error.value.problems) == 5


@pytest.fixture
def other_model(tmp_path):
    """A function that writes a model directory beside the output."""
    def write(**options):
        return str(write_saved_model(tmp_path / 'start', **options))
    return write


def refused(recipe, error, named):
    """The message of a run that is refused before there is anything at its output."""
    with pytest.raises(error, match=named):
        prune(recipe)
    assert not recipe.output.exists()
    assert not list(recipe.output.parent.glob('.*'))


def test_target_that_cannot_be_reached_is_refused(shards_directory, model_directory, tmp_path):
    refused(recipe_for(shards_directory, model_directory, tmp_path / 'run', prune='f', target=0.3), ValueError,
            'target 0.3 cannot be reached by pruning f')
    refused(recipe_for(shards_directory, model_directory, tmp_path / 'run', target=1e-3), ValueError, 'cannot be reached')


def test_shards_of_another_vocabulary_are_refused(shards_directory, tmp_path):
    ours = saved_model()
    write_model(tmp_path / 'start', SavedModel(ours.architecture, ours.parameters, vocabulary_of([*TOKENS[:-1], '!']),
                                               ours.recipe, ours.progress))
    refused(recipe_for(shards_directory, tmp_path / 'start', tmp_path / 'run'), ValueError, 'made with another vocabulary')


def test_network_with_the_head_of_a_task_is_refused(shards_directory, tmp_path):
    head = Head('classification', ('no', 'yes'), 'SST-2')
    parameters = read_parameters(build(network(), head=head))
    write_model(tmp_path / 'start', SavedModel(network(), parameters, vocabulary(), head=head))
    refused(recipe_for(shards_directory, tmp_path / 'start', tmp_path / 'run'), ValueError, 'the head of SST-2')


def test_network_that_still_has_its_gates_is_refused(shards_directory, tmp_path, other_model):
    start = other_model(alphas=random_alphas(network()))
    refused(recipe_for(shards_directory, start, tmp_path / 'run'), ValueError, 'still has its gates')


def test_model_with_untrained_heads_is_refused(shards_directory, tmp_path):
    start = write_saved_model(tmp_path / 'model', progress={'untrained': ['mlm', 'nsp']})
    refused(recipe_for(shards_directory, start, tmp_path / 'run'), ValueError,
            'imported without MLM head and NSP head, .*run_pretraining.py --train heads')


def test_model_that_does_not_say_its_steps_needs_them_given(shards_directory, tmp_path):
    ours = saved_model()
    write_model(tmp_path / 'start', SavedModel(ours.architecture, ours.parameters, ours.vocabulary))
    refused(recipe_for(shards_directory, tmp_path / 'start', tmp_path / 'run', alpha_steps=None), ValueError, '--alpha-steps')


@pytest.mark.parametrize('name', sorted(MODEL))
def test_incomplete_model_directory_is_refused(shards_directory, model_directory, tmp_path, name):
    start = shutil.copytree(model_directory, tmp_path / 'start')
    (start / name).unlink()
    refused(recipe_for(shards_directory, start, tmp_path / 'run'), (ValueError, FileNotFoundError), name)


def test_truncated_shard_is_refused(model_directory, tmp_path):
    directory = write_shards(tmp_path / 'shards')
    path = directory / 'train-00001.npz'
    path.write_bytes(path.read_bytes()[:-1])
    refused(recipe_for(directory, model_directory, tmp_path / 'run'), ValueError, 'train-00001.npz')


def test_batch_that_does_not_divide_is_refused(shards_directory, model_directory, tmp_path):
    refused(recipe_for(shards_directory, model_directory, tmp_path / 'run', batch_size=7, accumulate=2), ValueError,
            'batch_size 7 does not divide')


def test_existing_output_is_refused_and_untouched(finished, shards_directory, model_directory):
    before = contents(finished[0])
    with pytest.raises(FileExistsError, match='run: exists.*--resume'):
        prune(recipe_for(shards_directory, model_directory, finished[0]))
    assert contents(finished[0]) == before


def test_resumed_with_other_settings_it_is_refused(finished, shards_directory, model_directory):
    before = contents(finished[0])
    with pytest.raises(ValueError, match='other settings of rounds, target'):
        prune(recipe_for(shards_directory, model_directory, finished[0], resume=True, target=0.5, rounds=3))
    assert contents(finished[0]) == before


def test_resume_of_what_is_no_run_is_refused(shards_directory, model_directory, tmp_path):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'mine').write_text('kept')
    with pytest.raises((ValueError, FileNotFoundError), match='run'):
        prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', resume=True))
    assert contents(tmp_path).keys() == {'run/mine'}


def test_finished_run_resumes_to_nothing_to_do(finished, shards_directory, model_directory):
    before = contents(finished[0])
    assert prune(recipe_for(shards_directory, model_directory, finished[0], resume=True)) == finished[1]
    assert contents(finished[0]) == before


class Interrupted(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize('at', ['gate-states', 'recovery-states'])
def test_run_that_ended_before_it_cleared_up_leaves_no_checkpoints(finished, shards_directory, model_directory, tmp_path,
                                                                 monkeypatch, at):
    def killed(path, *_, **__):
        if Path(path).name == at:
            raise Interrupted
    monkeypatch.setattr(pruning.shutil, 'rmtree', killed)
    with pytest.raises(Interrupted):
        prune(recipe_for(shards_directory, model_directory, tmp_path / 'run'))
    monkeypatch.undo()
    assert (tmp_path / 'run' / 'round-1' / 'recovery-states').is_dir()
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', resume=True))
    assert results(tmp_path / 'run') == results(finished[0])


# A process that has loaded everything and computed nothing forks one run after another; each is killed before the n-th
# time that it renames, flushes or removes something or takes a step, or not at all.
ATTEMPTS = '''
import json, os, shutil, signal, sys
from pathlib import Path
from gluon_optbert import training
from gluon_optbert.pruning import PruneRecipe, prune
from gluon_optbert.recipe import fill
values = json.loads(sys.argv[1])


def attempt(resume, moment):
    moments = [0]
    def counted(action):
        def act(*args, **kwargs):
            moments[0] += 1
            if moments[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*args, **kwargs)
        return act
    for owner, name in ((os, 'replace'), (os, 'fsync'), (shutil, 'rmtree'), (training.Optimizer, 'update')):
        setattr(owner, name, counted(getattr(owner, name)))
    prune(fill(PruneRecipe, dict(values, resume=resume)))
    return moments[0]


for line in sys.stdin:
    resume, moment = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(attempt(resume, moment)).encode())
            os._exit(0)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writing)
    status = os.waitpid(child, 0)[1]
    print(json.dumps([status, int(os.read(reading, 20) or 0)]), flush=True)
    os.close(reading)
'''


class Attempts:
    """Runs of one recipe, each in a process of its own; see `ATTEMPTS`."""

    def __init__(self, values):
        self._said = tempfile.TemporaryFile('w+')  # not a pipe, which would be full some day
        self._process = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', ATTEMPTS, json.dumps(values)],
                                         env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=self._said, universal_newlines=True)

    def __call__(self, *, resume, killed_at=0):
        """How the run ended (as `os.wait` says) and how many moments it had."""
        self._process.stdin.write(json.dumps([resume, killed_at]) + '\n')
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or 'null')

    def close(self):
        """End the process; what its runs said."""
        self._process.communicate(timeout=60)
        self._said.seek(0)
        return self._said.read()


def test_run_killed_at_random_moments_ends_with_the_same_bits(finished, shards_directory, model_directory, tmp_path):
    attempt = Attempts(values_for(shards_directory, model_directory, tmp_path / 'run'))
    generator, kills = random.Random(4), 0
    while kills < 25:
        status, moments = attempt(resume=True, killed_at=generator.randint(1, 30))
        if status == 0:  # a finished run: begin again
            assert results(tmp_path / 'run') == results(finished[0])
            shutil.rmtree(tmp_path / 'run')
        else:
            assert status == signal.SIGKILL
            kills += 1
    status, _ = attempt(resume=True)
    assert status == 0, attempt.close()
    attempt.close()
    assert results(tmp_path / 'run') == results(finished[0])
    assert set(contents(tmp_path / 'run')) == set(contents(finished[0]))
    assert os.listdir(tmp_path) == ['run']


def test_killed_command_resumes_to_the_same_bits(finished, shards_directory, model_directory, tmp_path):
    """The real command, killed from outside once the first recovery has begun, and run to its end."""
    recipe, output = tmp_path / 'recipe.yaml', tmp_path / 'run'
    recipe.write_text(yaml.safe_dump(values_for(shards_directory, model_directory, output)))
    command = ['-W', 'ignore', ROOT / 'pretrain' / 'run_prune.py', recipe, '--resume']
    for _ in range(5):  # on a busy machine it may be done before it is killed
        process = subprocess.Popen([sys.executable, *map(str, command)], env=environment(), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None:
            if (output / 'metrics.jsonl').exists() and '"recovery", "round": 1' in (output / 'metrics.jsonl').read_text():
                process.kill()
            time.sleep(0.002)
        if process.returncode == -signal.SIGKILL:
            break
        shutil.rmtree(output)
    assert process.returncode == -signal.SIGKILL and not (output / 'rounds.json').exists()
    ended = run(*command)
    assert ended.returncode == 0, ended.stderr
    assert 'next: python tools/verify.py' in ended.stdout
    assert results(output) == results(finished[0])


def test_command_says_bad_input_in_one_line_with_status_2(shards_directory, tmp_path):
    done = run('-W', 'ignore', ROOT / 'pretrain' / 'run_prune.py', '--shards', shards_directory, '--model', tmp_path / 'none',
               '--output', tmp_path / 'run')
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f'error: {tmp_path}/none: no such directory']
    assert list(tmp_path.iterdir()) == []
