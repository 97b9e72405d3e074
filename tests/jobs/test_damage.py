"""Mishaps of long runs, done to one: full and read-only disks, shards that vanish or rot, and weights
that overflow.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from helpers.commands import call, succeed
from helpers.finetuned import recipe_for as finetuning_recipe, write_glue
from helpers.pretrained import recipe_for, values_for
from helpers.pruned import before_step, results
from helpers.tiny import ROOT, contents, records, saved_model, write_shards

from gluon_optbert.deployment.export import export
from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.runs.files import check_manifest
from gluon_optbert.training.optimization import TrainingDiverged
from gluon_optbert.training.pretrain import pretrain
from gluon_optbert.training.states import STATE_FORMAT, STATE_VERSION

pytestmark = pytest.mark.slow

SIZE = 400_000  # bytes of the small disk; a checkpoint of the tiny network takes 35,000
STEPS = 16  # two epochs


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, in memory, of SIZE bytes."""
    place = tmp_path / 'disk'
    place.mkdir()
    mounted = (
        shutil.which('mount')
        and subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', f'size={SIZE}', 'none', str(place)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip('mounting a small file system is not permitted here')
    yield place
    subprocess.run(['umount', '-l', str(place)], check=True)


def fill_up(disk, *, left):
    """Take all of the disk but so many bytes; the file that takes it."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / 'filler').write_bytes(bytes(free - left))
    return disk / 'filler'


@pytest.fixture(scope='module')
def finished(shards_directory, tmp_path_factory):
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp('whole') / 'model'
    pretrain(recipe_for(shards_directory, output, steps=STEPS))
    return output


def command(tmp_path, shards, output, *flags):
    """The command with a recipe of STEPS steps: what it said, and its status."""
    (tmp_path / 'recipe.yaml').write_text(yaml.safe_dump(values_for(shards, output, steps=STEPS)))
    return call(ROOT / 'pretrain' / 'run_pretraining.py', tmp_path / 'recipe.yaml', *flags)


def assert_fails_for(done, *reasons):
    """With status 1, and one line that has one of the reasons."""
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    [said] = [line for line in done.stderr.splitlines() if line.startswith('error')]
    assert any(reason in said for reason in reasons)


def assert_same_end(output, finished):
    assert contents(output)['model.params'] == contents(finished)['model.params']
    assert records(output) == records(finished)


# of 2 kB there is no page of the file system left, and no room for a lock
@pytest.mark.parametrize('left', [2_000, 8_192, 60_000, 100_000], ids=lambda left: f'{left // 1000} kB left')
def test_full_disk_ends_the_run_in_one_line_and_with_room_it_goes_on(
    finished, shards_directory, disk, tmp_path, left
):
    filler = fill_up(disk, left=left)
    done = command(tmp_path, shards_directory, disk / 'model')
    assert_fails_for(done, 'No space left on device', 'will need about')
    assert not (disk / 'model').exists()
    for state in disk.glob('model.training/states/step-*'):
        check_manifest(state, form=STATE_FORMAT, version=STATE_VERSION)
    filler.unlink()
    done = command(tmp_path, shards_directory, disk / 'model', '--resume')
    assert done.returncode == 0, done.stderr
    assert_same_end(disk / 'model', finished)
    assert os.listdir(disk) == ['model']


@pytest.fixture(scope='module')
def pruned_for_its_task(model_directory, tmp_path_factory):
    """An uninterrupted pruning run of a fine-tuned network, and its command without the output."""
    base = tmp_path_factory.mktemp('tuned')
    finetune_glue(finetuning_recipe(model_directory, write_glue(base / 'glue'), base))
    words = ['--model', base / 'run' / 'seed-1', '--data', base / 'glue', '--steps', 4, '--alpha-steps', 3]
    words += ['--batch-size', 8, '--reconstruct', '--checkpoint-every', 2, '--log-every', 1]
    words = [ROOT / 'finetune' / 'run_prune.py', *words, '--timing', 'false', '--output']
    succeed(*words, base / 'whole')
    return base / 'whole', words


@pytest.mark.parametrize('left', [8_192, 60_000], ids=lambda left: f'{left // 1000} kB left')
def test_full_disk_ends_pruning_for_a_task_in_one_line_and_with_room_it_goes_on(
    pruned_for_its_task, disk, left
):
    whole, words = pruned_for_its_task
    filler = fill_up(disk, left=left)
    assert_fails_for(call(*words, disk / 'run'), 'No space left on device', 'will need about')
    filler.unlink()
    resume = ['--resume'] if (disk / 'run').exists() else []
    succeed(*words, disk / 'run', *resume)
    assert results(disk / 'run') == results(whole)


@pytest.mark.parametrize('left', [4_096, 36_864])
def test_export_onto_a_full_disk_leaves_nothing(disk, left):
    filler = fill_up(disk, left=left)
    with pytest.raises(OSError, match='deploy will need about|No space left'):
        export(saved_model(), disk / 'deploy')
    assert os.listdir(disk) == ['filler']
    filler.unlink()
    export(saved_model(), disk / 'deploy')


def test_read_only_output_is_one_line(shards_directory, disk, tmp_path):
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
    assert_fails_for(command(tmp_path, shards_directory, disk / 'model'), 'Read-only file system')


def rot(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize('damage, said', [(Path.unlink, 'it is not there'), (rot, 'corrupt')])
def test_damaged_shard_is_named_in_mid_run_and_with_it_back_the_run_goes_on(finished, tmp_path, damage, said):
    shards = write_shards(tmp_path / 'shards')
    shard = shards / 'train-00001.npz'
    whole = shard.read_bytes()
    refused = pytest.raises((ValueError, FileNotFoundError), match=f'train-00001.npz.*{said}')
    with before_step(5, lambda: damage(shard)), refused:
        pretrain(recipe_for(shards, tmp_path / 'model', steps=STEPS))
    assert list((tmp_path / 'model.training' / 'states').glob('step-*'))
    shard.write_bytes(whole)
    pretrain(recipe_for(shards, tmp_path / 'model', steps=STEPS, resume=True))
    assert_same_end(tmp_path / 'model', finished)


@pytest.mark.parametrize('more', [{'steps': 1, 'weight_decay': 0}, {'checkpoint_every': 1}])
def test_weights_that_overflow_are_neither_written_nor_a_checkpoint(shards_directory, tmp_path, more):
    with pytest.raises(TrainingDiverged, match='step 1: the weights have grown beyond'):
        pretrain(recipe_for(shards_directory, tmp_path / 'model', learning_rate=1e38, warmup=0, **more))
    assert not (tmp_path / 'model').exists() and not (tmp_path / 'model.training' / 'states').exists()
