"""Results tables are rendered from result files alone, the published numbers beside ours."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest
from helpers.commands import succeed
from helpers.tiny import contents

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.reproduction.results import NOT_REACHABLE, NOT_RUN, draw, read_results, render
from gluon_optbert.reproduction.rows import slug_of, task_names


def sheet(output):
    return list(csv.DictReader((output / 'table.csv').read_text(encoding='utf-8').splitlines()))


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished table, to change."""
    return shutil.copytree(finished[0], tmp_path / 'table')


def test_rendered_numbers_are_those_of_the_result_files(finished):
    output, text = finished[0], (finished[0] / 'table.md').read_text()
    slugs = {row['name']: row['slug'] for row in json.loads((output / 'plan.json').read_text())['rows']}
    names = {
        'squad2_f1': ('squad-v2.0', 'dev/best_f1'),
        'squad2_em': ('squad-v2.0', 'dev/exact_at_best_f1'),
        'sst2': ('sst-2', 'dev/accuracy'),
    }
    done = [line for line in sheet(output) if line['state'] == 'done']
    for line in done:
        task, score = names[line['column']]
        result = json.loads((output / 'cells' / slugs[line['row']] / task / 'result.json').read_text())
        mean, std = result['mean'][score], result['std'][score]
        assert (float(line['mean']), float(line['std'])) == pytest.approx((mean, std))
        assert int(line['parameters']) == result['parameters'] and line['seeds'] == '2'
        assert f'{mean:.1f} ± {std:.1f}' in text
    reached = [row for row in read_results(output).rows if row.parameters]
    assert len(done) == 3 * len(reached) == 15


def test_published_numbers_stand_beside_ours(finished):
    output, lines = finished[0], {(line['row'], line['column']): line for line in sheet(finished[0])}
    for record in load_table(6).records():
        for name in ('squad1_em', 'mnli', 'average'):
            line = lines[record['model'], name]
            absent = NOT_REACHABLE if record['model'] == 'optBERT-f' else NOT_RUN
            assert (line['published'], line['state']) == (str(record[name] or ''), absent)
    text, tex = (output / 'table.md').read_text(), (output / 'table.tex').read_text()
    assert NOT_RUN in text and '| 84.3 |' in text and '| BERT-base | here |' in text
    assert 'cannot be reached by pruning f' in text
    assert r'$\pm$' in tex and r'BERT-$\ell$' in tex and '±' not in tex
    assert finished[1].startswith('# Table 6\n')
    assert (output / 'table.png').read_bytes().startswith(b'\x89PNG') and (output / 'table.svg').is_file()


def test_base_is_fine_tuned_like_every_row(finished, base):
    files = (finished[0] / 'cells' / row / 'sst-2' / 'result.json' for row in ('bert-base', 'optbert-h'))
    results = [json.loads(file.read_text()) for file in files]
    assert results[0]['parameters'] == ParameterCost().cost(read_model(base).architecture)
    assert results[0]['architecture'] == read_model(base).architecture.to_dict()
    alike, other = ({**result['recipe'], 'model': '', 'output': '', 'results': ''} for result in results)
    assert alike == other


def test_majority_class_stands_first_and_marks_what_it_equals(copied):
    cell = copied / 'cells' / 'optbert-h' / 'sst-2' / 'result.json'
    result = json.loads(cell.read_text())
    majority = result['majority']['dev/accuracy']
    for run in result['runs']:
        run['scores']['dev/accuracy'] = majority
    cell.write_text(json.dumps(result))
    rendered = render(read_results(copied))
    (copied / 'table.csv').write_text(rendered['table.csv'], encoding='utf-8')
    cells = {(line['row'], line['column']): line for line in sheet(copied)}
    poor, good = cells['optBERT-h', 'sst2'], cells['BERT-base', 'sst2']
    assert (float(poor['majority']), poor['exceeds_majority']) == (pytest.approx(majority), 'False')
    assert good['exceeds_majority'] == str(float(good['mean']) > majority + 1e-6)
    assert cells['optBERT-h', 'mnli']['majority'] == cells['optBERT-h', 'mnli']['exceeds_majority'] == ''
    lines = {line.split(' |')[0]: line for line in rendered['table.md'].splitlines()}
    assert f' {majority:.1f} |' in lines['| majority class']
    assert f' {majority:.1f} ± 0.0 * |' in lines['| optBERT-h']
    assert '* no better than the majority class' in rendered['table.md']


def test_average_is_that_of_the_tasks_by_seed(copied):
    """Cells of all tasks, with scores that are known; the learning rate was chosen on the scored set."""
    known = json.loads((copied / 'cells' / 'optbert-h' / 'sst-2' / 'result.json').read_text())
    names = {'squad-v1.1': ['f1', 'exact_match'], 'squad-v2.0': ['f1', 'exact']}
    for number, task in enumerate(map(slug_of, task_names(load_table(6)))):
        scores = [f'dev/{name}' for name in names.get(task, ['accuracy'])]
        runs = [dict(run, seconds=30.0, epochs=[]) for run in known['runs']]
        for run, seed in zip(runs, (0, 2)):
            run['scores'] = dict.fromkeys(scores, 10.0 * number + seed)
        result = dict(known, task=task, metric=scores[0], runs=runs, samples={'train': 2500 + number})
        tried = [{'learning_rate': rate, 'runs': runs} for rate in (5e-5, 0.01)]
        result['learning_rates'] = {'tried': tried}
        cell = copied / 'cells' / 'optbert-h' / task
        cell.mkdir(exist_ok=True)
        (cell / 'result.json').write_text(json.dumps(result))
    row = next(row for row in read_results(copied).rows if row.name == 'optBERT-h')
    average = row.entries['average']
    assert average.scores == (25.0, 27.0) and average.std == pytest.approx(np.sqrt(2))
    assert row.seconds == 6 * 2 * 60
    text = render(read_results(copied))['table.md']
    tuned = 'Fine-tuned on SQuAD v2.0: 2,501 instances, 1 epoch, batches of 8, learning rate 3e-05'
    assert f'{tuned} (the best of 5e-05, 0.01 on the set that is scored), float32.' in text
    assert 'minutes in all.' in text


def test_rendering_needs_nothing_but_the_output(finished, copied):
    for path in copied.glob('table.*'):
        path.unlink()
    succeed('finetune/run_table.py', '--table', 6, '--output', copied, '--render')
    assert contents(copied) == contents(finished[0])


def test_no_two_rows_of_a_plot_look_alike(finished):
    """Table 6 has more rows than there are colours."""
    results = read_results(finished[0])
    rows = tuple(dataclasses.replace(results.rows[0], name=f'row {number}') for number in range(20))
    (axes,) = draw(dataclasses.replace(results, rows=rows)).axes
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() not in '_|'}
    assert len(looks) == 20
