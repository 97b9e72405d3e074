"""The profile of a training step: every operator has its part, and parts and remainder are the step."""

import json

import pytest
from helpers.commands import call
from helpers.tiny import run

from gluon_optbert.runs.machine import bfloat16_is_native

SMALL = ['l2_h8_a2', '--batch-size', 2, '--length', 8, '--masked', 2, '--steps', 2]
PARTS = {
    'optimizer',
    'all-reduce',
    'data',
    'LayerNorm',
    'attention',
    'feed-forward',
    'embedding and masks',
    'heads and losses',
}

NAMES = """
import json, re
from profile_training import ProfileRecipe, Workers, graph_of, parts_of, prepare, random_batch
from helpers.tiny import network
recipe = ProfileRecipe(batch_size=2, length=8, masked=2, gates=True)
architecture = network((2, 3, 5, 7), (1, 4, 2, 0))
graph = graph_of(prepare(recipe, architecture, Workers()), random_batch(recipe, architecture.vocab_size))
plan = re.findall(r'^Op:(\\S+), Name=(\\S+)$', graph.debug_str(), flags=re.MULTILINE)
print(json.dumps([[kind, name, part] for (kind, name), part in zip(plan, parts_of(plan, graph.gated))]))
"""


@pytest.mark.parametrize(
    'words',
    [pytest.param([], marks=pytest.mark.slow), ['--gates'], ['--precision', 'bfloat16', '--dropout', '0']],
)
def test_parts_and_remainder_are_the_step(words, tmp_path):
    if 'bfloat16' in words and not bfloat16_is_native():
        pytest.skip('this processor has no bfloat16')
    result = run('tools/profile_training.py', *SMALL, *words, '--output', tmp_path / 'found.json')
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / 'found.json').read_text())
    assert set(written['parts']) == PARTS | ({'gates'} if '--gates' in words else set())
    assert written['step'] == pytest.approx(sum(written['parts'].values()) + written['remainder'])
    # which one worker has none of
    assert all(time > 0 for part, time in written['parts'].items() if part != 'all-reduce')
    assert written['parts']['all-reduce'] == 0 and min(written['ceilings'].values()) > 0
    assert all(f'| {part} |' in result.stdout for part in [*written['parts'], 'remainder', 'the step'])
    assert {'commit', 'versions', 'machine'} <= set(written)


@pytest.mark.slow
def test_work_and_ceilings_are_those_of_the_shards_lengths(shards_directory, tmp_path):
    written = {}
    for length in (8, 16):  # which the shards do not read
        result = run(
            'tools/profile_training.py',
            'l1_h8_a2',
            '--batch-size',
            2,
            '--length',
            length,
            '--steps',
            1,
            '--masked',
            2,
            '--shards',
            shards_directory,
            '--output',
            tmp_path / f'found{length}.json',
        )
        assert result.returncode == 0, result.stderr
        written[length] = json.loads((tmp_path / f'found{length}.json').read_text())
    assert written[8]['shape'] == written[16]['shape'] and written[8]['gflop'] == written[16]['gflop']


def test_every_operator_counts_for_the_part_whose_name_it_bears():
    result = run('-W', 'ignore', '-c', NAMES, folders=('tools', 'tests'))
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    part = {name: part for _, name, part in plan if name != 'sum_grad'}
    assert set(part.values()) == PARTS - {'optimizer', 'all-reduce', 'data'} | {'gates'}
    for name, written in part.items():
        wanted = [
            wanted
            for words, wanted in (
                (('streamlayernorm',), 'LayerNorm'),
                (('ffn_1', 'ffn_2', 'leakyrelu'), 'feed-forward'),
                (('batch_dot', 'softmax', '_proj_'), 'attention'),
                (('gate_',), 'gates'),
                (('word_embed', 'token_type'), 'embedding and masks'),
                (('pooler', 'pretrainingloss'), 'heads and losses'),
            )
            if any(word in name for word in words)
        ]
        assert written in wanted or not wanted or (wanted == ['feed-forward'] and written == 'gates'), (
            name,
            written,
        )
    # a layer multiplies its queries, its contexts and both sides of GELU: a product that spreads and one that
    # multiplies
    assert (
        len(
            [
                name
                for kind, name, written in plan
                if kind == 'elemwise_mul' and written == 'gates' and 'cell' in name
            ]
        )
        == 4
    )
    assert (
        len(
            [
                name
                for kind, name, written in plan
                if kind == 'elemwise_mul' and written == 'gates' and 'feedforward' in name
            ]
        )
        == 2
    )


@pytest.mark.parametrize(
    'words, message',
    [
        (['--length', 999], 'at most 512'),
        (['--steps', 0], 'at least 1'),
        (['--precision', 'float16'], 'float16'),
    ],
)
def test_what_cannot_be_profiled_is_one_line(words, message):
    result = call('tools/profile_training.py', *SMALL, *words)
    assert result.returncode == 2 and message in result.stderr and 'Traceback' not in result.stderr
