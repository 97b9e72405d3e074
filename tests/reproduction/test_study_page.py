"""Results of studies: differences and their errors, and the pages and plots of one or several."""

import dataclasses

import numpy as np
import pytest
from helpers.commands import succeed
from helpers.finetuned import flags_of
from helpers.written_runs import BASE

from gluon_optbert.architecture.paper import load_table
from gluon_optbert.finetuning.recipes import GlueRecipe
from gluon_optbert.finetuning.result import FineTuningResult, SeedRun
from gluon_optbert.reproduction.results import result_row
from gluon_optbert.reproduction.rows import task_names
from gluon_optbert.reproduction.study_page import draw, draw_dimensions, summary, write_study
from gluon_optbert.reproduction.study_results import Difference, StudyResults, read_study, together
from gluon_optbert.runs.files import write_json
from gluon_optbert.runs.progress import HeldOut
from gluon_optbert.runs.recipe import to_dict
from gluon_optbert.training.held_out import Losses


def test_a_difference_is_seen_from_two_standard_errors():
    verdicts = [Difference(mean, 1.0).verdict for mean in (2.5, 1.5, -2.5)]
    assert verdicts == ['seen', 'undecided', 'the opposite']
    assert Difference(9.0, None).verdict == 'undecided'
    few = [Difference.of(gains) for gains in ((3.0, 5.0), (3.0, 4.0, 5.0), (3.0, 5.0, 3.0, 5.0))]
    assert [one.verdict for one in few] == ['undecided', 'seen', 'seen']  # 4.0, 6.9 and 6.9 standard errors
    marks = ['1' * 100] * 2, ['1' * 96 + '0' * 4] * 2
    of_instances = Difference.of((4.0, 4.0), *marks)
    assert of_instances.verdict == 'seen' and of_instances.freedom == 99
    assert Difference(0.0, 0.0).verdict == 'undecided'  # two networks that answer alike


def written(scores, seed=1, task='SST-2', **more):
    """A cell with scores of one seed; the first one counts."""
    run, recipe = SeedRun(seed, (), 1, scores, 1.0, **more), GlueRecipe(model='m', output='o', task='SST-2')
    common = '0', 9, BASE.to_dict(), {'train': 8}, (run,)
    return FineTuningResult(task, next(iter(scores)), *common, to_dict(recipe), {})


def test_the_error_of_a_difference_is_that_of_the_score_that_is_shown():
    """Of SQuAD 2.0 tables have the F1 of the best threshold, and the instances' marks are of another one."""
    marks = {'right': {'dev': '1100'}}, {'right': {'dev': '1000'}}
    names = {'SQuAD v1.1': ('dev/f1',), 'SQuAD v2.0': ('dev/f1', 'dev/best_f1')}
    cells = {}
    for task, scored in names.items():
        for row, score, own in zip(('optBERT-all', 'optBERT-h'), (50.0, 25.0), marks):
            cells[(row, 66.0), task] = {1: written(dict.fromkeys(scored, score), task=task, **own)}
    study = StudyResults({}, cells)
    pair = [(row, 66.0) for row in ('optBERT-all', 'optBERT-h')]
    assert study.difference(*pair, 'SQuAD v1.1', 'f1').error == pytest.approx(25.0)
    assert study.difference(*pair, 'SQuAD v2.0', 'f1') == Difference(25.0, None)


def recovered(*losses):
    """Of networks with seeds of 1 and on, whose losses of single instances were not kept."""
    rest = {'mlm_accuracy': 0.2, 'mlm_standard_error': 0.3, 'instances': 256}
    return {seed: HeldOut(mlm_loss=loss, **rest) for seed, loss in enumerate(losses, start=1)}


def test_a_difference_of_losses_is_paired_by_seed_and_without_instances_by_nothing_else():
    keys = [(row, 66.0) for row in ('optBERT-all', 'optBERT-h', 'optBERT-f')]
    study = StudyResults({}, {}, dict(zip(keys, (recovered(5.0, 5.25), recovered(6.0, 6.5), recovered(6.0)))))
    apart = study.loss_difference(keys[0], keys[1])
    assert apart.mean == 1.125 and apart.error == pytest.approx((0.125**2 + 2 * 0.3**2) ** 0.5)
    alone = study.loss_difference(keys[2], keys[0])
    assert alone.mean == -1.0 and alone.error == pytest.approx(0.3 * 2**0.5) and alone.freedom == 255
    assert study.loss_difference(keys[0], ('optBERT-a', 66.0)) is None
    unknown = {1: HeldOut(mlm_loss=9.0, mlm_accuracy=0.2, instances=256)}
    study = StudyResults({}, {}, {keys[0]: recovered(5.0), keys[1]: unknown})
    assert study.loss_difference(keys[0], keys[1]) == Difference(4.0, None)


def test_a_difference_of_losses_is_paired_by_the_instances_that_were_kept():
    """Two seeds of a row beside the base; what is hard for all falls out of the error."""
    hard, tokens = np.linspace(0, 900, 8), np.full(8, 10.0)
    base, row = ('base', None), ('optBERT-all', 66.0)
    sums = {base: [hard], row: [hard + 10 + np.tile([0, 2], 4), hard + 20 + np.tile([2, 0], 4)]}
    losses, means = {}, {}
    for key, seeds in sums.items():
        means[key] = {
            seed: HeldOut(mlm_loss=one.sum() / 80, mlm_accuracy=0.2, instances=8, mlm_standard_error=9.0)
            for seed, one in enumerate(seeds, start=1)
        }
        losses[key] = {seed: Losses(means[key][seed], one, tokens) for seed, one in enumerate(seeds, start=1)}
    study = StudyResults({}, {}, means, losses)
    apart = study.loss_difference(base, row)
    assert apart.mean == pytest.approx(1.6) and apart.error == pytest.approx(0.5)  # of the seeds alone
    losses[row].pop(2)
    alone = study.loss_difference(base, row)
    assert alone.error > 9.0  # as one of them was not kept
    means[row].pop(2)
    assert study.loss_difference(base, row).error == pytest.approx(0.1 * (8 / 7) ** 0.5 / 8**0.5)


def test_scores_are_correlated_with_what_recovery_left_of_cut_networks():
    """Six networks, one of them hardly cut and one from scratch; a score follows the one loss and not the
    other.
    """
    names = ['optBERT-all', 'optBERT-h', 'optBERT-f', 'a random cut', 'BERT-ℓ', 'BERT-base, trained on']
    facts = {'seed': 1, 'tasks': ['SST-2'], 'unreachable': None}
    networks = [{'row': 'base', 'size': None, 'share': 1.0, **facts}]
    networks += [{'row': row, 'size': 66.0, 'share': 0.6, **facts} for row in names]
    networks[-1]['share'] = 0.9996
    losses = (4.0, 3.0, 2.0, 1.0, 9.0, 9.0), (0.1, 0.3, 0.2, 0.4, 0.0, 0.0)
    values = zip(names, *losses, (60.0, 70.0, 80.0, 90.0, 99.0, 99.0))
    cells, measured = {}, {}
    for row, mlm, nsp, score in values:
        cells[(row, 66.0), 'SST-2'] = {1: written({'dev/accuracy': score})}
        measured[row, 66.0] = {1: HeldOut(mlm, 0.2, nsp, 0.5 + nsp, instances=8)}
    study = StudyResults({'networks': networks, 'scratch_steps': 600}, cells, measured)
    unrun = dataclasses.replace(study, cells={}, recovered={})
    assert 'from scratch, for 600 steps, and not made of the base: BERT-ℓ.' in summary(unrun)
    assert study.foretold('SST-2', 'accuracy', 'mlm_loss') == (pytest.approx(-1.0), 4)
    assert study.foretold('SST-2', 'accuracy', 'nsp_loss') == (pytest.approx(0.8), 4)
    measured['optBERT-f', 66.0] = {1: HeldOut(2.0, 0.2, instances=8)}  # text without pairs
    assert study.foretold('SST-2', 'accuracy', 'nsp_loss') is None
    text = study.held_out_text(('optBERT-h', 66.0), 'nsp_accuracy', scale=100, digits=1)
    assert text == '80.0' and study.held_out_text(('optBERT-f', 66.0), 'nsp_accuracy') == '–'


def test_bars_of_a_plot_are_errors_of_the_difference_to_the_base():
    keys = ('base', None), ('optBERT-h', 66.0)
    cells = {
        (key, 'SST-2'): {1: written({'dev/accuracy': score}, right={'dev': marks})}
        for key, score, marks in zip(keys, (50.0, 25.0), ('1100', '1000'))
    }
    networks = [{'row': row, 'size': size} for row, size in keys]
    (axes,) = draw(
        StudyResults({'networks': networks, 'objective': 'parameters'}, cells), 'SST-2', 'accuracy'
    ).axes
    ((ends,),) = (bars.get_segments() for bars in axes.collections)
    assert ends[:, 1] == pytest.approx([0.0, 50.0])


def test_an_average_has_a_deviation_only_over_seeds_that_every_task_has():
    table = load_table(9)

    def average(other_seeds):
        cells = {task: [1, 2] for task in task_names(table)} | {'MNLI': other_seeds}
        results = {
            task: [
                written(dict.fromkeys(['dev/accuracy', 'dev/f1', 'dev/exact'], 50.0 + one), one)
                for one in seeds
            ]
            for task, seeds in cells.items()
        }
        planned = {'name': 'optBERT-h', 'unreachable': None}
        return result_row(table, planned, results).entries['average'].scores

    assert average([1, 2]) == pytest.approx((51.0, 52.0))
    assert average([2, 3]) == pytest.approx((51.5 + 1 / 6,)) and average([1]) == pytest.approx(
        (51.5 - 0.5 / 6,)
    )


@pytest.mark.parametrize(
    ('further', 'said'),
    [
        ({}, 'one, 2 threads'),
        ({'instructions': 'AVX2'}, 'one with AVX2, 2 threads'),
        (
            {'instructions': 'AVX-512', 'kernels': {'DNNL_MAX_CPU_ISA': 'AVX2'}},
            'one with AVX-512, DNNL_MAX_CPU_ISA=AVX2, 2 threads',
        ),
    ],
)
def test_cells_name_their_processor_and_commit(further, said):
    name, machine = 'dev/accuracy', {'cpu': 'one', 'threads': '2', **further}
    run = SeedRun(1, (), 1, {name: 50.0}, 1.0)
    origin = {'commit': None, 'machine': machine}
    cell = FineTuningResult('SST-2', name, '0', 9, BASE.to_dict(), {'train': 8}, (run,), {}, origin)
    plan = {'networks': [{'row': 'base', 'size': None, 'tasks': ['SST-2'], 'unreachable': None}]}
    text = summary(StudyResults(plan, {(('base', None), 'SST-2'): {1: cell}}))
    assert f'- 1 cell: {said}, commit unknown' in text


def test_flops_have_no_share_before_the_base_has_a_cell():
    plan = {'networks': [{'row': 'optBERT-h', 'size': 66.0, 'tasks': [], 'unreachable': None}]}
    cell = dataclasses.replace(
        written({'dev/accuracy': 50.0}), origin={'commit': None, 'machine': {'cpu': 'one', 'threads': '2'}}
    )
    text = summary(StudyResults(plan, {(('optBERT-h', 66.0), 'SST-2'): {1: cell}}))
    assert '| 66M | 0.0 M | – | – |' in text


def laid_out(place, *sizes, gate_steps=1, base='1', score=70.0, objective='parameters', **tuning):
    """A study of the base and optBERT-h at its sizes, in files; on SST-2 they have a score and the size."""
    facts = {'seed': 1, 'tasks': ['SST-2'], 'how': 'by hand', 'share': 0.5, 'unreachable': None}
    networks = [
        {**facts, 'row': 'base', 'size': None, 'place': 'base-1/whole'},
        *({**facts, 'row': 'optBERT-h', 'size': size, 'place': f'optbert-h-1/{size}'} for size in sizes),
    ]
    plan = {'format': 1, 'objective': objective, 'base_parameters': 9, 'networks': networks}
    steps = {'alpha_steps': gate_steps, 'alpha_steps_auto': False, 'recovery_steps': 2}
    write_json(place / 'study.json', {**plan, **steps})
    write_json(place / 'inputs.json', {'base': {'model.params': base}})
    origin = {'commit': None, 'machine': {'cpu': 'one', 'threads': '2'}}
    for one in networks:
        cell = written({'dev/accuracy': one['size'] or score})
        cell = dataclasses.replace(cell, recipe={**cell.recipe, **tuning}, origin=origin)
        write_json(place / 'cells' / one['place'] / 'sst-2' / 'result.json', cell.to_dict())
    return place


def test_sizes_of_several_studies_stand_in_the_same_tables(tmp_path):
    small, large = laid_out(tmp_path / 'small', 43.0, gate_steps=7), laid_out(tmp_path / 'large', 66.0)
    outer = laid_out(tmp_path / 'outer', 77.0, 33.0)
    flags = {'study': 'small.yaml', 'output': small, 'beside': f'{large},{outer}', 'render': True}
    succeed('finetune/run_table.py', *flags_of(flags))
    text = (small / 'tables' / 'README.md').read_text()
    assert '5 of 5 cells' in text  # that of the base is one
    assert 'from the base anew to 77M, then 33M; to 66M; to 43M.' in text
    assert '| optBERT-h | 77.0 | +7.0 | 66.0 | -4.0 | 43.0 | -27.0 | 33.0 | -37.0 |' in text
    for number, steps, score in ((8, 1, 66.0), (9, 7, 43.0)):  # with the settings of its own study
        table = (small / 'tables' / f'table_{number:02d}.md').read_text()
        assert f'{steps} of gates' in table and f'| {score} |' in table
    assert (small / 'tables' / 'sst-2.png').is_file()
    assert not (large / 'tables').exists()


def test_a_plot_joins_the_sizes_of_one_ladder_alone(tmp_path):
    places = laid_out(tmp_path / 'one', 77.0, 33.0), laid_out(tmp_path / 'other', 66.0)
    studies = [*map(read_study, places)]
    for shown, joined in ((studies[0], [[33.0, 77.0]]), (together(studies), [[33.0, 77.0], [66.0]])):
        (axes,) = draw(shown, 'SST-2', 'accuracy').axes
        lines = [sorted(bars.lines[0].get_ydata()) for bars in axes.containers]
        assert lines == joined
        assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ['the base', 'optBERT-h']


def test_widths_of_a_row_are_drawn_from_the_largest_network(tmp_path):
    study = read_study(laid_out(tmp_path / 'one', 33.0, 77.0))
    figure = draw_dimensions(study, 'optBERT-h')
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ['the base', 'optBERT-h, 77M', 'optBERT-h, 33M']
    labels = [axes.get_ylabel()[0] for axes in figure.axes]
    assert labels == ['f', 'a', 'k', 'v']
    for letter, axes in zip(labels, figure.axes):
        assert {*axes.lines[0].get_ydata()} == {getattr(layer, letter) for layer in BASE.layers}
    assert draw_dimensions(read_study(laid_out(tmp_path / 'other', 66.0)), 'optBERT-h') is None


def test_a_page_shows_of_a_task_what_is_to_be_fine_tuned_on_it():
    networks = [
        {'row': row, 'size': size, 'seed': 1, 'tasks': tasks, 'unreachable': reason}
        for row, size, tasks, reason in (
            ('base', None, ['SST-2', 'MRPC'], None),
            ('optBERT-h', 66.0, ['SST-2'], None),
            ('optBERT-h', 88.0, [], None),
            ('optBERT-f', 66.0, ['SST-2'], 'too few filters'),
        )
    ]
    origin = {'commit': None, 'machine': {'cpu': 'one', 'threads': '2'}}
    cells = {
        (('base', None), task): {1: dataclasses.replace(written({'dev/accuracy': 70.0}), origin=origin)}
        for task in ('SST-2', 'MRPC')
    }
    text = summary(StudyResults({'networks': networks}, cells))
    assert '2 of 3 cells' in text
    of_task = text.partition('## SST-2')[2].partition('\n## ')[0]
    assert '| row | 66M | to the base |' in of_task and '| optBERT-h | not run | – |' in of_task
    assert 'optBERT-f' not in of_task
    assert 'The base: 70.0. No other network is fine-tuned on it.\n\n## ' in text.partition('## MRPC')[2]


@pytest.mark.parametrize(
    'size, more, said',
    [
        (66.0, {}, '66M is a size of 2 of the studies'),
        (43.0, {'base': '2'}, 'other was begun with other content of base than'),
        (
            43.0,
            {'epochs': 2},
            'SST-2 is fine-tuned with 8 instances, 3 epochs, .* or with 8 instances, 2 epochs',
        ),
        (43.0, {'score': 71.0}, 'the base answers otherwise on SST-2; .* copy its cells'),
        (0.5, {'objective': 'flops'}, 'their sizes are of parameters and of flops'),
    ],
)
def test_studies_that_are_not_alike_are_not_shown_together(tmp_path, size, more, said):
    places = laid_out(tmp_path / 'one', 66.0), laid_out(tmp_path / 'other', size, **more)
    with pytest.raises(ValueError, match=said):
        write_study(places[0], places[1:])
    assert not (places[0] / 'tables').exists()
