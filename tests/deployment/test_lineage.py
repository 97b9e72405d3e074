"""The lineage of a network is read from the runs beside it, if these are its own."""

import dataclasses
import json

import pytest
from helpers.tiny import network, saved_model, vocabulary

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.lineage import Lineage, Trimming, lineage_of
from gluon_optbert.network.saved_model import SavedModel, read_model, write_model
from gluon_optbert.pruning.trimming import trim
from gluon_optbert.runs.files import sha256
from gluon_optbert.runs.progress import Progress
from gluon_optbert.text.tokenizer import vocabulary_of
from gluon_optbert.text.trimming import TRIM, TrimRecord

LEFT = vocabulary_of(vocabulary().idx_to_token[:-3])
SCORES = {'dev/accuracy': 78.5, 'dev/f1': 80.0}


def tuned_model(start):
    """Output of fine-tuning of a start."""
    head = Head('classification', ('no', 'yes'), 'RTE')
    progress = Progress.from_dict({'seed': 2, 'scores': SCORES, 'epochs': [], 'kept_epoch': 1})
    arrays = saved_model(start.architecture, seed=1).parameters
    kept = {name: value for name, value in arrays.items() if not name.startswith(('classifier', 'decoder'))}
    kept.update({'task.weight': arrays['pooler.weight'][:2], 'task.bias': arrays['pooler.bias'][:2]})
    return SavedModel(start.architecture, kept, start.vocabulary, {}, progress, head=head)


def write_result(directory, start, **changes):
    """The result file of a run with two seeds."""
    values = {
        'format': 'gluon_optbert fine-tuning',
        'model_sha256': sha256(start / 'model.params'),
        'samples': {'train': 32, 'dev': 16},
        'seeds': [1, 2],
        'runs': [{'seed': 1, 'scores': {}}, {'seed': 2, 'scores': SCORES}],
        'mean': {'dev/accuracy': 77.0, 'dev/f1': 79.0},
        'std': {'dev/accuracy': 1.5, 'dev/f1': None},
        'majority': {'dev/accuracy': 50.0},
        'recipe': {'model': str(start)},
        'commit': 'abcdef0123',
        **changes,
    }
    (directory / 'result.json').write_text(json.dumps(values), encoding='utf-8')


@pytest.fixture
def tuned(tmp_path, pruned_run):
    """The model directory of a seed that was fine-tuned from the last round of a pruning run."""
    start = pruned_run[0] / 'round-2' / 'model'
    write_model(tmp_path / 'run' / 'seed-2', tuned_model(read_model(start)))
    write_result(tmp_path / 'run', start)
    return tmp_path / 'run' / 'seed-2'


def known(directory):
    """The lineage of the network in a model directory."""
    return lineage_of(read_model(directory), directory)


def test_a_pruned_network_knows_its_rounds(pruned_run):
    run, rows = pruned_run
    lineage = known(run / 'round-2' / 'model')
    assert lineage.finetuning is None and lineage.pruning.before == rows[0].architecture
    assert [one.round for one in lineage.pruning.rounds] == [0, 1, 2]
    assert [one.parameters for one in lineage.pruning.rounds] == [row.parameters for row in rows]
    assert lineage.pruning.rounds[2].recovered.value == pytest.approx(rows[2].recovered.mlm_loss)
    assert not lineage.pruning.again
    progress = read_model(run / 'round-0' / 'model').progress
    assert lineage.pretrained_steps == progress.trained_steps > 0 and lineage.trained_steps == 0
    assert lineage.pruning.recipe['rounds'] == 2 and lineage.held_out is not None
    assert known(run / 'round-0' / 'model').pruning is None


@pytest.mark.parametrize(
    'start, pretrained, trained',
    [
        ({'step': 900, 'kept_step': 700, 'earlier_steps': 100}, 800, 0),
        ({}, 0, 0),
        ({'step': 900, 'round': 1}, 0, 1234),  # pruned before, so recovery is among them
        ({'step': 'many'}, 0, 1234),
        (None, 0, 1234),
    ],
)
def test_recovery_is_no_pre_training(tmp_path, pruned_run, start, pretrained, trained):
    run, directory = tmp_path / 'run', tmp_path / 'run' / 'round-1' / 'model'
    saved = read_model(pruned_run[0] / 'round-1' / 'model')
    saved = dataclasses.replace(saved, progress=saved.progress.updated(step=234, earlier_steps=1000))
    write_model(directory, saved)
    (run / 'rounds.json').write_bytes((pruned_run[0] / 'rounds.json').read_bytes())
    (run / 'round-0' / 'model').mkdir(parents=True)
    if start is not None:
        (run / 'round-0' / 'model' / 'progress.json').write_text(json.dumps(start))
    lineage = lineage_of(saved, directory)
    assert lineage.pruning is not None
    assert (lineage.pretrained_steps, lineage.trained_steps) == (pretrained, trained)
    alone = lineage_of(saved)
    assert (alone.pretrained_steps, alone.trained_steps) == (0, 1234)


def test_a_fine_tuned_network_knows_its_seeds_and_the_pruning_before(tuned):
    lineage = known(tuned)
    assert lineage.finetuning.scores == SCORES and lineage.finetuning.seeds == 2
    assert lineage.finetuning.mean['dev/accuracy'] == 77 and 'dev/f1' not in lineage.finetuning.std
    assert lineage.finetuning.commit == 'abcdef0123' and lineage.pretrained_steps == 0
    assert len(lineage.pruning.rounds) == 3


@pytest.mark.parametrize(
    'changes, seeds',
    [
        ({'model_sha256': 'another'}, 2),
        ({'recipe': {'model': 'nowhere'}}, 2),
        ({'format': 'another'}, 0),
        ({'runs': [7, {'seed': 2, 'scores': {}}]}, 0),
    ],
)
def test_a_start_or_a_result_of_another_network_tells_nothing(tuned, pruned_run, changes, seeds):
    write_result(tuned.parent, pruned_run[0] / 'round-2' / 'model', **changes)
    lineage = known(tuned)
    assert lineage.finetuning.scores == SCORES and lineage.finetuning.seeds == seeds
    assert lineage.pruning is None


@pytest.mark.parametrize('content', ['', '[' * 800, '[{}]', '\udcff'])
def test_damaged_files_are_left_out(tmp_path, pruned_run, content):
    rounds = tmp_path / 'run' / 'round-1'
    saved = read_model(pruned_run[0] / 'round-1' / 'model')
    write_model(rounds / 'model', saved)
    for name in ('rounds.json', 'recipe.yaml', 'origin.json'):
        (tmp_path / 'run' / name).write_bytes(content.encode(errors='surrogateescape'))
    assert lineage_of(saved, rounds / 'model').pruning is None
    (tmp_path / 'run' / 'rounds.json').write_bytes((pruned_run[0] / 'rounds.json').read_bytes())
    assert len(lineage_of(saved, rounds / 'model').pruning.rounds) == 2
    other = dataclasses.replace(saved, architecture=network((1, 2, 3, 4)))  # no network of this run
    assert lineage_of(other, rounds / 'model').pruning is None


def write_trimmed(directory, source, left=LEFT, **changes):
    """The network of a directory with fewer tokens, as tools/trim_vocabulary.py leaves it."""
    whole = read_model(source)
    values = {
        'model_sha256': sha256(source / 'model.params'),
        'tokens': (len(whole.vocabulary), len(left)),
        **changes,
    }
    recipe = {'model': values.pop('model', str(source)), 'text': ['text']}
    record = TrimRecord(recipe=recipe, parameters=(2, 1), splits={}, origin={}, **values)
    write_model(directory, trim(whole, left), extra={TRIM: record.to_bytes()})
    return directory


def test_a_network_that_was_trimmed_last_knows_its_seeds_and_rounds(tmp_path, tuned):
    lineage = known(write_trimmed(tmp_path / 'trimmed', tuned))
    assert lineage.finetuning.seeds == 2 and len(lineage.pruning.rounds) == 3
    assert lineage.trimming == Trimming(32, 29, last=True)


def test_a_network_that_was_trimmed_before_fine_tuning_knows_its_rounds(tmp_path, pruned_run):
    start = write_trimmed(tmp_path / 'trimmed', pruned_run[0] / 'round-2' / 'model')
    write_model(tmp_path / 'run' / 'seed-2', tuned_model(read_model(start)))
    write_result(tmp_path / 'run', start)
    lineage = known(tmp_path / 'run' / 'seed-2')
    assert lineage.finetuning.seeds == 2 and len(lineage.pruning.rounds) == 3
    assert lineage.trimming == Trimming(32, 29, last=False)


def test_a_network_that_was_trimmed_twice_knows_the_first_vocabulary(tmp_path, pruned_run):
    first = write_trimmed(tmp_path / 'first', pruned_run[0] / 'round-1' / 'model')
    lineage = known(write_trimmed(tmp_path / 'second', first, vocabulary_of(LEFT.idx_to_token[:-5])))
    assert lineage.trimming == Trimming(32, 24, last=True) and len(lineage.pruning.rounds) == 2


@pytest.mark.parametrize(
    'changes, trimming',
    [
        ({'model_sha256': 'another'}, Trimming(32, 29, last=True)),
        ({'model': 'nowhere'}, Trimming(32, 29, last=True)),
        ({'tokens': (5, 28)}, None),
    ],
)
def test_of_a_whole_network_that_is_not_there_nothing_more_is_known(tmp_path, pruned_run, changes, trimming):
    lineage = known(write_trimmed(tmp_path / 'trimmed', pruned_run[0] / 'round-2' / 'model', **changes))
    assert lineage.pruning is None and lineage.trimming == trimming


def test_a_network_knows_the_name_of_the_checkpoint_that_it_came_from_and_not_its_place(tmp_path):
    imported = dataclasses.replace(saved_model(), recipe={'source': '/home/ann/bert-base-uncased'})
    assert lineage_of(imported).checkpoint == 'bert-base-uncased'
    write_model(tmp_path / 'imported', imported)
    tuned = tuned_model(imported)
    write_model(tmp_path / 'run' / 'seed-2', tuned)
    write_result(tmp_path / 'run', tmp_path / 'imported')
    assert lineage_of(tuned, tmp_path / 'run' / 'seed-2').checkpoint == 'bert-base-uncased'
    assert lineage_of(tuned).checkpoint == ''
    assert lineage_of(saved_model()) == Lineage(pretrained_steps=1000)
