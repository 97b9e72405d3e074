"""Results tables are rendered from result files alone, the published numbers beside ours."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from helpers.commands import call
from helpers.tables import recipe_for, sheet
from helpers.tiny import contents

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.reproduction.plan import plan
from gluon_optbert.reproduction.results import (
    CSV_HEADER,
    NOT_REACHABLE,
    NOT_RUN,
    Entry,
    draw,
    read_results,
    render,
)
from gluon_optbert.reproduction.rows import slug_of, task_names
from gluon_optbert.reproduction.running import run


def test_rendered_numbers_are_those_of_the_result_files(finished):
    output = finished[0]
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
        assert float(line['mean']) == pytest.approx(result['mean'][score])
        assert float(line['std']) == pytest.approx(result['std'][score])
        assert int(line['parameters']) == result['parameters'] and line['seeds'] == '2'
        text = Entry(tuple(one['scores'][score] for one in result['runs']), 'done', None).text()
        assert (
            text == f'{result["mean"][score]:.1f} ± {result["std"][score]:.1f}'
            and text in (output / 'table.md').read_text()
        )
    reached = [row for row in read_results(output).rows if row.parameters]
    assert len(done) == 3 * len(reached) >= 12


def test_published_numbers_stand_beside_ours(finished):
    table = load_table(8)
    lines = {(line['row'], line['column']): line for line in sheet(finished[0])}
    for record in table.records():
        for name in ('squad1_em', 'mnli', 'average'):
            line = lines[record['model'], name]
            assert (line['published'], line['state']) == (str(record[name]), NOT_RUN) or line[
                'state'
            ] == NOT_REACHABLE
    text, tex = (finished[0] / 'table.md').read_text(), (finished[0] / 'table.tex').read_text()
    assert (
        NOT_RUN in text
        and '| 88.1 |' in text
        and r'$\pm$' in tex
        and r'BERT-$\ell$' in tex
        and '±' not in tex
    )
    assert tuple(sheet(finished[0])[0]) == CSV_HEADER and finished[1].startswith('# Table 8\n')
    assert (finished[0] / 'table.png').read_bytes().startswith(b'\x89PNG') and (
        finished[0] / 'table.svg'
    ).is_file()


def test_base_is_fine_tuned_like_every_row(finished, base):
    output = finished[0]
    results = [
        json.loads((output / 'cells' / row / 'sst-2' / 'result.json').read_text())
        for row in ('base', 'optbert-h')
    ]
    assert results[0]['parameters'] == ParameterCost().cost(read_model(base).architecture)
    assert results[0]['architecture'] == read_model(base).architecture.to_dict()
    alike, other = ({**result['recipe'], 'model': '', 'output': '', 'results': ''} for result in results)
    assert alike == other
    assert '| base | here |' in (output / 'table.md').read_text()


def test_majority_class_stands_first_and_marks_what_it_equals(finished, tmp_path):
    output = tmp_path / 'table'
    shutil.copytree(finished[0], output)
    cell = output / 'cells' / 'optbert-h' / 'sst-2' / 'result.json'
    result = json.loads(cell.read_text())
    majority = result['majority']['dev/accuracy']
    for run_of_it in result['runs']:
        run_of_it['scores']['dev/accuracy'] = majority
    cell.write_text(json.dumps(result))
    rendered = render(read_results(output))
    (output / 'table.csv').write_text(rendered['table.csv'], encoding='utf-8')
    cells = {(line['row'], line['column']): line for line in sheet(output)}
    poor = cells['optBERT-h', 'sst2']
    assert (float(poor['majority']), poor['exceeds_majority']) == (pytest.approx(majority), 'False')
    base = cells['base', 'sst2']
    assert base['exceeds_majority'] == str(float(base['mean']) > majority + 1e-6)
    assert cells['optBERT-h', 'mnli']['majority'] == cells['optBERT-h', 'mnli']['exceeds_majority'] == ''
    lines = rendered['table.md'].splitlines()
    first, poor = (
        next(line for line in lines if line.startswith(f'| {name} |'))
        for name in ('majority class', 'optBERT-h')
    )
    assert f' {majority:.1f} |' in first and f' {majority:.1f} ± 0.0 * |' in poor
    assert any('* no better than the majority class' in line for line in lines)


def test_average_is_that_of_the_tasks_by_seed(finished, tmp_path):
    """Cells of all tasks, with scores that are known."""
    output = tmp_path / 'table'
    shutil.copytree(finished[0], output)
    names = {'squad-v1.1': ['f1', 'exact_match'], 'squad-v2.0': ['f1', 'exact']}
    for number, task in enumerate(map(slug_of, task_names(load_table(8)))):
        runs = [
            {
                'seed': seed,
                'epochs': [],
                'kept_epoch': 2,
                'scores': {f'dev/{name}': 10.0 * number + seed for name in names.get(task, ['accuracy'])},
                'seconds': 30.0,
            }
            for seed in (0, 2)
        ]
        cell = output / 'cells' / 'optbert-h' / task
        cell.mkdir(exist_ok=True)
        (cell / 'result.json').write_text(
            json.dumps(
                {
                    'format': 'gluon_optbert fine-tuning',
                    'task': task,
                    'metric': 'dev/x',
                    'model_sha256': '0' * 64,
                    'architecture': {},
                    'runs': runs,
                    'parameters': 5,
                    'samples': {'train': 2500 + number},
                    'recipe': {'epochs': 2, 'batch_size': 32, 'learning_rate': 5e-5, 'precision': 'float32'},
                }
            )
        )
    row = next(row for row in read_results(output).rows if row.name == 'optBERT-h')
    assert row.entries['average'].scores == (25.0, 27.0)
    assert row.entries['average'].std == pytest.approx(np.sqrt(2)) and row.seconds == 6 * 60
    text = render(read_results(output))['table.md']
    assert (
        'Fine-tuned on SQuAD v2.0: 2,501 instances, 2 epochs, batches of 32, learning rate 5e-05, float32.'
        in text
    )
    assert 'minutes in all.' in text


def test_rendering_needs_nothing_but_the_output(finished, tmp_path):
    output = tmp_path / 'table'
    shutil.copytree(finished[0], output)
    for path in output.glob('table.*'):
        path.unlink()
    done = call('finetune/run_table.py', '--table', 8, '--output', output, '--render')
    assert done.returncode == 0, done.stderr
    assert contents(output) == contents(finished[0])


def test_table_says_that_learning_rates_were_chosen_on_the_scored_set(base, shards_directory, data, tmp_path):
    chosen = {'rows': 'base', 'learning_rates': '0.001,0.01', 'seeds': '1'}
    run(plan(recipe_for(base, shards_directory, data, tmp_path / 'table', **chosen)))
    text = render(read_results(tmp_path / 'table'))['table.md']
    assert re.search(r'learning rate 0\.0?01 \(the best of 0.001, 0.01 on the set that is scored\)', text)


def test_no_two_rows_of_a_plot_look_alike(finished):
    """Table 6 has more rows than there are colours."""
    results = read_results(finished[0])
    rows = tuple(dataclasses.replace(results.rows[0], name=f'row {number}') for number in range(20))
    (axes,) = draw(dataclasses.replace(results, rows=rows)).axes
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() not in '_|'}
    assert len(looks) == 20
