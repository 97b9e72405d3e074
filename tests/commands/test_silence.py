"""No long command is silent for some seconds on a terminal, whatever part of it takes long."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from helpers.finetuned import values_for as tuning_values
from helpers.finetuned import write_glue
from helpers.pruned import values_for as pruning_values
from helpers.tiny import environment, vocabulary

from gluon_optbert.text.tokenizer import write_vocabulary

MOST, SLOW = 4.0, 5.0  # seconds
# A command whose functions at some places, as room.module:name, take some seconds longer when called first.
SLOWED = """
import importlib, sys, time
from gluon_optbert import commands

def slow_down(place):
    module, _, path = place.partition(':')
    *owners, last = path.split('.')
    owner = importlib.import_module('gluon_optbert.' + module)
    for part in owners:
        owner = getattr(owner, part)
    function, struck = getattr(owner, last), []
    def slow(*args, **kwargs):
        if not struck:
            struck.append(1)
            print(f'[{place}]', flush=True)
            time.sleep(float(seconds))
            print(f'[/{place}]', flush=True)
        return function(*args, **kwargs)
    setattr(owner, last, slow)

places, seconds, name, *words = sys.argv[1:]
commands.found(name)
for place in places.split():
    slow_down(place)
sys.exit(getattr(commands, name)(words))
"""


def silence(name, *words, places):
    """The longest silence of a command in seconds while a place is slow, its exit status, and what it wrote
    on a terminal.
    """
    primary, secondary = pty.openpty()
    program = [sys.executable, '-W', 'ignore', '-c', SLOWED, ' '.join(places), SLOW, name, *words]
    process = subprocess.Popen(
        list(map(str, program)), env=environment(COLUMNS='80'), stdout=secondary, stderr=secondary
    )
    os.close(secondary)
    said, heard = '', []  # how much had been said, and when
    while select.select([primary], [], [], 600)[0]:
        try:
            said += os.read(primary, 65536).decode(errors='replace')
        except OSError:  # the program has ended
            break
        heard.append((len(said), time.monotonic()))
    os.close(primary)
    longest = 0.0
    for place in places:
        begin, end = said.find(f'[{place}]'), said.find(f'[/{place}]')
        times = [
            when
            for before, (size, when) in zip([0, *(size for size, _ in heard)], heard)
            if size > begin and before <= end
        ]
        longest = max(longest, *(later - when for when, later in zip(times, times[1:])), 0.0)
    return longest, process.wait(), said


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
    write_glue(base / 'glue')
    return {'base': base, 'shards': shards_directory, 'model': model_directory, 'run': pruned_run[0]}


def words_of(case, inputs, output):
    base, shards, model = inputs['base'], inputs['shards'], inputs['model']
    match case:
        case 'make_shards':
            return ['--input', base / 'text', '--vocab', base / 'vocab.txt', '--output', output]
        case 'prune':
            more = {'rotate_heads': True, 'reconstruct': True, 'rounds': 1, 'split_half': False}
            return flags_of(pruning_values(shards, model, output, **more))
        case 'finetune_glue':
            return flags_of({**tuning_values(model, base / 'glue', output), 'seeds': '1'})
        case 'export':
            return [model, '--output', output, '--onnx']
        case 'report':
            return [inputs['run'], model, '--output', output]


@pytest.mark.slow
@pytest.mark.parametrize(
    'case, places',
    [
        ('make_shards', ['text.make_shards:survey']),
        (
            'prune',
            [
                *(
                    'training.held_out:pretraining_losses',
                    'training.loop:backward',
                    'pruning.algorithm:shrink',
                ),
                *('pruning.methods:select_units', 'pruning.repairs:head_moments'),
                *('pruning.repairs:_Repair.layer', 'pruning.algorithm:write_report'),
            ],
        ),
        ('finetune_glue', ['finetuning.recipes:read_sets', 'finetuning.objective:feed_of']),
        ('export', ['api:write_export']),
        ('report', ['commands.reporting:read_run', 'commands.reporting:time_exports']),
    ],
)
def test_long_commands_say_what_they_do(case, places, inputs, tmp_path):
    longest, status, said = silence(case, *words_of(case, inputs, tmp_path / 'out'), places=places)
    assert status == 0, said[-2000:]
    assert all(f'[/{place}]' in said for place in places) and longest < MOST, said[-2000:]


@pytest.mark.slow
def test_silence_is_heard(inputs):
    place = 'commands.predicting:parse'
    longest, _, said = silence('score', '--task', 'x', places=[place])
    assert f'[/{place}]' in said and longest > MOST
