"""The comparison with Transformers: both sides see the same batches, what is there is not made again, and the
sums are right.
"""

import itertools
import json
import os
import subprocess
import sys

import compare_finetuning
import numpy as np
import pytest
from compare_finetuning import CompareRecipe, job, main, run_here
from helpers.checkpoints import named, write_hugging_face
from helpers.commands import module_at
from helpers.finetuned import recipe_for, write_glue
from helpers.tiny import ROOT, network, write_saved_model

from gluon_optbert.architecture.heads import Head
from gluon_optbert.architecture.parameters import network_shapes
from gluon_optbert.finetuning import objective as finetuning
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue, prepare_glue
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_hugging_face
from gluon_optbert.network.model import named_parameters
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.reporting.side_by_side import summarise, table
from gluon_optbert.runs.machine import threads_here
from gluon_optbert.runs.recipe import fill
from gluon_optbert.tasks.features import training_batches
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.optimization import Optimizer

batches = module_at('tools/peers/task_feed.py').batches

FAKE = """import json, os, sys
import numpy as np
script, checkpoint, job, scores, settings = sys.argv[1:]
settings = json.loads(settings)
with open({calls!r}, 'a') as file:
    print(settings['seed'], os.environ['OMP_NUM_THREADS'], 'GOMP_SPINCOUNT' in os.environ, file=file)
if os.path.exists({failing!r}) and settings['seed'] == 2:
    sys.exit('out of luck')
with np.load(job) as arrays:
    sizes = {{name: len(arrays['heldout/' + name + '/seconds']) for name in settings['heldout']}}
print(json.dumps({{'ready': {{'torch': 'none'}}}}))
for epoch in (1, 2):
    seconds = {{'training_seconds': 2.0 * settings['seed'], 'evaluation_seconds': 0.5}}
    print(json.dumps({{'epoch': epoch, 'loss': 0.5, **seconds}}))
np.savez(scores, **{{f'{{epoch}}/{{name}}': np.eye(2)[(np.arange(size) + epoch) % 2]
                    for name, size in sizes.items() for epoch in (1, 2)}})
print(json.dumps({{'seconds': 9.0}}))
"""
needs_transformers = pytest.mark.skipif(
    'TRANSFORMERS_PYTHON' not in os.environ,
    reason='TRANSFORMERS_PYTHON names no interpreter with Transformers',
)


@pytest.fixture(scope='module')
def start(tmp_path_factory):
    """A checkpoint, what it is imported as, and data."""
    base = tmp_path_factory.mktemp('start')
    write_hugging_face(base / 'hf')
    write_model(base / 'model', convert(read_hugging_face(base / 'hf')).model)
    write_glue(base / 'glue')
    return base


@pytest.fixture
def peer(tmp_path):
    """An interpreter that runs a peer that answers at once: scores 0, 1, 0, 1 … and then 1, 0, 1, 0 …"""
    (tmp_path / 'fake.py').write_text(
        FAKE.format(calls=str(tmp_path / 'calls'), failing=str(tmp_path / 'failing'))
    )
    (tmp_path / 'python').write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "fake.py"} "$@"\n')
    (tmp_path / 'python').chmod(0o755)
    return tmp_path / 'python'


def values_for(start, interpreter, result, **more):
    return {
        'task': 'SST-2',
        'model': start / 'model',
        'checkpoint': start / 'hf',
        'data': start / 'glue',
        'peer': interpreter,
        'output': result,
        'max_length': 16,
        'epochs': 2,
        'batch_size': 8,
        'learning_rate': 0.01,
        'seeds': '1',
        **more,
    }


def compare(*arguments, **more):
    """The exit status of the command."""
    return main(
        [
            word
            for name, value in values_for(*arguments, **more).items()
            for word in ('--' + name.replace('_', '-'), str(value))
        ]
    )


def made(path):
    return [(run['seed'], run['side']) for run in json.loads(path.read_text())['runs']]


def prepared(start, **more):
    """The recipe, the model and the task of `compare`."""
    values = {
        name: value if isinstance(value, (int, float)) else str(value)
        for name, value in values_for(start, 'python', 'out.json', **more).items()
    }
    recipe, saved = fill(CompareRecipe, values), read_model(start / 'model')
    return recipe, saved, prepare_glue(recipe.own(), saved, workers=Workers())


def test_peer_is_handed_the_batches_and_learning_rates_of_a_run_here(start, monkeypatch):
    trained, evaluated, rates = [], [], []
    honest = {
        'losses': compare_finetuning.Timed.loss_sums,
        'batches': finetuning.evaluation_batches,
        'update': Optimizer.update,
    }

    def loss_sums(self, batch, rows):
        trained.append(batch)
        return honest['losses'](self, batch, rows)

    def evaluation_batches(*arguments, **options):
        for batch in honest['batches'](*arguments, **options):
            evaluated.append(batch)
            yield batch

    def update(self, learning_rate, **options):
        rates.append(learning_rate)
        return honest['update'](self, learning_rate, **options)

    monkeypatch.setattr(compare_finetuning.Timed, 'loss_sums', loss_sums)
    monkeypatch.setattr(finetuning, 'evaluation_batches', evaluation_batches)
    monkeypatch.setattr(Optimizer, 'update', update)
    recipe, saved, exercise = prepared(start, evaluation_tokens=40)
    run_here(recipe, 1, saved, exercise, Workers())
    handed = job(recipe, 1, exercise)
    assert len(trained) == 2 * 6 and len(evaluated) >= 2 * 2 and handed['learning_rates'].tolist() == rates
    assert not any('labels' in name for name in handed if name.startswith('heldout'))
    for part, seen in (('train', trained), ('heldout/dev', evaluated[: len(evaluated) // 2])):
        result = list(batches(handed, part))
        assert len(result) == len(seen)
        for there, here in zip(result, seen):
            real = here.weights > 0
            assert (there['rows'] == here.rows[real]).all()
            assert (there['input_ids'] == here.input_ids[real]).all()
            assert (there['token_type_ids'] == here.token_types[real]).all()
            assert (there['attention_mask'].sum(axis=1) == here.valid_length[real]).all()
            assert (np.diff(there['attention_mask'], axis=1) <= 0).all()  # padding is at the end
            assert part != 'train' or (there['labels'] == here.labels[real]).all()
    middle = list(batches(handed, 'train', 6, 8))
    assert [batch['rows'].tolist() for batch in middle] == [
        batch.rows[batch.weights > 0].tolist() for batch in trained[6:8]
    ]


def test_peer_is_handed_every_instance_once_an_epoch_in_random_order_where_asked(start):
    recipe, _, exercise = prepared(start, peer_batches='shuffled')
    handed = job(recipe, 1, exercise)
    result, size = list(batches(handed, 'train')), len(exercise.train)
    steps = -(-size // recipe.batch_size)
    epochs = [
        np.concatenate([batch['rows'] for batch in result[i * steps : (i + 1) * steps]])
        for i in range(recipe.epochs)
    ]
    assert len(result) == steps * recipe.epochs == len(handed['learning_rates'])
    assert all(sorted(rows) == list(range(size)) for rows in epochs) and (epochs[0] != epochs[1]).any()
    assert all(batch['attention_mask'].any(axis=0).all() for batch in result)  # no padding beyond the longest
    assert (job(recipe, 2, exercise)['train/rows'] != handed['train/rows']).any()
    same = job(prepared(start)[0], 1, exercise)
    assert all((same[name] == handed[name]).all() for name in handed if name.startswith('heldout'))


def test_run_here_is_a_run_of_run_glue(start, tmp_path):
    recipe, saved, exercise = prepared(start)
    written = run_here(recipe, 3, saved, exercise, Workers())
    result = finetune_glue(recipe_for(start / 'model', start / 'glue', tmp_path, seeds=[3], log_every=1))
    wanted = result.runs[0].epochs
    assert [epoch['scores'] for epoch in written['epochs']] == [epoch.scores for epoch in wanted]
    logged = [
        json.loads(line) for line in (tmp_path / 'run' / 'seed-3' / 'metrics.jsonl').read_text().splitlines()
    ]
    losses = [record['loss'] for record in logged if 'loss' in record]  # means of the batches
    sizes = [
        batch.instance_total
        for batch in itertools.islice(training_batches(exercise.train, batch_size=8, seed=3), 12)
    ]
    assert [epoch['loss'] for epoch in written['epochs']] == [
        pytest.approx(np.dot(losses[first : first + 6], sizes[first : first + 6]) / 41, rel=1e-6)
        for first in (0, 6)
    ]
    spent = sum(epoch['training_seconds'] + epoch['evaluation_seconds'] for epoch in written['epochs'])
    assert 0 < spent < written['seconds'] and all(
        epoch['evaluation_seconds'] > 0 for epoch in written['epochs']
    )


def test_sides_take_turns_and_are_scored_alike(start, peer, tmp_path, capsys):
    assert compare(start, peer, tmp_path / 'out.json', seeds='1,2') == 0
    result = json.loads((tmp_path / 'out.json').read_text())
    assert made(tmp_path / 'out.json') == [(1, 'here'), (1, 'peer'), (2, 'peer'), (2, 'here')]
    labels, there = read_labels(start), result['runs'][1]
    assert [epoch['scores']['dev/accuracy'] for epoch in there['epochs']] == [
        pytest.approx(100 * np.mean((np.arange(len(labels)) + epoch) % 2 == labels)) for epoch in (1, 2)
    ]
    assert there['kept_epoch'] == 2 and there['scores'] == there['epochs'][1]['scores']
    assert there['seconds'] == {'training': 4.0, 'evaluation': 1.0, 'total': 9.0} and there['versions'] == {
        'torch': 'none'
    }
    assert result['samples'] == {'train': 41, 'dev': 13, 'SST-2.tsv': 7} and result['summary']['seeds'] == [
        1,
        2,
    ]
    threads = str(threads_here())
    assert result['machine']['threads'] == threads and result['recipe']['learning_rate'] == 0.01
    assert (tmp_path / 'calls').read_text() == ''.join(f'{seed} {threads} False\n' for seed in (1, 2))
    printed = capsys.readouterr().out
    assert table(result) in printed and f'wrote {tmp_path / "out.json"}' in printed


def read_labels(start):
    lines = (start / 'glue' / 'SST-2' / 'dev.tsv').read_text().splitlines()[1:]
    return np.array([int(line.split('\t')[1]) for line in lines])


def test_best_epoch_counts_where_it_is_selected(start, peer, tmp_path):
    labels = read_labels(start)
    best = 1 + int(np.mean(np.arange(len(labels)) % 2 == labels) > 0.5)
    assert compare(start, peer, tmp_path / 'out.json', select='best') == 0
    runs = json.loads((tmp_path / 'out.json').read_text())['runs']
    assert runs[1]['kept_epoch'] == best
    assert all(
        run['scores']['dev/accuracy'] == max(epoch['scores']['dev/accuracy'] for epoch in run['epochs'])
        for run in runs
    )


def test_resume_makes_only_what_is_missing(start, peer, tmp_path, capsys, monkeypatch):
    output = tmp_path / 'out.json'
    (tmp_path / 'failing').touch()
    assert compare(start, peer, output, seeds='1,2') == 1
    assert capsys.readouterr().err.splitlines()[-1] == f'error: {peer} failed: out of luck'
    before = json.loads(output.read_text())['runs']
    assert made(output) == [(1, 'here'), (1, 'peer')]
    (tmp_path / 'failing').unlink()
    assert compare(start, peer, output, seeds='1,2', resume=True) == 0
    assert made(output) == [(1, 'here'), (1, 'peer'), (2, 'peer'), (2, 'here')]
    assert json.loads(output.read_text())['runs'][:2] == before
    assert [line.split()[0] for line in (tmp_path / 'calls').read_text().splitlines()] == ['1', '2', '2']
    bytes_before = output.read_bytes()
    for side in ('run_here', 'run_peer'):
        monkeypatch.setattr(compare_finetuning, side, None)  # to call it would fail
    assert compare(start, peer, output, seeds='1,2', resume=True) == 0
    assert output.read_bytes() == bytes_before


def runs_of(here, there, seconds=((10.0, 20.0),) * 3):
    return [
        {'seed': seed, 'side': side, 'scores': {'dev/f1': score}, 'seconds': {'training': time}}
        for seed, (scores, times) in enumerate(zip(zip(here, there), seconds), 1)
        for side, score, time in zip(('here', 'peer'), scores, times)
    ]


def test_summary_and_table_by_hand():
    runs = runs_of([80.0, 82.0, 87.0], [79.0, 80.0, 84.0], ((10.0, 20.0), (12.0, 20.0), (8.0, 35.0)))
    # the peer's is not there
    runs.append({'seed': 4, 'side': 'here', 'scores': {'dev/f1': 0.0}, 'seconds': {'training': 1.0}})
    summary = summarise(runs)
    assert summary['seeds'] == [1, 2, 3]
    assert summary['scores']['dev/f1'] == {
        'here': {'mean': 83.0, 'std': pytest.approx(13**0.5)},
        'peer': {'mean': 81.0, 'std': pytest.approx(7**0.5)},
        'difference': 2.0,
    }
    assert summary['seconds']['training']['ratio'] == pytest.approx(10 / 25)
    lines = table({'runs': runs, 'summary': summary}).splitlines()
    assert lines[3] == '| dev/f1 | 2 | 82.00 | 80.00 | +2.00 |'
    assert lines[5] == '| dev/f1 | mean | 83.00 ± 3.61 | 81.00 ± 2.65 | +2.00 |'
    assert lines[-2:] == [
        '| training | 3 | 8.0 | 35.0 | 0.229 |',
        '| training | mean | 10.0 ± 2.0 | 25.0 ± 8.7 | 0.400 |',
    ]


def test_scores_that_are_no_better_than_the_majority_class_are_marked():
    runs = runs_of([80.0, 82.0], [81.0, 79.0])
    result = {'runs': runs, 'summary': summarise(runs), 'majority': {'dev/f1': 80.0}}
    lines = table(result).splitlines()
    assert lines[2] == '| dev/f1 | 1 | 80.00 * | 81.00 | -1.00 |'
    assert lines[4] == '| dev/f1 | mean | 81.00 ± 1.41 | 80.00 ± 1.41 * | +1.00 |'
    assert lines[5] == '| dev/f1 | majority class | 80.00 | 80.00 |  |'
    assert lines[-1].startswith('* no better than the majority class')


def test_one_seed_has_no_deviation_and_half_a_seed_no_summary():
    assert summarise(runs_of([80.0], [79.0]))['scores']['dev/f1']['here'] == {'mean': 80.0, 'std': None}
    half = runs_of([80.0], [79.0])[:1]
    assert (
        summarise(half) == {} and table({'runs': half, 'summary': {}}) == 'no seed has been run on both sides'
    )


@pytest.mark.parametrize(
    'more, named_in_it',
    [
        ({'peer': 'nowhere'}, 'nowhere: no such interpreter'),
        ({'epochs': 0}, 'epochs must be '),
        ({'task': 'RTE'}, 'RTE/train.tsv: no such file'),
        ({'checkpoint': 'nowhere'}, 'nowhere'),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(start, peer, tmp_path, capsys, more, named_in_it):
    before = sorted(os.listdir(tmp_path))
    assert compare(start, peer, tmp_path / 'out.json', **more) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and named_in_it in said and sorted(os.listdir(tmp_path)) == before


def test_model_of_another_checkpoint_is_refused(start, peer, tmp_path, capsys):
    write_saved_model(tmp_path / 'other')
    assert compare(start, peer, tmp_path / 'out.json', model=tmp_path / 'other') == 2
    assert 'parameters differ, such as ' in capsys.readouterr().err and not (tmp_path / 'calls').exists()


def test_comparison_is_neither_overwritten_nor_gone_on_with_otherwise(start, peer, tmp_path, capsys):
    output = tmp_path / 'out.json'
    assert compare(start, peer, output) == 0
    before = output.read_bytes()
    assert compare(start, peer, output) == 2 and 'go on with --resume' in capsys.readouterr().err
    assert compare(start, peer, output, resume=True, learning_rate=0.02, limit=20) == 2
    assert 'was begun with other values of learning_rate, limit, samples;' in capsys.readouterr().err
    assert output.read_bytes() == before
    for damaged in ('{}', '', '{"format'):
        output.write_text(damaged)
        assert compare(start, peer, output, resume=True) == 2
        assert f'{output}: not a comparison' in capsys.readouterr().err


def with_head(base):
    """A checkpoint that has the head of the task already, its import, and the task, so that both sides begin
    alike.
    """
    shapes, random = network_shapes(network(), Head('classification', ('0', '1'))), np.random.RandomState(5)
    parameters = {
        name: (random.standard_normal(shape) * 0.4 + name.endswith('gamma')).astype('f')
        for name, shape in shapes.items()
    }
    write_hugging_face(
        base / 'hf',
        named('Hugging Face', parameters),
        architectures=['BertForSequenceClassification'],
        id2label={'0': '0', '1': '1'},
        label2id={'0': 0, '1': 1},
    )
    write_model(base / 'model', convert(read_hugging_face(base / 'hf')).model)
    task = json.loads((ROOT / 'gluon_optbert' / 'tasks' / 'descriptions' / 'sst-2.json').read_text())
    (base / 'task.json').write_text(json.dumps({**task, 'name': ''}))
    write_glue(base / 'glue')
    return base


@needs_transformers
def test_untrained_sides_have_the_same_losses_and_scores(tmp_path):
    """A learning rate that moves nothing, and no dropout; float32 adds up in another order there."""
    start = with_head(tmp_path)
    assert (
        compare(
            start,
            os.environ['TRANSFORMERS_PYTHON'],
            tmp_path / 'out.json',
            task=start / 'task.json',
            dropout=0.0,
            learning_rate=1e-12,
        )
        == 0
    )
    here, there = json.loads((tmp_path / 'out.json').read_text())['runs']
    assert here['scores'] == there['scores']
    for ours, theirs in zip(here['epochs'], there['epochs']):
        assert ours['loss'] == pytest.approx(theirs['loss'], rel=1e-5)


@needs_transformers
def test_peer_trains_as_a_run_here_with_its_optimizer_does(tmp_path, monkeypatch):
    """MXNet's Adam corrects the bias of the moments, as PyTorch's does; 24 steps of float32 in another order
    drift apart.
    """
    monkeypatch.setattr(
        GlueRecipe,
        'weight_optimizer',
        lambda recipe, model, workers: Optimizer(
            named_parameters(model), 'adam', clip_norm=recipe.clip_norm, workers=workers
        ),
    )
    monkeypatch.setattr(compare_finetuning, 'EPSILON', 1e-8)  # that of MXNet's Adam
    start = with_head(tmp_path)
    assert (
        compare(
            start,
            os.environ['TRANSFORMERS_PYTHON'],
            tmp_path / 'out.json',
            task=start / 'task.json',
            dropout=0.0,
            weight_decay=0.0,
            epochs=4,
            learning_rate=0.005,
            clip_norm=0.5,
        )
        == 0
    )
    here, there = (
        [epoch['loss'] for epoch in run['epochs']]
        for run in json.loads((tmp_path / 'out.json').read_text())['runs']
    )
    assert there == pytest.approx(here, rel=1e-3) and here[-1] < 0.9 * here[0]


@needs_transformers
def test_peer_decays_what_is_decayed_here(start):
    program = """
import json, sys
import torch_finetuning as peer
settings = {'dropout': 0.1, 'outputs': 2, 'problem': 'single_label_classification'}
settings.update(weight_decay=0.01, epsilon=1e-6)
optimizer = peer.optimizer_of(peer.load(sys.argv[1], settings), settings)
groups = optimizer.param_groups
print(json.dumps([[group['weight_decay'], sum(one.numel() for one in group['params'])] for group in groups]))
"""
    done = subprocess.run(
        [os.environ['TRANSFORMERS_PYTHON'], '-c', program, start / 'hf'],
        env={**os.environ, 'PYTHONPATH': str(ROOT / 'tools' / 'peers')},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    sizes = {
        name: int(np.prod(shape))
        for name, shape in network_shapes(network(), Head('classification', ('0', '1'))).items()
    }
    undecayed = sum(size for name, size in sizes.items() if name.endswith(('bias', 'gamma', 'beta')))
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == [
        [0.0, undecayed],
        [0.01, sum(sizes.values()) - undecayed],
    ]
