"""No long command is silent for ten seconds on a terminal, whatever part of it takes long."""

import json

import pytest
from helpers.checkpoints import write_hugging_face
from helpers.finetuned import values_for as tuning_values
from helpers.finetuned import write_glue
from helpers.pretrained import values_for as pretraining_values
from helpers.pruned import values_for as pruning_values
from helpers.silence import silence
from helpers.tables import flags_for
from helpers.tiny import vocabulary

from gluon_optbert.text.tokenizer import write_vocabulary

MOST, SLOW = 10.0, 12.0  # seconds


def flags_of(values):
    """The values of a recipe as flags."""
    return [
        f'--{name.replace("_", "-")}={json.dumps(value) if isinstance(value, bool) else value}'
        for name, value in values.items()
    ]


@pytest.fixture(scope='module')
def inputs(tmp_path_factory, shards_directory, model_directory, pruned_run):
    """What the commands read, by name."""
    base = tmp_path_factory.mktemp('silence')
    (base / 'text').mkdir()
    (base / 'text' / 'a.txt').write_text('a b c d.\nb c d e.\n\nc d e f.\nd e f g.\n' * 40)
    write_vocabulary(vocabulary(), base / 'vocab.txt')
    write_hugging_face(base / 'checkpoint')
    write_glue(base / 'glue')
    (base / 'pruning.yaml').write_text('batch_size: 8\nevaluation_limit: 16\n')
    (base / 'tuning.yaml').write_text('batch_size: 8\nmax_length: 12\n')
    return {'base': base, 'shards': shards_directory, 'model': model_directory, 'run': pruned_run[0]}


def words_of(case, inputs, output):
    base, shards, model = inputs['base'], inputs['shards'], inputs['model']
    match case:
        case 'make_shards':
            return ['--input', base / 'text', '--vocab', base / 'vocab.txt', '--output', output]
        case 'import_checkpoint':
            return [base / 'checkpoint', '--output', output]
        case 'pretrain':
            return flags_of(pretraining_values(shards, output))
        case 'prune':
            more = {'rotate_heads': True, 'reconstruct': True, 'rounds': 1, 'split_half': False}
            return flags_of(pruning_values(shards, model, output, **more))
        case 'rank':
            more = {'method': 'fisher', 'rounds': 1, 'split_half': False}
            return flags_of(pruning_values(shards, model, output, **more))
        case 'finetune_glue':
            return flags_of({**tuning_values(model, base / 'glue', output), 'seeds': '1'})
        case 'export':
            return [model, '--output', output, '--onnx']
        case 'verify':
            return [inputs['run']]
        case 'report':
            return [inputs['run'], model, '--output', output]
        case 'table':
            return flags_for(model, shards, base, output, seeds='1', rows='optbert-h')


@pytest.mark.slow
@pytest.mark.parametrize(
    'case, slowed',
    [
        ('make_shards', 'text.make_shards:survey'),
        ('import_checkpoint', 'importing.convert:convert'),
        ('pretrain', 'training.held_out:pretraining_losses'),
        ('pretrain', 'training.loop:backward'),
        ('prune', 'training.held_out:pretraining_losses'),
        ('prune', 'pruning.algorithm:shrink'),
        ('prune', 'pruning.methods:select_units'),
        ('prune', 'pruning.repairs:head_moments'),
        ('prune', 'pruning.repairs:_Repair.layer'),
        ('prune', 'pruning.algorithm:write_report'),
        ('rank', 'training.loop:backward'),
        ('finetune_glue', 'finetuning.recipes:read_sets'),
        ('finetune_glue', 'finetuning.objective:feed_of'),
        ('export', 'api:export'),
        ('verify', 'deployment.verify:_row'),
        ('verify', 'deployment.verify:squared_errors'),
        ('report', 'commands.reporting:read_run'),
        ('report', 'commands.reporting:time_exports'),
        ('table', 'pruning.algorithm:shrink'),
    ],
)
def test_long_commands_say_what_they_do(case, slowed, inputs, tmp_path):
    name = 'prune' if case == 'rank' else case
    longest, status, said = silence(
        name, *words_of(case, inputs, tmp_path / 'out'), slowed=slowed, seconds=SLOW
    )
    assert status == 0, said[-2000:]
    assert '[slowed]' in said and longest < MOST, said[-2000:]


@pytest.mark.slow
def test_silence_is_heard(inputs):
    longest, _, said = silence('score', '--task', 'x', slowed='commands.predicting:parse', seconds=SLOW)
    assert '[slowed]' in said and longest > MOST
