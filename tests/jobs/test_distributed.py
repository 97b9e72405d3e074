"""A job of two workers does what a job of one does, and ends when one of them is lost."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from helpers.documents import flags_of
from helpers.jobs import (
    EXACT,
    HOROVODRUN,
    assert_close_models,
    assert_close_records,
    horovodrun,
    needs_horovod,
)
from helpers.pretrained import recipe_for as pretraining_recipe, values_for as pretraining_values
from helpers.pruned import alphas_of, records, selection_of, values_for as pruning_values
from helpers.stricken import STRICKEN, living
from helpers.tiny import ROOT, environment, outputs_of, random_inputs, relative_difference

from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import PATIENCE_SECONDS
from gluon_optbert.training.pretrain import pretrain

pytestmark = needs_horovod

SEVERAL = """
import json, sys
import mxnet as mx
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.pretrain import pretrain
from gluon_optbert.training.recipe import PretrainRecipe

workers = Workers()
assert workers.size == 2 and workers.first == (workers.rank == 0) and workers.local_rank == workers.rank
assert workers.sum([workers.rank, 0.1], name='sum') == [1, 0.2]
arrays = [mx.nd.ones((2,)) * (1 + 2 * workers.rank), mx.nd.ones((1, 3)) * workers.rank]
workers.average(arrays, name='average')
assert arrays[0].asnumpy().tolist() == [2] * 2 and arrays[1].asnumpy().tolist() == [[0.5] * 3]
arrays = [mx.nd.array([1 + 2.0 ** -12, 1e4 + workers.rank])]
workers.average(arrays, name='rounded', compression='fp16')
assert arrays[0].dtype.__name__ == 'float32' and arrays[0].asnumpy().tolist() == [1, 1e4]  # as float16
arrays = [mx.nd.ones((2,)) * (7 + workers.rank)]
workers.broadcast(arrays, name='broadcast')
assert arrays[0].asnumpy().tolist() == [7, 7]
workers.barrier('here')
workers.agree('the same', what='a text')
try:
    workers.agree(f'rank {workers.rank}', what='a cut')
except RuntimeError as error:
    assert str(error) == 'the workers do not agree on a cut'
else:
    raise AssertionError('disagreement was not noticed')
for values in json.loads(sys.argv[1]):
    pretrain(fill(PretrainRecipe, values))
for values in json.loads(sys.argv[2]):
    prune(fill(PruneRecipe, values))
"""
REPAIRED = {'rotate_heads': True, 'reconstruct': True, 'teacher': 'parent', 'rounds': 1}


@pytest.fixture(scope='module')
def bases(shards_directory, tmp_path_factory):
    """The same pre-training and pruning, without repairs and with them, by one process and by two workers,
    each below a directory of its own, and what is pruned."""
    base = tmp_path_factory.mktemp('workers')
    places = {name: base / name for name in ('one', 'two', 'start')}
    one, two, start = places.values()
    pretrain(pretraining_recipe(shards_directory, one / 'model', accumulate=2, **EXACT))
    shutil.copytree(one / 'model', start)  # both prune the same network
    for values in prunings(shards_directory, start, one):
        prune(fill(PruneRecipe, values))
    two.mkdir()
    run_several(shards_directory, start, two, base / 'compressed')
    return places


def prunings(shards, start, place):
    return [
        pruning_values(shards, start, place / 'run', **EXACT),
        pruning_values(shards, start, place / 'repaired', **EXACT, **REPAIRED),
    ]


def run_several(shards, start, place, compressed, **more):
    """`SEVERAL` with two workers, which write below a directory, and a run with compressed gradients."""
    values = {'accumulate': 2, **EXACT}
    pretrainings = [
        pretraining_values(shards, place / 'model', **values),
        pretraining_values(shards, compressed, compression='fp16', **values),
    ]
    recipes = map(json.dumps, (pretrainings, prunings(shards, start, place)))
    done = horovodrun('-c', SEVERAL, *recipes, **more)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_workers_pre_train_as_one(bases):
    one, two = bases['one'], bases['two']
    assert_close_records(records(one / 'model'), records(two / 'model'))
    assert_close_models(one / 'model', two / 'model')


@pytest.mark.slow
def test_compressed_gradients_lead_near_and_not_to_the_same_bits(bases):
    two = bases['two']
    result, wanted = (read_model(place) for place in (two.parent / 'compressed', two / 'model'))
    assert any((value != wanted.parameters[name]).any() for name, value in result.parameters.items())
    # float16 keeps eleven bits
    assert result.progress.mlm_loss == pytest.approx(wanted.progress.mlm_loss, rel=1e-2)
    assert {value.dtype for value in result.parameters.values()} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_workers_prune_as_one(bases):
    one, two = bases['one'], bases['two']
    assert_close_records(records(one / 'run'), records(two / 'run'))
    assert {path.relative_to(one) for path in one.rglob('*')} == {
        path.relative_to(two) for path in two.rglob('*')
    }
    for number in (1, 2):
        directories = [base / 'run' / f'round-{number}' for base in (one, two)]
        one_selected, two_selected = map(selection_of, directories)
        assert one_selected.to_dict()['kept'] == two_selected.to_dict()['kept']
        for key, alpha in alphas_of(directories[0]).items():
            np.testing.assert_allclose(alphas_of(directories[1])[key], alpha, rtol=1e-4)
        assert (
            read_model(directories[0] / 'model').architecture
            == read_model(directories[1] / 'model').architecture
        )


@pytest.mark.slow
def test_two_workers_repair_and_learn_from_a_teacher_as_one(bases):
    # Sums run in another order. A bias is the difference of two larger numbers, so outputs are compared; Adam
    # makes of a small gradient, and of its rounding, a step of full length.
    for stage, tolerance in (('rotated', 1e-5), ('shrunk', 1e-5), ('reconstructed', 1e-5), ('model', 1e-3)):
        one, two = (read_model(bases[name] / 'repaired' / 'round-1' / stage) for name in ('one', 'two'))
        assert one.architecture == two.architecture
        inputs = random_inputs(one.architecture)
        outputs = [outputs_of(build(saved.architecture, saved.parameters), inputs) for saved in (one, two)]
        assert relative_difference(*outputs) < tolerance, stage


def has_mpi():
    if importlib.util.find_spec('horovod') is None or not shutil.which('mpirun'):
        return False
    from horovod.mxnet import mpi_built

    return mpi_built()


@pytest.mark.slow
@pytest.mark.skipif(not has_mpi(), reason='Horovod has no MPI here; make install MPI=1 builds it')
def test_mpi_leaves_the_bits_of_gloo(bases, shards_directory, tmp_path):
    run_several(shards_directory, bases['start'], tmp_path, tmp_path / 'compressed', by='--mpi')
    for name in ('model', 'run/round-2/model'):
        one, other = (place / name / 'model.params' for place in (tmp_path, bases['two']))
        assert one.read_bytes() == other.read_bytes()
    assert records(tmp_path / 'run') == records(bases['two'] / 'run')


@pytest.mark.slow
def test_bad_input_ends_both_workers_with_one_line_and_status_2(shards_directory, tmp_path):
    words = [ROOT / 'pretrain' / 'run_prune.py', '--shards', shards_directory]
    words += ['--model', tmp_path / 'none', '--output', tmp_path / 'run']
    line = f'[0]<stderr>:error: {tmp_path}/none: no such directory'
    done = horovodrun(*words, starter=(sys.executable, 'tools/run_workers.py'))
    assert (done.returncode, done.stderr.splitlines()) == (2, [line])
    assert os.listdir(tmp_path) == []


STOP = 'os.kill(os.getpid(), signal.SIGSTOP)'


@pytest.mark.slow
@pytest.mark.parametrize(
    'rank, what, said',
    [
        pytest.param(0, 'os.kill(os.getpid(), signal.SIGKILL)', 'Process name: 0', id='killed'),
        pytest.param(
            0,
            f'Workers.barrier = lambda *_: {STOP}',
            'for rank 0, which has ended, is stopped',
            id='stopped at a barrier',
        ),
        pytest.param(1, 'time.sleep(1000)', 'for rank 1, which has ended, is stopped', id='hanging'),
    ],
)
def test_lost_worker_ends_the_job_which_names_it_and_one_goes_on_to_the_same_end(
    bases, shards_directory, tmp_path, caplog, rank, what, said
):
    values = pretraining_values(shards_directory, tmp_path / 'model', accumulate=2, **EXACT)
    words = ['-c', STRICKEN, json.dumps(values), tmp_path, rank, what]
    # with the patience that users have: with less, a busy machine is late before anything has happened
    done = horovodrun(*words)
    assert (tmp_path / 'struck').exists(), done.stderr
    seconds = time.time() - (tmp_path / 'struck').stat().st_mtime  # noqa: TID251  as files have it
    assert done.returncode != 0 and seconds < 3 * PATIENCE_SECONDS
    # the waiting worker says it, or the process beside the stopped one, where none has waited long enough
    assert said in done.stderr or f'rank {rank} was stopped for' in done.stderr, done.stderr
    assert not any(living(int((tmp_path / f'pid-{rank}').read_text())) for rank in (0, 1))
    assert not (tmp_path / 'model').exists()
    pretrain(pretraining_recipe(shards_directory, tmp_path / 'model', resume=True, accumulate=2, **EXACT))
    assert 'with 1 worker instead of 2: its end is not bit-identical' in caplog.text
    assert_close_records(records(bases['one'] / 'model'), records(tmp_path / 'model'))
    assert_close_models(bases['one'] / 'model', tmp_path / 'model')


@pytest.mark.slow
def test_interrupted_job_saves_its_state_and_one_worker_says_so(shards_directory, tmp_path):
    """Ctrl-C reaches horovodrun alone, for its workers are in sessions of their own.

    The status of horovodrun 0.28.1 itself is not held: two of its threads wait for the shell of a worker,
    and if psutil's is the first to reap it, subprocess takes the status for 0.
    """
    values = pretraining_values(
        shards_directory, tmp_path / 'model', steps=4000, log_every=1, evaluate_every=0, checkpoint_every=0
    )
    (tmp_path / 'recipe.yaml').write_text(yaml.safe_dump(values))
    words = [HOROVODRUN, '--gloo', '-np', '2', sys.executable, '-W', 'ignore', 'pretrain/run_pretraining.py']
    pipes = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE, 'text': True}
    job = subprocess.Popen([*words, tmp_path / 'recipe.yaml'], cwd=ROOT, env=environment(), **pipes)
    next(line for line in job.stderr if 'step 2/' in line)
    job.send_signal(signal.SIGINT)
    states = tmp_path / 'model.training' / 'states'
    said = [line for line in job.communicate(timeout=180)[1].splitlines() if 'error: ' in line]
    assert len(said) == 1 and '[0]<stderr>:error: pretraining: asked to stop at step' in said[0]
    assert '--resume' in said[0] and len(list(states.iterdir())) == 1


def test_no_flag_of_a_command_is_ambiguous_to_horovodrun():
    """It reads the flags behind the program, too, and refuses one that begins several of its own."""
    own = set(
        re.findall(
            r'--[a-z][a-z-]+',
            subprocess.run([str(HOROVODRUN), '--help'], capture_output=True, text=True).stdout,
        )
    )
    scripts = ['pretrain/run_pretraining.py', 'pretrain/run_prune.py']
    scripts += ['finetune/run_glue.py', 'finetune/run_squad.py', 'finetune/run_prune.py']
    assert len(own) > 20
    for script in scripts:
        for flag in flags_of(script):
            assert sum(name.startswith(flag) for name in own) < 2 or flag in own, (script, flag)
