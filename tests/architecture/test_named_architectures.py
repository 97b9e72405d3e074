"""Architectures by name, and the sizes that were published for them."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.examples import examples
from hypothesis import given, strategies

from gluon_optbert.architecture.__main__ import PUBLISHED_BETA, main
from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.architecture.cost import FlopsCost, ParameterCost, beta
from gluon_optbert.architecture.named import (
    EXAMPLES,
    OPTBERTS,
    bert_base,
    every,
    resolve,
    scale_uniformly,
    uncertainties,
    undivided,
    uniform,
)
from gluon_optbert.architecture.paper import NUMBERS, load_table

ROOT = Path(__file__).resolve().parents[2]


def size(name):
    return int(ParameterCost().cost(resolve(name)))


@pytest.mark.parametrize(
    'name, count, million',
    [
        ('bert_base', 108891648, 109),
        ('bert_9', 87628032, 88),
        ('bert_6', 66364416, 66),
        ('bert_3', 45100800, 45),
        ('optbert_99m', 98304728, 98),
        ('optbert_88m', 88072892, 88),
        ('optbert_77m', 77150400, 77),
        ('optbert_66m', 66097644, 66),
        ('optbert_55m', 55328292, 55),
        ('optbert_43m', 43141920, 43),
        ('optbert_33m', 33222780, 33),
    ],
)
def test_sizes_by_the_published_rule(name, count, million):
    assert size(name) == count and round(count / 1e6) == million


def test_every_architecture_a_table_names_has_its_size():
    far = set()
    for number in NUMBERS:
        table = load_table(number)
        for row, name in zip(table.records(), table.architectures):
            if name is not None and abs(size(name) / 1e6 - row['parameters_m']) >= 1:
                far.add((number, name))
    assert far == {(9, 'bert_3')}  # the paper calls three layers 45 million in Table 1 and 43 in Table 9


def test_published_beta_is_that_of_bert_base_cut_to_two_digits():
    ours = beta(bert_base(), ParameterCost())
    for letter, printed in PUBLISHED_BETA.items():
        value = ours['h' if letter == 'h' else letter + '0']
        digits = len(printed.split('.')[1])
        assert int(value * 10**digits) == round(float(printed) * 10**digits)


def test_inferred_widths_are_told():
    assert "v of layer 1: inferred, the text has '64 54'" in uncertainties('optbert_99m')[0]
    assert len(uncertainties('optbert_99m')) == 1 and len(uncertainties('optbert_88m')) == 4
    assert all(not uncertainties(name) for name in OPTBERTS[2:])
    assert uncertainties(' optbert_88m_undivided_every_2_stacked_1') == uncertainties('optbert_88m')


@pytest.mark.parametrize(
    'name, wanted',
    [
        ('bert_24', bert_base(24)),
        ('l4_h256_a4', uniform(layers=4, h=256, a=4, vocab_size=30522)),
        ('l2_h10_a3_f7_v5_k4_e6', uniform(layers=2, h=10, a=3, k=4, v=5, f=7, e=6, vocab_size=30522)),
        ('albert_e128', uniform(layers=12, h=768, a=12, e=128, vocab_size=30522)),
        # all five widths times 0.7793
        ('uniform_66m', uniform(layers=12, h=599, a=9, k=50, v=50, f=2394, vocab_size=30522)),
    ],
)
def test_names_of_uniform_networks(name, wanted):
    assert resolve(name) == wanted
    assert resolve(name, vocab_size=100) == dataclasses.replace(wanted, vocab_size=100)


@examples(20)
@given(
    share=strategies.floats(0.2, 1.2),
    letters=strategies.sampled_from(['hakvf', 'f', 'ak']),
    cost=strategies.sampled_from([ParameterCost(), FlopsCost(8)]),
)
def test_scaling_within_a_budget_takes_the_largest_factor_that_meets_it(share, letters, cost):
    base = Architecture(h=20, layers=(LayerDims(4, 5, 6, 40), LayerDims(3, 7, 2, 0)), vocab_size=30)

    def scaled(step):
        """Every width times step / 1,000, rounded down."""
        widths = {key: width for key, width in base.widths().items() if key[0] in letters and width}
        return base.with_widths({key: max(1, width * step // 1000) for key, width in widths.items()})

    least = cost.cost(scaled(0))
    target = least + share * (cost.cost(base) - least)
    result = scale_uniformly(base, target, cost=cost, letters=letters, budget=True)
    assert cost.cost(result) <= target
    largest, above = 0, 1001  # costs rise with the factor
    while above - largest > 1:
        middle = (largest + above) // 2
        largest, above = (middle, above) if cost.cost(scaled(middle)) <= target else (largest, middle)
    assert all(result.widths()[key] >= width for key, width in scaled(largest).widths().items())
    if largest < 1000:
        assert cost.cost(scaled(largest + 1)) > target
        assert all(result.widths()[key] <= width for key, width in scaled(largest + 1).widths().items())
    else:
        assert result == base


@pytest.mark.parametrize('budget', [False, True])
def test_scaling_to_the_base_itself_changes_nothing_and_out_of_reach_is_refused(budget):
    whole = ParameterCost().cost(bert_base())
    assert scale_uniformly(bert_base(), whole, budget=budget) == bert_base()
    for target in (1,) if budget else (1, 200e6):
        with pytest.raises(ValueError, match='(uniformly: one unit .* costs|between 31,230 and 108,891,648)'):
            scale_uniformly(bert_base(), target, budget=budget)


@pytest.mark.parametrize(
    'name, filters',
    [
        ('undivided_every_2', [0, 3072] * 6),
        ('undivided_keep_0_5_11', [3072] + [0] * 4 + [3072] + [0] * 5 + [3072]),
        ('undivided_every_4_stacked_2', [0, 0, 0, 0, 0, 3072] * 3),
        ('l4_h256_a4_undivided_every_2', [0, 1024] * 2),
        ('optbert_88m_undivided_keep_11', [0] * 11 + [2938]),
    ],
)
def test_undivided_networks_keep_the_blocks_their_name_says(name, filters):
    assert [layer.f for layer in resolve(name).layers] == filters


def test_undivided_leaves_attention_as_it_is_and_stacks_cells_before_the_kept():
    base = Architecture(h=8, vocab_size=9, layers=(LayerDims(1, 2, 3, 4), LayerDims(2, 3, 4, 5)))
    assert undivided(base, {1}, stacked=1).layers == (
        LayerDims(1, 2, 3, 0),
        LayerDims(2, 3, 4, 0),
        LayerDims(2, 3, 4, 5),
    )
    assert undivided(base, {0, 1}) == base
    assert [layer.f for layer in undivided(base, ()).layers] == [0, 0]
    without = undivided(base, {1})
    with pytest.raises(ValueError, match='layer 0 has no .*no layer 2 among 2.*given twice.*-1'):
        undivided(without, [0, 2, 2], stacked=-1)
    with pytest.raises(ValueError, match='no 3-th one'):
        every(3, 2)


def test_architecture_reads_back_from_json_file_and_directory(tmp_path):
    for name in EXAMPLES:
        result = resolve(name)
        path = tmp_path / 'architecture.json'
        path.write_text(result.to_json(), encoding='utf-8')
        assert resolve(result.to_json()) == resolve(path) == resolve(tmp_path) == result
    assert resolve(result.to_json(), vocab_size=99) == result


@pytest.mark.parametrize(
    'name, says',
    [
        ('optbert_98m', "'optbert_98m' is neither .* mean optbert_99m.* names are bert_base; "),
        ('', 'names are bert_base'),
        ('undivided_every_2_3', 'neither a file'),
        ('bert_\u0663', 'neither a file'),
        ('a\0b', 'neither a file'),
        ('l4_h10_a3', 'not a multiple of a=3'),
        ('bert_0', 'at least one layer'),
        ('l4_h8_a2_f1_f2', 'gives a width twice'),
        ('albert_e0', 'e must be'),
        ('undivided_keep_0_12', 'no layer 12 among 12'),
        (str(ROOT / 'tests'), 'directory without an architecture.json'),
    ],
)
def test_bad_name_is_refused_with_the_reason(name, says):
    with pytest.raises(ValueError, match=says):
        resolve(name)


def test_command_prints_the_counts_and_the_rule(capsys):
    assert main(['optbert_88m', '--length', '64']) == 0
    printed = capsys.readouterr().out
    assert '88.07 M by the published rule: embeddings (word, position, ' in printed
    assert 'FLOPs of one sequence of 64 tokens' in printed and 'a of layer 5: inferred' in printed
    assert ['12', '12', '64', '40', '2938'] in [line.split() for line in printed.splitlines()]
    assert main(['albert_e64', '--json']) == 0
    story = json.loads(capsys.readouterr().out)
    assert Architecture.from_dict(story['architecture']) == resolve('albert_e64')
    assert story['parameters']['published_rule'] == 87090816 and story['flops']['total'] == 22359834624


@pytest.mark.parametrize(
    'arguments', [['optbert_98m'], ['bert_base', '--length', '513'], ['bert_base', '--lenght', '9'], []]
)
def test_bad_input_to_the_command_is_one_line_and_status_2(capsys, arguments):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == '' and captured.err.startswith('error: ') and captured.err.count('\n') == 1
