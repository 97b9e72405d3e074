"""tools/report.py: one page for whatever a run leaves."""

import contextlib
import dataclasses
import io
import json
import re
import shutil

import pytest
import yaml
from helpers.commands import refused
from helpers.pages import HOSTILE, check_page
from helpers.written_runs import BASE, SMALL, result_of, write_run

import gluon_optbert as opt
from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.commands import report as make_page, table as make_table
from gluon_optbert.finetuning.result import RateRuns
from gluon_optbert.reporting.curves import draw_curves, segments_of, speed
from gluon_optbert.reporting.sections import chapter
from gluon_optbert.reproduction.rows import row_names, slug_of
from gluon_optbert.runs.files import write_sealed
from gluon_optbert.runs.progress import OPTIMISTIC

RECORDS = [
    dict(phase='gates', round=1, step=4, mlm=3.0, nsp=0.7, penalty=1.5, tokens_per_second=10.0),
    dict(phase='recovery', round=1, step=5, mlm=2.9, nsp=0.6, learning_rate=0.1, tokens_per_second=30.0),
    dict(phase='recovery', round=1, step=10, mlm=2.8, nsp=0.6, tokens_per_second=10.0),
    dict(phase='recovery', round=1, step=10, mlm_loss=2.7, nsp_loss=0.5),
    dict(phase='gates', round=2, step=4, mlm=2.6, nsp=0.5, penalty=1.2, tokens_per_second=20.0),
]


def write_whole_run(path):
    """A finished pruning run, with all the files that it may have."""
    write_run(path)
    (path / 'metrics.jsonl').write_text(''.join(json.dumps(record) + '\n' for record in RECORDS))
    (path / 'recipe.yaml').write_text(yaml.safe_dump({'gamma': 0.0123, 'model': 'models/small'}))
    times = {'predicted_ms': 5.25, 'measured_ms': 6.5}
    (path / 'latency.json').write_text(json.dumps({'before': times, 'finished': times}))
    (path / 'round-0' / 'model').mkdir(parents=True)
    manifest = {
        'format': 'gluon_optbert model',
        'gluon_optbert': '9.8.7',
        'files': {'model.params': {'sha256': '0'}},
    }
    write_sealed(path / 'round-0' / 'model' / 'manifest.json', manifest)
    return path


def report(*paths, output):
    """The page of what lies there, checked."""
    assert make_page([*map(str, paths), '--time', 'false', '--output', str(output)]) == 0
    return check_page(output.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A finished pruning run, its page and what the command said."""
    place, said = tmp_path_factory.mktemp('whole'), io.StringIO()
    with contextlib.redirect_stdout(said):
        report(write_whole_run(place / 'pruned'), output=place / 'page.html')
    return place / 'pruned', place / 'page.html', said.getvalue()


def test_page_of_a_pruning_run_has_all_its_parts(whole):
    read = check_page(whole[1].read_text(encoding='utf-8'))
    text = ' '.join(read.text)
    for part in ('Size and accuracy', 'Widths', 'Gates', 'Latency', 'Curves', 'Recipe', 'Environment'):
        assert part in text
    share = ParameterCost().cost(SMALL) / ParameterCost().cost(BASE)
    for value in (f'{share:.1%}', '2.500', '3', '0.0123', '5.25', 'models/small', '9.8.7', 'recovery'):
        assert value in read.text, value
    assert sum(name == 'img' for name in read.tags) == 1 + 4 + 1 + 1  # losses by size, widths, gates, curves
    assert 'opens in any browser' in whole[2]


def test_page_says_where_a_run_was_made_and_how_large_a_model_is(model_directory, tmp_path):
    path = write_whole_run(tmp_path / 'pruned')
    for name in ('rounds.json', 'metrics.jsonl', 'latency.json'):  # which are drawn
        (path / name).unlink()
    shutil.rmtree(path / 'round-1')
    (path / 'origin.json').write_text(json.dumps([{'commit': 'c0ffee1', 'workers': 2}]))
    text = report(path, model_directory, output=tmp_path / 'page.html').text
    assert 'Where it was made' in text and 'c0ffee1' in ' '.join(text) and 'origin.json' not in text
    assert 'parameters of embeddings and encoder' in text and 'gluon_optbert model' in text


def test_page_of_a_fine_tuning_run_begins_with_its_scores(tmp_path):
    result = result_of(BASE, 60.125, 62.875, origin={'commit': 'abc123'})
    (tmp_path / 'rte.json').write_bytes(result.to_json())
    text = report(tmp_path / 'rte.json', output=tmp_path / 'page.html').text
    assert text.index('seed 2') < text.index('61.50 ± 1.94') < text.index('62.88') < text.index('abc123')
    worse = result_of(BASE, 60.0, 60.5)
    tried = RateRuns(2e-5, worse.runs), RateRuns(5e-5, result.runs)
    (tmp_path / 'rates.json').write_bytes(dataclasses.replace(result, tried=tried).to_json())
    text = report(tmp_path / 'rates.json', output=tmp_path / 'rates.html').text
    said = f'5e-05 was chosen: {OPTIMISTIC}.'
    assert text.index('2e-05') < text.index('60.25') < text.index(said)


def write_plan(path, table):
    """The directory of a table of which nothing was run."""
    rows = [
        {'name': name, 'slug': slug_of(name), 'how': 'by hand', 'share': None, 'unreachable': None}
        for name in row_names(table)
    ]
    plan = dict(format=1, table=8, base='models/small', base_parameters=1234, rounds=2, alpha_steps=3)
    plan.update(alpha_steps_auto=False, recovery_steps=4, scale=1.0, seeds=[1, 2], rows=rows)
    path.mkdir()
    (path / 'plan.json').write_text(json.dumps(plan))
    (path / 'table.csv').write_text('long,form\n')


def test_page_of_a_table_has_its_rows_and_its_notes(tmp_path):
    table = load_table(8)
    write_plan(tmp_path / 'table', table)
    text = report(tmp_path / 'table', output=tmp_path / 'page.html').text
    assert table.caption in text and 'not run' in text and '88.1' in text and 'long' not in text
    assert any('base of 1,234 parameters' in words for words in text)


def test_another_table_than_the_one_that_was_asked_for_is_not_rendered(tmp_path, capsys):
    write_plan(tmp_path / 'table', load_table(8))
    assert make_table(['--table', '9', '--render', '--output', str(tmp_path / 'table')]) == 2
    assert 'holds Table 8' in capsys.readouterr().err
    assert (tmp_path / 'table' / 'table.csv').read_text() == 'long,form\n'


def test_page_of_a_search_or_a_table_shows_its_csv_and_its_pictures(tmp_path):
    search = tmp_path / 'search'
    search.mkdir()
    (search / 'trials.csv').write_text('trial,gamma,note,layers\n0,0.01,"a, b",1_2\n1,,,007\n')
    (search / 'trials.md').write_text('| the same |')
    (search / 'notes.md').write_text('A note.')
    for name in ('slice.png', 'plot.png', 'plot.svg'):
        (search / name).write_bytes(b'picture')
    read = report(search, output=tmp_path / 'page.html')
    assert {'0.01', 'a, b', '1_2', '007', 'A note.', 'slice.png', 'plot.svg'} <= set(
        read.text
    ) and '| the same |' not in read.text
    assert sum(name == 'img' for name in read.tags) == 2 and 'plot.png' not in read.text


def test_hostile_names_and_values_are_only_shown(tmp_path):
    name = ''.join(HOSTILE[:-1]).translate({0: None, 0xD800: None, ord('/'): None})
    path = write_whole_run(tmp_path / name)
    records = [{'phase': text, 'round': text, 'step': 3, 'mlm': 1.0, text: text} for text in HOSTILE]
    (path / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, records)))
    (path / 'recipe.yaml').write_text(yaml.safe_dump({text: text for text in HOSTILE[:6]}))
    (path / 'other.json').write_text(json.dumps({text: [text, {text: text}] for text in HOSTILE}))
    (path / 'table.csv').write_text('\n'.join(HOSTILE).replace('\ud800', ''), encoding='utf-8')
    read = report(path, write_run(tmp_path / 'other'), output=tmp_path / 'page.html')
    assert all(sum(text in part for part in read.text) >= 4 for text in HOSTILE[:6])


def test_unfinished_runs_are_reported_as_far_as_they_are_with_the_curves_of_their_seeds(tmp_path):
    (tmp_path / 'run' / 'round-0').mkdir(parents=True)
    (tmp_path / 'run' / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, RECORDS)) + '\n{"phase": "reco')
    text = ' '.join(report(tmp_path / 'run', output=tmp_path / 'run.html').text)
    assert 'not finished' in text and 'Curves' in text
    run = tmp_path / 'sst2.training'
    lines = ''.join(json.dumps({'phase': 'SST-2', 'step': step, 'loss': 0.5}) + '\n' for step in (50, 63))
    for name in ('rate-2e-05/seed-1/metrics.jsonl', 'rate-2e-05/seed-2.jsonl', 'rate-5e-05/seed-1.jsonl'):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(lines)
    (run / 'rate-2e-05' / 'seed-2.states').mkdir()
    text = ' '.join(report(run, output=tmp_path / 'page.html').text)
    assert 'not finished: it has no result.json' in text
    curves = {'rate-2e-05/seed-1', 'rate-2e-05/seed-2', 'rate-5e-05/seed-1'}
    assert set(re.findall(r'Curves of (\S+)', text)) == curves
    run.rename(tmp_path / 'models')  # which some have called after their seeds
    with pytest.raises(ValueError, match='nothing to report'):
        chapter(tmp_path / 'models', 'models')


def test_a_loss_that_no_float_holds_is_drawn_as_none(tmp_path):
    record = {'phase': 'gates', 'step': 1, 'mlm': 10**400}
    (tmp_path / 'metrics.jsonl').write_text(json.dumps(record) + '\n')
    assert 'Curves' in dict(chapter(tmp_path, 'run').sections)


def test_phases_follow_each_other_and_curves_are_the_records():
    segments = segments_of(RECORDS)
    found = [(part.phase, part.round, part.start, part.end) for part in segments]
    assert found == [('gates', 1, 0, 4), ('recovery', 1, 4, 14), ('gates', 2, 14, 18)]
    assert segments[1].series('mlm') == ([9, 14], [2.9, 2.8])
    assert segments[1].series('mlm_loss') == ([14], [2.7])
    assert speed(segments)[1] == ['recovery', 1, 10, 20.0, None]
    figure = draw_curves(segments)
    first = [list(zip(line.get_xdata(), line.get_ydata())) for line in figure.axes[0].lines]
    for points in ([(4, 3.0)], [(9, 2.9), (14, 2.8)], [(14, 2.7)], [(18, 2.6)]):
        assert points in first
    assert len(figure.axes) == 4


@pytest.mark.parametrize(
    'name, content, says',
    [
        ('metrics.jsonl', '{"step": 1}\n', 'line 1 has no phase and step'),
        ('metrics.jsonl', '{"phase": "gates", "step": 1%s}\n' % ('0' * 400), 'line 1 has no phase and step'),
        ('metrics.jsonl', '{"phase": "gates", "step": 1, "round": [1]}\n', 'a round that is no number'),
        ('metrics.jsonl', 'x\n{}\n', 'line 1'),
        ('recipe.yaml', '{', 'not readable as YAML'),
        ('table.csv', 'name\n' + 'x' * 200_000, 'table.csv: not readable as CSV'),
        ('x.json', 'x', 'not JSON'),
        ('result.json', '{"format": "gluon_optbert fine-tuning"}', 'not a result of fine-tuning'),
        ('rounds.json', '[{"round": 0, "parameters": "x", "architecture": {}}]', '0.parameters must be'),
    ],
)
def test_damaged_file_is_one_line_and_status_2(tmp_path, name, content, says):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / name).write_text(content)
    assert says in refused('tools/report.py', tmp_path / 'run', '--output', tmp_path / 'page.html')
    assert not (tmp_path / 'page.html').exists()


def test_bad_command_lines_are_refused(tmp_path, capsys):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'begun.training').mkdir()
    (tmp_path / 'page.html').write_text('mine')
    (tmp_path / 'export').mkdir()
    (tmp_path / 'export' / 'model-symbol.json').write_text('{}')
    for words, says in (
        ([str(tmp_path / 'export'), '--output', 'x.html'], 'export is an export; give the model directory'),
        (['--output', 'x.html'], 'RUNS is missing'),
        ([str(tmp_path / 'nowhere'), '--output', 'x.html'], 'nowhere: not found; give a run, a model'),
        ([str(tmp_path / 'page.html'), '--output', 'x.html'], 'page.html: a file, but not JSON; give a run'),
        ([str(tmp_path / 'begun'), '--output', 'x.html'], f'give {tmp_path / "begun.training"}\n'),
        ([str(tmp_path / 'empty'), '--output', 'x.html'], 'nothing to report'),
        ([str(tmp_path / 'empty'), '--output', str(tmp_path / 'page.html')], 'exists'),
    ):
        assert make_page(words) == 2 and says in capsys.readouterr().err
    assert (tmp_path / 'page.html').read_text() == 'mine'


def test_page_of_several_begins_with_the_verdict_and_scores_fine_tuning_runs_beside_the_base(whole, tmp_path):
    for name, architecture, mean in (('base', BASE, 80.0), ('tuned', SMALL, 76.0)):
        result = result_of(architecture, mean, task='RTE', majority=52.7, samples={'train': 2490})
        (tmp_path / name).mkdir()
        (tmp_path / name / 'result.json').write_bytes(result.to_json())
    words = [str(path) for path in (whole[0], tmp_path / 'base', tmp_path / 'tuned')]
    assert make_page([*words, '--output', str(tmp_path / 'page.html')]) == 0
    text = check_page((tmp_path / 'page.html').read_text(encoding='utf-8')).text
    place = text.index('parameters')
    assert any('pruned has ' in part and ' as ' in part for part in text[:place])
    assert place < text.index('time') < text.index('Size and accuracy')
    assert any('took turns in one process' in part for part in text)
    assert any('scores 4.0 points less on RTE accuracy' in part for part in text)
    for part in ('Every epoch', '79.00', '52.70', '2,490', 'f (filters)'):
        assert part in text, part


def test_page_of_nothing_and_a_batch_that_is_not_timed_are_refused(tmp_path):
    with pytest.raises(ValueError, match='runs are missing'):
        opt.report(time=False)
    words = [tmp_path, '--output', tmp_path / 'page.html', '--time', 'false', '--batch', 8]
    assert '--batch goes with --time' in refused('tools/report.py', *words)
