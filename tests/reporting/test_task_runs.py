"""Pages and plots of runs that pruned a network for its task."""

import dataclasses
import json

import pytest
from helpers.pages import HOSTILE, check_page
from helpers.written_runs import BASE, SMALL, TINY, result_of, write_run, write_task_run

from gluon_optbert.reporting import figures
from gluon_optbert.reporting.curves import draw_curves, segments_of
from gluon_optbert.reporting.figures import draw_losses, plot
from gluon_optbert.reporting.networks import (
    networks_of_runs,
    quantity_name,
    read_run,
    size_table,
    with_result,
)
from gluon_optbert.reporting.page import Chapter, page
from gluon_optbert.reporting.sections import chapter, of_rounds, side_by_side
from gluon_optbert.reporting.verdict import sentence, verdict


def ladder(path, scores=(90.0, 89.5, 87.25), **more):
    return read_run(write_task_run(path, (BASE, SMALL, TINY), scores, **more), path.name)


def with_rounds(path, change):
    """The run in a directory, after a change of each of its rounds."""
    rows = json.loads((path / 'rounds.json').read_text())
    for row in rows:
        change(row)
    (path / 'rounds.json').write_text(json.dumps(rows))
    return read_run(path, path.name)


def words_of(*sections):
    """The text of a page of these sections, checked."""
    return check_page(page('title', [Chapter('chapter', tuple(sections))])).text


def test_page_has_the_score_of_every_round_at_every_stage(tmp_path):
    run = ladder(tmp_path / 'run', cut=(70.0, 60.0))
    text = words_of(*of_rounds(run))
    place = text.index('SST-2 accuracy before') + 1
    assert text[place : place + 3] == ['after the cut', 'at the end', 'points from the first']
    for value in ('90.00 ± 1.02', '70.00 ± 1.55', '89.50 ± 1.04', '-0.50', '60.00 ± 1.66', '-2.75'):
        assert value in text, value
    assert not any('MLM' in part or 'NSP' in part for part in text)
    assert 'Scores' not in dict(of_rounds(run)) and 'reconstructed' not in text

    def fitted_and_scored_twice(row):
        if row['round'] == 1:
            row['after_reconstruction'] = {**row['recovered'], 'scores': {'dev/accuracy': 85.5}}
        row['recovered']['scores']['long_texts/pair_similarity'] = 71.25 + row['round']

    text = words_of(*of_rounds(with_rounds(run.path, fitted_and_scored_twice)))
    assert 'reconstructed' in text and any(part.startswith('85.50') for part in text)
    assert 'long_texts/pair_similarity' in text and '72.25' in text


def test_page_has_the_times_that_the_run_measured(tmp_path):
    run = ladder(tmp_path / 'run')
    times = {'threads': '2', 'milliseconds': {'1x128': [8.0, 5.0, 2.0], '8x128': [60.0, 30.0, 15.0]}}
    (run.path / 'times.json').write_text(json.dumps(times))
    text = words_of(*chapter(run.path, 'run').sections)
    place = text.index('1 × 128 tokens, ms')
    assert text[place + 4 : place + 9] == ['0', '8.000', '1.00 ×', '60.00', '1.00 ×']
    assert text[place + 14 : place + 19] == ['2', '2.000', '4.00 ×', '15.00', '4.00 ×']
    assert 'times.json' not in text and any(part.endswith('Threads: 2.') for part in text)
    for damaged in ('[', '{}', json.dumps({**times, 'milliseconds': {'1x128': [8.0]}})):
        (run.path / 'times.json').write_text(damaged)
        with pytest.raises(ValueError, match='not JSON|not the times of the rounds'):
            of_rounds(run)


def test_scores_against_size_are_those_of_the_rounds(tmp_path):
    (axes,) = draw_losses([ladder(tmp_path / 'run', cut=(70.0, 60.0))]).axes
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[90.0, 89.5, 87.25], [70.0, 60.0]]
    assert axes.get_ylabel() == 'SST-2 accuracy (872 instances)\n(percent)'


@pytest.mark.parametrize(
    'recipe, task, name',
    [
        ({'task': None}, 'SST-2', 'SST-2 accuracy'),
        ({'task': 'sentences'}, None, 'sentences accuracy'),
        ({'task': 'own/reviews.json'}, None, 'reviews accuracy'),
    ],
)
def test_task_is_that_of_the_head_or_of_the_recipe(tmp_path, recipe, task, name):
    assert ladder(tmp_path / 'run', trained_for=task, **recipe).quantity == name
    assert quantity_name('SQuAD v1.1', 'dev/exact_match') == 'SQuAD v1.1 exact match'
    assert quantity_name('MNLI', 'dev_matched/f1') == 'MNLI F1 (dev_matched)'


def test_runs_of_one_task_stand_side_by_side_and_apart_from_others(tmp_path):
    ours = [ladder(tmp_path / name, (90.0, score, score)) for name, score in (('a', 89.0), ('b', 88.0))]
    other = ladder(tmp_path / 'c', trained_for='MNLI')
    old = [read_run(write_run(tmp_path / name), name) for name in ('d', 'e')]
    titles, contents = zip(*side_by_side([*ours, other, *old]).sections)
    assert titles == ('Where the runs ended: SST-2 accuracy', 'Where the runs ended')
    text = words_of(('', contents[0]))
    assert [text.count(name) for name in ('not pruned', 'a', 'b', 'c')] == [1, 2, 2, 0]
    assert side_by_side([ours[0], other, old[0]]) is None


def test_verdict_of_one_ladder_names_every_rung(tmp_path):
    base, *pruned = networks_of_runs([ladder(tmp_path / 'run')])
    assert [network.label for network in pruned] == ['run, round 1', 'run, round 2']
    said = sentence(base, pruned[1])
    assert said.endswith('and scores 2.8 points less on SST-2 accuracy: 87.2, the base 90.0.')
    text = ' '.join(check_page(page('', [], opening=verdict([base, *pruned]))).text)
    assert 'MLM' not in text and 'of one run each' in text and 'fine-tune the base' not in text


def test_scores_of_fine_tuning_stand_beside_those_of_pruning(tmp_path):
    networks = networks_of_runs([ladder(tmp_path / 'run')])
    base = with_result(networks, 'file', result_of(BASE, 91.0))[0]
    means = {name: score.mean for name, score in base.scores.items()}
    assert means == {'SST-2 accuracy': 90.0, 'SST-2 accuracy, fine-tuned': 91.0}


def test_plots_of_runs_have_scores_of_each_task_and_losses(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, 'save', lambda figure, directory, name: [directory / name])
    monkeypatch.setattr(figures, 'draw_widths', lambda *_: None)
    runs = [ladder(tmp_path / 'a'), ladder(tmp_path / 'b', trained_for='MNLI')]
    runs.append(read_run(write_run(tmp_path / 'c'), 'c'))
    written, _ = plot(runs, tmp_path / 'plots', paper=False)
    names = {'loss_by_size', 'score_by_size_SST_2_accuracy', 'score_by_size_MNLI_accuracy'}
    assert {path.name for path in written if 'by_size' in path.name} == names
    table = (tmp_path / 'plots' / 'score_by_size_MNLI_accuracy.md').read_text()
    assert table == size_table(runs[1:2]) and table.splitlines()[-1].endswith('| 86.25 | 87.25 |')
    written, _ = plot(runs[:1], tmp_path / 'one', paper=False)
    assert {path.name for path in written if 'by_size' in path.name} == {'score_by_size'}


def test_plots_of_runs_whose_names_would_be_one_are_told_apart_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, 'save', lambda figure, directory, name: [directory / name])
    monkeypatch.setattr(figures, 'draw_widths', lambda *_: None)
    runs = [ladder(tmp_path / name, trained_for=task) for name, task in (('a', '评论'), ('b', '问题'))]
    written, _ = plot(runs, tmp_path / 'plots', paper=False)
    assert len({path.name for path in written if 'by_size' in path.name}) == 2
    for names, paper in ((('paper',), True), (('a/b', 'a-b'), False)):
        runs = [dataclasses.replace(runs[0], label=name) for name in names]
        with pytest.raises(ValueError, match=f'called {names[-1]}_'):
            plot(runs, tmp_path / 'refused', paper=paper)
    assert not (tmp_path / 'refused').exists()


def test_curves_of_nothing_that_is_drawn_are_left_out(tmp_path):
    assert draw_curves(segments_of([{'phase': 'recovery', 'step': 5, 'state_difference': 0.5}])) is None


def test_curves_of_a_run_for_a_task_have_its_losses_and_its_scores():
    records = [
        {'phase': 'recovery', 'round': 1, 'step': 5, 'loss': 0.5, 'last': 0.2, 'learning_rate': 0.1},
        {'phase': 'recovery', 'round': 1, 'step': 10, 'dev/accuracy': 81.5},
    ]
    figure = draw_curves(segments_of(records))
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert [' '.join(label.split()) for label in labels] == [
        'loss of the labels',
        'difference of the last states',
        'learning rate',
        'dev/ accuracy (percent)',
    ]
    assert [list(line.get_ydata()) for line in figure.axes[-1].lines] == [[81.5]]


@pytest.mark.parametrize('damage', [{'metric': 'dev/f1'}, {'scores': {'dev/accuracy': 'high'}}])
def test_damaged_scores_are_refused(tmp_path, damage):
    run = ladder(tmp_path / 'run')
    with pytest.raises(ValueError, match='rounds.json: 0.recovered'):
        with_rounds(run.path, lambda row: row['recovered'].update(damage))


def test_names_of_tasks_are_only_shown(tmp_path):
    text = ' '.join(HOSTILE[:6])
    runs = [ladder(tmp_path / name, trained_for=text) for name in ('a', 'b')]
    for sections in (of_rounds(runs[0]), side_by_side(runs).sections):
        assert any(text in part for part in words_of(*sections))
