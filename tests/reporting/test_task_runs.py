"""What pages and plots say of runs that pruned a network for its task."""

import json

import pytest
from helpers.pages import HOSTILE, check_page
from helpers.written_runs import BASE, SMALL, write_run, write_task_run

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.reporting.curves import draw_curves, segments_of
from gluon_optbert.reporting.figures import draw_losses, plot
from gluon_optbert.reporting.networks import (
    Measured,
    networks_of_runs,
    read_run,
    score_name,
    score_table,
    with_result,
)
from gluon_optbert.reporting.page import Chapter, page
from gluon_optbert.reporting.sections import chapter, of_rounds, side_by_side
from gluon_optbert.reporting.verdict import sentence, verdict

TINY = Architecture(h=2, layers=(LayerDims(1, 1, 1, 3), LayerDims(1, 1, 1, 2)), vocab_size=10)
LADDER = (BASE, SMALL, TINY)


def ladder(path, scores=(90.0, 89.5, 87.25), **more):
    return read_run(write_task_run(path, LADDER, scores, **more), path.name)


def words_of(*sections):
    """The text of a page of these sections, checked."""
    return check_page(page('title', [Chapter('chapter', tuple(sections))])).text


def test_page_has_the_score_of_every_round_at_every_stage(tmp_path):
    text = words_of(*of_rounds(ladder(tmp_path / 'run', cut=(70.0, 60.0))))
    place = text.index('SST-2 accuracy before')
    assert text[place : place + 4] == [
        'SST-2 accuracy before',
        'after the cut',
        'at the end',
        'points from the first',
    ]
    for value in ('90.00 ± 1.02', '70.00 ± 1.55', '89.50 ± 1.04', '-0.50', '60.00 ± 1.66', '-2.75'):
        assert value in text, value
    assert not any('MLM' in part or 'NSP' in part for part in text)


def test_reconstruction_has_a_column_where_layers_were_fitted(tmp_path):
    path = write_task_run(tmp_path / 'run', (BASE, SMALL), (90.0, 88.0))
    rows = json.loads((path / 'rounds.json').read_text())
    rows[1]['after_reconstruction'] = {**rows[1]['recovered'], 'scores': {'dev/accuracy': 85.5}}
    (path / 'rounds.json').write_text(json.dumps(rows))
    text = words_of(*of_rounds(read_run(path, 'run')))
    assert 'reconstructed' in text and any(part.startswith('85.50') for part in text)


def test_page_has_all_scores_of_a_run_that_has_several(tmp_path):
    path = write_task_run(tmp_path / 'run', (BASE, SMALL), (90.0, 88.0), trained_for='sentences')
    assert 'Scores' not in dict(of_rounds(read_run(path, 'run')))
    rows = json.loads((path / 'rounds.json').read_text())
    for row, more in zip(rows, (100.0, 71.25)):
        row['recovered']['scores']['long_texts/pair_similarity'] = more
    (path / 'rounds.json').write_text(json.dumps(rows))
    text = words_of(*of_rounds(read_run(path, 'run')))
    assert 'long_texts/pair_similarity' in text and '71.25' in text


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
    figure = draw_losses([ladder(tmp_path / 'run', cut=(70.0, 60.0))])
    (axes,) = figure.axes
    values = [list(line.get_ydata()) for line in axes.lines]
    assert values[:2] == [[90.0, 89.5, 87.25], [70.0, 60.0]]
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


@pytest.mark.parametrize(
    'task, metric, name',
    [
        ('SQuAD v1.1', 'dev/f1', 'SQuAD v1.1 F1'),
        ('SQuAD v1.1', 'dev/exact_match', 'SQuAD v1.1 exact match'),
        ('MNLI', 'dev_matched/accuracy', 'MNLI accuracy (dev_matched)'),
    ],
)
def test_score_is_named_for_people(task, metric, name):
    assert score_name(task, metric) == name


def test_runs_of_one_task_stand_side_by_side_and_apart_from_others(tmp_path):
    ours = [ladder(tmp_path / name, (90.0, score, score)) for name, score in (('a', 89.0), ('b', 88.0))]
    other = ladder(tmp_path / 'c', trained_for='MNLI')
    old = [read_run(write_run(tmp_path / name), name) for name in ('d', 'e')]
    beside = side_by_side([*ours, other, *old])
    assert [title for title, _ in beside.sections] == [
        'Where the runs ended: SST-2 accuracy',
        'Where the runs ended',
    ]
    text = words_of(beside.sections[0])
    assert [text.count(name) for name in ('not pruned', 'a', 'b', 'c')] == [1, 2, 2, 0]
    assert side_by_side([ours[0], other, old[0]]) is None


def test_verdict_of_one_ladder_names_every_rung(tmp_path):
    run = ladder(tmp_path / 'run')
    base, *pruned = networks_of_runs([run])
    assert [network.label for network in pruned] == ['run, round 1', 'run, round 2']
    said = sentence(base, pruned[1])
    assert said.endswith('and scores 2.8 points less on SST-2 accuracy: 87.2, the base 90.0.')
    text = ' '.join(check_page(page('', [], opening=verdict([base, *pruned]))).text)
    assert 'MLM' not in text and 'of one run each' in text and 'fine-tune the base' not in text


def test_a_sentence_compares_with_the_network_of_its_own_run(tmp_path):
    runs = [ladder(tmp_path / name, (start, 80.0, 80.0)) for name, start in (('a', 90.0), ('b', 85.0))]
    base, other, first, second = networks_of_runs(runs)
    assert [network.label for network in (other, first, second)] == ['base of b', 'a', 'b']
    assert (first.base, second.base) == ('base', 'base of b')
    assert '10.0 points less' in sentence(base, first) and '5.0 points less' in sentence(base, second)
    text = check_page(page('', [], opening=verdict([base, other, first, second]))).text
    assert any('began with several networks' in part for part in text)
    assert any('5.0 points less on SST-2 accuracy: 80.0, its base 85.0' in part for part in text)
    assert not any('base of b has' in part for part in text)
    assert text[text.index('SST-2 accuracy') :][3:7] == ['80.0', '89 %', '80.0', '94 %']
    assert 'began with several networks' not in verdict([base, first])


def test_scores_of_fine_tuning_stand_beside_those_of_pruning(tmp_path):
    networks = networks_of_runs([ladder(tmp_path / 'run')])
    result = {
        'task': 'SST-2',
        'metric': 'dev/accuracy',
        'architecture': BASE.to_dict(),
        'mean': {'dev/accuracy': 91.0},
        'std': {'dev/accuracy': 0.5},
    }
    base = with_result(networks, 'file', result)[0]
    assert {name: score.mean for name, score in base.scores.items()} == {
        'SST-2 accuracy': 90.0,
        'SST-2 accuracy, fine-tuned': 91.0,
    }
    (tuned,) = with_result([Measured('base', BASE)], 'file', result)
    assert list(tuned.scores) == ['SST-2 accuracy']


def test_plots_of_runs_have_scores_of_each_task_and_losses(tmp_path):
    runs = [ladder(tmp_path / 'a'), ladder(tmp_path / 'b', trained_for='MNLI')]
    runs.append(read_run(write_run(tmp_path / 'c'), 'c'))
    written, left_out = plot(runs, tmp_path / 'plots', paper=False)
    assert {path.stem for path in written if 'by_size' in path.stem} == {
        'loss_by_size',
        'score_by_size_SST_2_accuracy',
        'score_by_size_MNLI_accuracy',
    }
    table = (tmp_path / 'plots' / 'score_by_size_MNLI_accuracy.md').read_text()
    assert table == score_table(runs[1:2]) and table.splitlines()[-1].endswith('| 86.25 | 87.25 |')
    plot(runs[:1], tmp_path / 'one', paper=False)
    assert (tmp_path / 'one' / 'score_by_size.png').is_file()


def test_curves_of_a_run_for_a_task_have_its_loss_and_its_scores():
    records = [
        {'phase': 'recovery', 'round': 1, 'step': 5, 'loss': 0.5, 'learning_rate': 0.1},
        {'phase': 'recovery', 'round': 1, 'step': 10, 'dev/accuracy': 81.5},
    ]
    figure = draw_curves(segments_of(records))
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ['loss of the labels', 'learning rate', 'dev/accuracy\n(percent)']
    assert [list(line.get_ydata()) for line in figure.axes[-1].lines] == [[81.5]]


@pytest.mark.parametrize(
    'damage',
    [{'metric': 'dev/f1'}, {'metric': ['dev']}, {'scores': None}, {'scores': {'dev/accuracy': 'high'}}],
)
def test_damaged_scores_are_refused(tmp_path, damage):
    path = write_task_run(tmp_path / 'run', (BASE, SMALL), (90.0, 88.0))
    rows = json.loads((path / 'rounds.json').read_text())
    rows[1]['recovered'].update(damage)
    (path / 'rounds.json').write_text(json.dumps(rows))
    with pytest.raises(ValueError, match='rounds.json: 1.recovered'):
        read_run(path, 'run')


@pytest.mark.parametrize('text', HOSTILE[:6])
def test_names_of_tasks_are_only_shown(tmp_path, text):
    runs = [ladder(tmp_path / name, trained_for=text) for name in ('a', 'b')]
    assert any(text in part for part in words_of(*of_rounds(runs[0]), *side_by_side(runs).sections))
