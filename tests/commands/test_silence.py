"""No long command is silent for some seconds on a terminal, whatever part of it takes long."""

import json

import pytest
from helpers.commands import on_terminal
from helpers.finetuned import flags_of, values_for as tuning_values, write_glue
from helpers.pruned import values_for as pruning_values
from helpers.tiny import vocabulary

from gluon_optbert.text.tokenizer import write_vocabulary

MOST, SLOW = 4.0, 5.0  # seconds
# Commands one after another, whose functions at some places, as room.module:name, take some seconds longer
# when called first.
SLOWED = """
import importlib, json, sys, time
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

seconds, cases = sys.argv[1:]
for name, words, *places in json.loads(cases):
    commands.found(name)
    for place in places:
        slow_down(place)
    print(f'{name} ended with', getattr(commands, name)(words))
"""


def longest_silence(parts, place):
    """The longest time in seconds between two parts of what was written while a place was slow."""
    said = ''.join(part for part, _ in parts)
    begin, end = said.index(f'[{place}]'), said.index(f'[/{place}]')
    times, before = [], 0
    for part, when in parts:
        if before + len(part) > begin and before <= end:
            times.append(when)
        before += len(part)
    return max((later - when for when, later in zip(times, times[1:])), default=0.0)


@pytest.mark.slow
def test_long_commands_say_what_they_do(shards_directory, model_directory, pruned_run, tmp_path):
    (tmp_path / 'text.txt').write_text('a b c d.\nb c d e.\n\nc d e f.\nd e f g.\n' * 40)
    write_vocabulary(vocabulary(), tmp_path / 'vocab.txt')
    glue = write_glue(tmp_path / 'glue')
    output = {'output': tmp_path / 'shards'}
    sharding = {'input': tmp_path / 'text.txt', 'vocab': tmp_path / 'vocab.txt', **output}
    more = {'rotate_heads': True, 'reconstruct': True, 'rounds': 1, 'split_half': False}
    pruning = pruning_values(shards_directory, model_directory, tmp_path / 'pruned', **more)
    tuning = tuning_values(model_directory, glue, tmp_path, seeds='1')
    exporting = [model_directory, '--output', tmp_path / 'deploy', '--onnx']
    reporting = [pruned_run[0], model_directory, '--output', tmp_path / 'page.html']
    cases = [
        ('make_shards', flags_of(sharding), 'text.make_shards:survey'),
        (
            *('prune', flags_of(pruning)),
            *('training.held_out:pretraining_losses', 'training.loop:backward', 'pruning.algorithm:shrink'),
            *('pruning.methods:select_units', 'pruning.repairs:head_moments'),
            *('pruning.repairs:_Repair.layer', 'pruning.algorithm:write_report'),
        ),
        ('finetune_glue', flags_of(tuning), 'finetuning.recipes:read_sets', 'finetuning.objective:feed_of'),
        ('export', exporting, 'api:write_export'),
        ('report', reporting, 'commands.reporting:read_run', 'commands.reporting:time_exports'),
    ]
    silent = ('score', ['--task', 'x'], 'commands.predicting:parse')
    program = ['-W', 'ignore', '-c', SLOWED, SLOW, json.dumps([*cases, silent], default=str)]
    parts = on_terminal(*program, COLUMNS='80')
    said = ''.join(part for part, _ in parts)
    assert all(f'{name} ended with 0' in said for name, *_ in cases), said[-2000:]
    assert max(longest_silence(parts, place) for _, _, *places in cases for place in places) < MOST, said
    assert longest_silence(parts, silent[-1]) > MOST  # silence is heard
