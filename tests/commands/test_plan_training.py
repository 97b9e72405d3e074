"""The plan of a big run: its arithmetic, and that the page shows what the tool computes and commands that
exist.
"""

import dataclasses
import json
import shlex

import pytest
from helpers.commands import module_at, refused, succeed
from helpers.tiny import ROOT, seal, write_shards

from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.command_line import parse
from gluon_optbert.text.make_shards import ShardRecipe
from gluon_optbert.text.shards import record_dtype
from gluon_optbert.training.recipe import PretrainRecipe

tool = module_at('tools/plan_training.py')
BERT_BASE, RECIPE = tool.resolve('bert_base'), tool.PlanRecipe()
SHORT, LONG = RECIPE.stages()
PAGE = (ROOT / 'pretrain' / 'PLANNING.md').read_text(encoding='utf-8')


def test_page_shows_what_the_tool_computes():
    assert tool.plan(RECIPE) in PAGE


RECIPES = {
    'pretrain/make_shards.py': ShardRecipe,
    'pretrain/run_pretraining.py': PretrainRecipe,
    'pretrain/run_prune.py': PruneRecipe,
}


def parsed(lines):
    """The recipes of command lines."""
    for line in lines:
        words = shlex.split(line)
        (script,) = set(words) & set(RECIPES)
        yield parse(RECIPES[script], words[words.index(script) + 1 :], description='', example='')


def test_commands_are_ones_that_the_scripts_take_and_follow_from_each_other():
    lines = tool.commands(RECIPE, BERT_BASE, 64)
    shards, _, short, long, pruning = parsed(lines)
    assert short.steps + long.steps == 1_000_000
    assert (short.shards, long.model, pruning.model) == (shards.output, short.output, long.output)
    assert f'-np 64 -H {",".join(f"host{i + 1}:8" for i in range(8))} ' in lines[-1]


@pytest.mark.parametrize('share, length, rate', [(0.0, 128, 1e-4), (1.0, 512, 1e-4)])
def test_a_stage_without_steps_has_no_row_and_no_commands(share, length, rate):
    recipe = RECIPE.replace(long_share=share)
    assert [(stage.length, stage.steps) for stage in recipe.stages()] == [(length, 1_000_000)]
    made, trained, pruned = parsed(tool.commands(recipe, BERT_BASE, 8))
    assert trained.accumulate == pruned.accumulate == tool.passes(recipe, BERT_BASE, recipe.stages()[0], 8)
    assert (trained.steps, trained.learning_rate, made.max_seq_length) == (1_000_000, rate, length)
    assert trained.shards == pruned.shards == made.output and trained.model is None
    assert pruned.model == trained.output
    assert len(tool.step_table(recipe, BERT_BASE).splitlines()) == 2 + len(recipe.gpus)


def test_commands_take_an_architecture_that_a_shell_would_divide():
    recipe = RECIPE.replace(architecture=BERT_BASE.to_json())
    _, _, trained, _, _ = parsed(tool.commands(recipe, BERT_BASE, 8))
    assert tool.resolve(trained.architecture) == BERT_BASE


def test_a_network_is_not_planned_for_sequences_beyond_its_positions():
    short = RECIPE.replace(architecture=dataclasses.replace(BERT_BASE, max_length=128).to_json())
    with pytest.raises(ValueError, match='has 128 positions, too few for sequences of 512 tokens'):
        tool.plan(short)
    assert '| 512 |' not in tool.plan(short.replace(long_share=0.0))


def test_what_does_not_fit_has_no_commands():
    plan = tool.plan(RECIPE.replace(memory=2.5))
    assert 'A sequence of 512 tokens does not fit the 2.5 GiB' in plan
    assert '```' not in plan


def test_operations_of_bert_base_are_those_of_its_products():
    """By hand: three times the products of twelve layers, the MLM head on 20 tokens and the pooler."""
    layer = 2 * 128 * (4 * 768 * 768 + 2 * 768 * 3072) + 2 * 2 * 128 * 128 * 768
    head = 2 * 768 * 768 + 20 * 2 * (768 * 768 + 768 * 30522)
    assert tool.training_flops(BERT_BASE, SHORT) == 3 * (12 * layer + head)


def test_shards_that_were_counted_have_the_size_that_is_planned():
    """Beside the fields, a shard has headers of less than 1 percent."""
    for result in json.loads(tool.MEASURED.read_text())['shards']:
        row = record_dtype(result['max_seq_length'], result['max_predictions'], result['vocabulary']).itemsize
        assert result['instances'] * row < result['bytes'] < 1.01 * result['instances'] * row
    counted = tool.read_measured(tool.MEASURED)
    recipe = RECIPE.replace(words=counted['words'], dupe_factor=counted['dupe_factor'])
    instances, _ = tool.corpus(
        recipe, tool.Stage(counted['max_seq_length'], counted['max_predictions'], 1), counted
    )
    assert instances == pytest.approx(counted['instances'])


def test_weights_take_sixteen_bytes_and_passes_are_as_few_as_fit():
    fixed, kept = tool.memory(BERT_BASE, LONG, 32)
    assert fixed == 16 * 110_106_428
    assert tool.memory(BERT_BASE, LONG, 64) == (fixed, 2 * kept)
    passes = [tool.passes(RECIPE.replace(memory=gib), BERT_BASE, LONG, 8) for gib in (80, 32, 16, 2)]
    assert passes == [1, 2, 4, None]


def test_counting_shards_counts_words_tokens_and_bytes(tmp_path):
    directory = write_shards(tmp_path / 'shards')
    (tmp_path / 'text.txt').write_text('one two three\nfour\n\nfive six\n')
    manifest = json.loads((directory / 'manifest.json').read_text())
    counts = '--measured', tmp_path / 'counts.json'
    said = refused('tools/plan_training.py', '--measure', directory, *counts)
    assert 'does not say input, layout, dupe_factor' in said
    manifest['recipe'] = {'input': [str(tmp_path / 'text.txt')], 'layout': 'sentences', 'dupe_factor': 3}
    seal(directory / 'manifest.json', manifest)
    succeed('tools/plan_training.py', '--measure', directory, *counts)
    counted = json.loads((tmp_path / 'counts.json').read_text())['shards'][0]
    assert (counted['words'], counted['instances'], counted['dupe_factor']) == (6, 80, 3)
    assert (
        counted['bytes'] == sum(path.stat().st_size for path in directory.glob('*.npz'))
        and 80 * 8 <= counted['tokens'] <= 80 * 16
    )
    words = ['l2_h16_a2', *counts, '--gpus', '2']
    assert '| 2 | 128 | 128 | 1 |' in succeed('tools/plan_training.py', *words)


@pytest.mark.parametrize(
    'flags, said',
    [
        (('--gpus', '3'), 'gpus must divide batch_size 256'),
        (('--measured', 'nowhere.json'), 'make them with --measure'),
    ],
)
def test_plan_of_nonsense_is_refused(flags, said):
    assert said in refused('tools/plan_training.py', *flags)
