"""Results tables of the paper: planned on any base, run as far as they are not there, rendered from result
files alone.
"""

import csv
import dataclasses
import io
import json
import re
import shutil

import numpy as np
import pytest
from helpers.commands import call
from helpers.finetuned import write_glue
from helpers.questions import write_squad
from helpers.tiny import ROOT, contents, network, saved_model, write_saved_model

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.reproduction import runs as table_runs
from gluon_optbert.reproduction.planning import plan
from gluon_optbert.reproduction.rendering import CSV_HEADER, render
from gluon_optbert.reproduction.results import NOT_REACHABLE, NOT_RUN, Entry, read_results
from gluon_optbert.reproduction.rows import (
    MAKERS,
    TABLES,
    TableRecipe,
    by_share,
    known_rows,
    plain,
    row_names,
    rows_of,
    task_names,
)
from gluon_optbert.reproduction.runs import run
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.tasks.squad import Question
from gluon_optbert.training.distributed import Workers

PARAMETERS = ParameterCost()


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """SST-2 and MNLI of letters, both SQuADs, and settings as small as they are."""
    home = tmp_path_factory.mktemp('tables')
    write_glue(home / 'glue')
    answered = [
        Question(f'q{i}', 'a b', f'{letter} d e f', ((letter, 0),)) for i, letter in enumerate('ghijkl')
    ]
    for version in ('1.1', '2.0'):
        for part in ('train', 'dev'):
            write_squad(home / 'squad' / f'{part}-v{version}.json', answered, version)
    (home / 'pruning.yaml').write_text(
        'rounds: 2\nbatch_size: 8\nevaluation_limit: 8\ncheckpoint_every: 1\nlog_every: 0\n'
    )
    (home / 'tuning.yaml').write_text('batch_size: 8\nlog_every: 0\ncheckpoint_every: 2\n')
    return home


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    """Four layers, so that six of twelve are two of them, and enough positions for a smaller embedding to
    matter.
    """
    return write_saved_model(
        tmp_path_factory.mktemp('base') / 'model', architecture=network(*[(4, 2, 2, 8)] * 4, max_length=64)
    )


def values_for(base, shards, data, output, **more):
    return {
        'table': 8,
        'base': str(base),
        'shards': str(shards),
        'output': str(output),
        'tasks': 'sst-2',
        'seeds': '1,2',
        'epochs': 1,
        'data_glue': str(data / 'glue'),
        'data_squad': str(data / 'squad'),
        'alpha_steps': 2,
        'recovery_steps': 2,
        'scratch_steps': 3,
        'pruning': str(data / 'pruning.yaml'),
        'glue': str(data / 'tuning.yaml'),
        'squad': str(data / 'tuning.yaml'),
        **more,
    }


def recipe_for(*args, **more):
    return fill(TableRecipe, values_for(*args, **more))


def flags_for(*args, **more):
    return [
        part
        for name, value in values_for(*args, **more).items()
        for part in ('--' + name.replace('_', '-'), str(value))
    ]


def sheet(output):
    return list(csv.DictReader(io.StringIO((output / 'table.csv').read_text(encoding='utf-8'))))


@pytest.fixture(scope='module')
def finished(base, shards_directory, data, tmp_path_factory):
    """All rows of Table 8 on SST-2 and SQuAD 2.0, by the command; where, and what it said."""
    output = tmp_path_factory.mktemp('table') / 'table'
    done = call(
        'finetune/run_table.py', *flags_for(base, shards_directory, data, output, tasks='sst-2,squad-v2.0')
    )
    assert done.returncode == 0, done.stderr
    return output, done.stdout


@pytest.mark.parametrize('number', TABLES)
def test_every_published_row_of_results_has_a_maker(number):
    table = load_table(number)
    names = known_rows(table)
    assert set(row_names(table)) <= set(names) <= set(MAKERS)
    assert len({plain(name) for name in names}) == len(names)


@pytest.mark.parametrize('number', TABLES)
def test_rows_on_bert_base_have_the_published_sizes(number):
    """BERT-l has the size of its layers: three make 45.1 million, where Table 9 prints 43."""
    table = load_table(number)
    rows = {row.name: row for row in rows_of(table, bert_base())}
    for published, record, name in zip(row_names(table), table.records(), table.architectures):
        row = rows[published]
        wanted = (
            record['parameters_m'] * 1e6 if row.maker.size is by_share else PARAMETERS.cost(resolve(name))
        )
        if row.unreachable is None:
            assert abs(wanted - row.share * PARAMETERS.cost(bert_base())) <= 1


def test_rows_out_of_reach_on_bert_base_are_those_that_one_unit_a_layer_exceeds():
    """The paper has optBERT-f at 43 and 33 million and optBERT-a at 77; one filter a layer leaves 52 and one
    head 83.
    """
    out_of_reach = {
        (number, row.name)
        for number in TABLES
        for row in rows_of(load_table(number), bert_base())
        if row.unreachable
    }
    assert out_of_reach == {(9, 'optBERT-f'), (15, 'optBERT-f'), (13, 'optBERT-a')}


def test_networks_of_table_1_on_bert_base_are_the_published_ones():
    table = load_table(1)
    built = [row.architecture for row in rows_of(table, bert_base())]
    assert built == [resolve(name) for name in table.architectures]


@pytest.mark.parametrize('number', TABLES)
def test_every_table_is_planned(number, base, shards_directory, data, tmp_path):
    tasks = [task for task in task_names(load_table(number)) if task not in ('MRPC', 'RTE')]
    table_plan = plan(
        recipe_for(base, shards_directory, data, tmp_path / 'out', table=number, tasks=','.join(tasks))
    )
    names = known_rows(load_table(number))
    rows = names if {'BERT-base', 'bert_base'} & set(names) else ['base', *names]
    assert [row.name for row in table_plan.rows] == rows and list(table_plan.tasks) == tasks
    for row in table_plan.chosen():
        assert (
            row.maker.kind == 'base'
            or table_plan.row_recipe(row).output == tmp_path / 'out' / 'rows' / row.slug
        )
        assert {table_plan.cell_recipe(row, task).max_length for task in tasks} == {64}
    assert list(tmp_path.iterdir()) == []


def test_recipe_made_by_hand_is_checked(base, tmp_path):
    with pytest.raises(RecipeError) as error:
        plan(TableRecipe(table=8, base=str(base), output=str(tmp_path / 'out'), scale=2, rows=['bert']))
    assert len(error.value.problems) == 3 and '--shards is missing' in str(error.value)


def test_row_out_of_reach_says_why(base, shards_directory, data, tmp_path):
    output = tmp_path / 'out'
    recipe = recipe_for(base, shards_directory, data, output, table=15, rows='optbert-f')
    table_plan = plan(recipe)
    reasons = {row.name: row.unreachable for row in table_plan.rows}
    assert 'cannot be reached by pruning f' in reasons['optBERT-f']
    assert [row.name for row in table_plan.chosen()] == ['base']
    run(table_plan)
    row = next(row for row in read_results(output).rows if row.name == 'optBERT-f')
    assert {entry.text() for entry in row.entries.values()} == {NOT_REACHABLE}
    assert reasons['optBERT-f'] in render(read_results(output))['table.md']


def test_baselines_of_table_6_are_trained_from_scratch_for_the_steps_that_are_asked_for(
    base, shards_directory, data, tmp_path
):
    (tmp_path / 'pretraining.yaml').write_text('learning_rate: 3.0e-3\nsteps: 9\narchitecture: bert_base\n')
    recipe = recipe_for(
        base,
        shards_directory,
        data,
        tmp_path / 'out',
        table=6,
        rows='albert-e,bert-l',
        pretraining=str(tmp_path / 'pretraining.yaml'),
    )
    run(plan(recipe))
    before = read_model(base)
    bert_l, albert = (read_model(tmp_path / 'out' / 'rows' / row) for row in ('bert-l', 'albert-e'))
    assert bert_l.architecture.layers == before.architecture.layers[:3]  # nine of twelve
    assert albert.architecture.e == 2 and albert.architecture.layers == before.architecture.layers
    first = before.parameters['encoder.position_weight']
    for saved in (bert_l, albert):
        assert saved.progress.trained_steps == 3 and saved.recipe['learning_rate'] == 3e-3
        assert saved.recipe['batch_size'] == 8  # of the pruning settings
        start = saved.parameters['encoder.position_weight']
        assert start.shape != first.shape or not np.allclose(start, first, atol=0.01)
    rows = {row.name: row for row in read_results(tmp_path / 'out').rows}
    assert rows['BERT-ℓ'].entries['sst2'].state == rows['ALBERT-e'].entries['sst2'].state == 'done'
    assert (
        'Steps of a row that is trained from scratch: 3.'
        in render(read_results(tmp_path / 'out'))['table.md']
    )


@pytest.mark.parametrize('name, width', [('bert_base', 64), ('l6_h384_a12', 32), ('l4_h256_a4', 21)])
def test_the_embedding_of_albert_has_the_published_part_of_the_hidden_size(name, width):
    row = next(row for row in rows_of(load_table(6), resolve(name)) if row.name == 'ALBERT-e')
    assert row.architecture == dataclasses.replace(resolve(name), e=width)


def test_a_base_that_is_narrow_already_has_no_albert():
    rows = {row.name: row for row in rows_of(load_table(6), resolve('albert_e64'))}
    assert 'is a width of 64 here, and the embedding has 64' in rows['ALBERT-e'].unreachable


def test_rows_from_scratch_take_the_steps_of_the_base_unless_told(shards_directory, data, tmp_path):
    saved = saved_model(architecture=network(*[(4, 2, 2, 8)] * 4, max_length=64))
    trained = dataclasses.replace(saved, progress=Progress(step=30, earlier_steps=170))
    write_model(tmp_path / 'known', trained)
    write_model(tmp_path / 'unknown', dataclasses.replace(saved, progress=Progress()))
    values = dict(table=6, rows='bert-l', scratch_steps=None, output=str(tmp_path / 'out'))

    def planned(name, **more):
        recipe = values_for(tmp_path / name, shards_directory, data, tmp_path / 'out')
        return plan(fill(TableRecipe, {**recipe, **values, **more}))

    assert planned('known').scratch_steps == 200
    assert planned('known', scale=0.1).scratch_steps == 20
    assert planned('unknown', rows='bert-l-truncated').scratch_steps is None
    with pytest.raises(ValueError, match='unknown does not say how many steps .* give --scratch-steps'):
        planned('unknown')


def test_gates_of_a_table_may_be_trained_until_they_settle(base, shards_directory, data, tmp_path):
    values = values_for(base, shards_directory, data, tmp_path / 'out', alpha_steps='auto', scale=0.1)
    table_plan = plan(fill(TableRecipe, values))
    recipes = {
        row.slug: table_plan.row_recipe(row) for row in table_plan.chosen() if row.maker.kind == 'pruned'
    }
    settling = {slug for slug, recipe in recipes.items() if recipe.alpha_steps == 'auto'}
    assert settling == {'optbert-h', 'optbert-all', 'bert-all-uniform', 'optbert-f'} & set(recipes)
    assert {'optbert-all', 'bert-all-uniform'} <= settling
    assert {recipe.alpha_limit for slug, recipe in recipes.items() if slug in settling} == {100}
    assert recipes['bert-l-truncated'].alpha_steps == 100
    assert table_plan.to_dict()['alpha_steps'] == 100


def test_a_row_that_an_earlier_version_made_otherwise_is_not_continued(
    finished, base, shards_directory, data, tmp_path
):
    output = tmp_path / 'table'
    values = values_for(base, shards_directory, data, output, rows='bert-all-uniform')
    run(plan(fill(TableRecipe, values)))
    made = output / 'rows' / 'bert-all-uniform' / 'recipe.yaml'
    made.write_text(made.read_text().replace('method: uniform-alpha', 'method: uniform'))
    before = contents(output)
    with pytest.raises(ValueError, match='bert-all-uniform was begun with other settings of method'):
        run(plan(fill(TableRecipe, {**values, 'resume': True})))
    assert contents(output) == before


def test_rows_have_the_networks_they_are_named_after(finished, base):
    rows = {
        path.name: read_model(path if path.name == 'bert-l' else path / 'round-2' / 'model').architecture
        for path in (finished[0] / 'rows').iterdir()
    }
    whole, before = PARAMETERS.cost(read_model(base).architecture), read_model(base).architecture
    known = rows_of(load_table(8), before)
    assert set(rows) == {row.slug for row in known if row.unreachable is None}
    assert {'bert-l-truncated', 'bert-all-uniform-magnitude'} < set(rows)
    assert rows['bert-l'] == rows['bert-l-truncated'] and rows['bert-l'].layers == before.layers[:2]
    assert rows['bert-all-uniform'] == rows['bert-all-uniform-magnitude']
    assert rows['optbert-h'].layers == before.layers
    assert all(
        PARAMETERS.cost(rows[name]) <= whole * 66e6 / PARAMETERS.cost(bert_base()) + 1
        for name in set(rows) - {'bert-l', 'bert-l-truncated'}
    )


def test_rendered_numbers_are_those_of_the_result_files(finished):
    output = finished[0]
    slugs = {row['name']: row['slug'] for row in json.loads((output / 'plan.json').read_text())['rows']}
    names = {
        'squad2_f1': ('squad-v2.0', 'dev/f1'),
        'squad2_em': ('squad-v2.0', 'dev/exact'),
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
    assert results[0]['parameters'] == PARAMETERS.cost(read_model(base).architecture)
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
    lines = render(read_results(output))['table.md'].splitlines()
    first, poor = (
        next(line for line in lines if line.startswith(f'| {name} |'))
        for name in ('majority class', 'optBERT-h')
    )
    assert f' {majority:.1f} |' in first and f' {majority:.1f} ± 0.0 * |' in poor
    assert any('* no better than the majority class' in line for line in lines)


def test_table_of_an_earlier_version_is_read_and_its_plan_is_completed(
    finished, base, shards_directory, data, tmp_path
):
    """It has no row of the base, and its results have no score of the majority class."""
    output = tmp_path / 'table'
    values = values_for(base, shards_directory, data, output, rows='optbert-h')
    run(plan(fill(TableRecipe, values)))
    planned = json.loads((output / 'plan.json').read_text())
    del planned['rows'][0]
    (output / 'plan.json').write_text(json.dumps(planned))
    shutil.rmtree(output / 'cells' / 'base')
    shutil.rmtree(output / 'results' / 'base')
    cell = output / 'cells' / 'optbert-h' / 'sst-2' / 'result.json'
    result = json.loads(cell.read_text())
    del result['majority']
    cell.write_text(json.dumps(result))
    text = render(read_results(output))['table.md']
    assert '| base |' not in text and '| majority class | here | – | – |' in text
    run(plan(fill(TableRecipe, {**values, 'resume': True})))
    assert [row.name for row in read_results(output).rows][:2] == ['base', 'BERT-ℓ']
    assert read_results(output).rows[0].entries['sst2'].state == 'done'


def test_average_is_that_of_the_tasks_by_seed(finished, tmp_path):
    """Cells of all tasks, with scores that are known."""
    output = tmp_path / 'table'
    shutil.copytree(finished[0], output)
    names = {'squad-v1.1': ['f1', 'exact_match'], 'squad-v2.0': ['f1', 'exact']}
    for number, task in enumerate(map(plain, task_names(load_table(8)))):
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
    assert 'minutes in all' in text


def test_rendering_needs_nothing_but_the_output(finished, tmp_path):
    output = tmp_path / 'table'
    shutil.copytree(finished[0], output)
    for path in output.glob('table.*'):
        path.unlink()
    done = call('finetune/run_table.py', '--table', 8, '--output', output, '--render')
    assert done.returncode == 0, done.stderr
    assert contents(output) == contents(finished[0])


def test_finished_table_is_not_computed_again_and_takes_more_tasks(
    finished, base, shards_directory, data, tmp_path, monkeypatch
):
    output = finished[0]

    def refuse(*_, **__):
        raise AssertionError('computed again')

    for name in ('prune', 'pretrain', 'finetune_glue', 'finetune_squad'):
        monkeypatch.setattr(table_runs, name, refuse)
    monkeypatch.setattr(table_runs, 'Workers', refuse)  # those that are given are all there are
    before, workers = contents(output), Workers()

    def go_on(**more):
        recipe = recipe_for(base, shards_directory, data, output, **{'resume': True, **more})
        run(plan(recipe, workers=workers), workers=workers)

    with pytest.raises(FileExistsError, match='--resume'):
        go_on(tasks='sst-2,squad-v2.0', resume=False)
    go_on(tasks='sst-2')
    with pytest.raises(AssertionError, match='computed again'):
        go_on(tasks='mnli')
    for change in ({'seeds': '1'}, {'alpha_steps': 3}):
        with pytest.raises(ValueError, match='other settings of ' + next(iter(change))):
            go_on(**change)
    (tmp_path / 'other.yaml').write_text((data / 'tuning.yaml').read_text() + 'learning_rate: 0.5\n')
    with pytest.raises(ValueError, match='other settings of glue'):
        go_on(glue=str(tmp_path / 'other.yaml'))
    assert contents(output) == before


@pytest.mark.parametrize('stopped_in', ['prune', 'finetune_glue'])
def test_interrupted_table_goes_on_with_what_is_missing(
    stopped_in, base, shards_directory, data, tmp_path, monkeypatch
):
    output, calls = tmp_path / 'table', []
    original = getattr(table_runs, stopped_in)

    def stopping(recipe, **options):
        calls.append(recipe)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(recipe, **options)

    monkeypatch.setattr(table_runs, stopped_in, stopping)
    chosen = dict(rows='bert-l-truncated,optbert-h')
    with pytest.raises(KeyboardInterrupt):
        run(plan(recipe_for(base, shards_directory, data, output, **chosen)))
    before = contents(output)
    run(plan(recipe_for(base, shards_directory, data, output, resume=True, **chosen)))
    assert (
        len(calls) == (3 if stopped_in == 'prune' else 4) and calls[2] == calls[1]
    )  # the base is not pruned
    assert before.items() <= contents(output).items()
    rows = {row.name: row.entries['sst2'].state for row in read_results(output).rows}
    assert rows['BERT-ℓ truncated'] == rows['optBERT-h'] == 'done' and rows['optBERT-all'] == NOT_RUN


def test_scale_shortens_steps_and_training_sets(base, shards_directory, data, tmp_path):
    table_plan = plan(
        recipe_for(
            base,
            shards_directory,
            data,
            tmp_path / 'out',
            scale=0.1,
            alpha_steps=25,
            recovery_steps=100,
            tasks='sst-2,squad-v1.1',
        )
    )
    assert (table_plan.pruning.alpha_steps, table_plan.pruning.recovery_steps) == (3, 10)
    row = table_plan.chosen()[0]
    assert [table_plan.cell_recipe(row, task).limit for task in table_plan.tasks] == [
        1,
        5,
    ]  # of 6 questions and 41 sentences
    assert table_plan.cell_recipe(row, 'SST-2').epochs == 1


def test_squad_2_has_its_own_epochs_and_batches(base, shards_directory, data, tmp_path):
    """3 epochs with batches of 32 for version 1.1, 2 with 48 for 2.0, as BERT's authors took."""
    files = {}
    for name, text in {
        'squad': 'epochs: 5\nlearning_rates: [1.0e-5, 2.0e-5]\n',
        'squad1': 'batch_size: 16\n',
        'squad2': 'batch_size: 24\nlearning_rate: 1.0e-5\nlimit: 4\n',
    }.items():
        files[name] = str(tmp_path / f'{name}.yaml')
        (tmp_path / f'{name}.yaml').write_text(text)

    def settings(**more):
        asked = {'tasks': 'squad-v1.1,squad-v2.0', 'epochs': None, 'squad': None, 'scale': 0.5, **more}
        table_plan = plan(recipe_for(base, shards_directory, data, tmp_path / 'out', **asked))
        row = table_plan.chosen()[0]
        cells = [table_plan.cell_recipe(row, task) for task in ('SQuAD v1.1', 'SQuAD v2.0')]
        return [(cell.epochs, cell.batch_size, cell.limit, len(cell.learning_rates)) for cell in cells]

    assert settings() == [(3, 32, 3, 0), (2, 48, 3, 0)]
    assert settings(epochs=1) == [(1, 32, 3, 0), (1, 48, 3, 0)]
    assert settings(squad=files['squad']) == [(5, 32, 3, 2), (5, 48, 3, 2)]
    assert settings(squad1=files['squad1'], squad2=files['squad2']) == [(3, 16, 3, 0), (2, 24, 2, 0)]
    assert settings(**files) == [(5, 16, 3, 2), (5, 24, 2, 0)]


def test_resumed_table_takes_settings_of_squad_2_and_holds_finished_cells_to_them(
    finished, base, shards_directory, data, tmp_path, monkeypatch
):
    """The cells were made with the settings of --squad."""

    def refuse(*_, **__):
        raise AssertionError('computed again')

    for name in ('prune', 'pretrain', 'finetune_glue', 'finetune_squad'):
        monkeypatch.setattr(table_runs, name, refuse)
    before = contents(finished[0])
    for batch_size in (8, 4):
        (tmp_path / f'{batch_size}.yaml').write_text(f'batch_size: {batch_size}\n')

    def go_on(batch_size, **more):
        own = {'squad2': str(tmp_path / f'{batch_size}.yaml'), 'resume': True, **more}
        run(plan(recipe_for(base, shards_directory, data, finished[0], **own)))

    go_on(8, tasks='sst-2,squad-v2.0')
    with pytest.raises(ValueError, match='cells/base/squad-v2.0 was begun with other settings of batch_size'):
        go_on(4, tasks='squad-v2.0')
    with pytest.raises(ValueError, match='other settings of batch_size'):
        go_on(4, tasks='squad-v2.0', rows='bert-l')
    go_on(4, tasks='sst-2')
    assert contents(finished[0]) == before


def test_cells_choose_among_the_learning_rates_that_are_asked_for(base, shards_directory, data, tmp_path):
    (tmp_path / 'rates.yaml').write_text('learning_rates: [0.1, 0.2]\n')
    by_flag, by_file = (
        plan(recipe_for(base, shards_directory, data, tmp_path / 'out', tasks='sst-2,squad-v1.1', **more))
        for more in ({'learning_rates': '1e-5,2e-5'}, {'glue': str(tmp_path / 'rates.yaml')})
    )
    row = by_flag.chosen()[0]
    assert [by_flag.cell_recipe(row, task).learning_rates for task in by_flag.tasks] == [(1e-5, 2e-5)] * 2
    rates = {task: by_file.cell_recipe(row, task).learning_rates for task in by_file.tasks}
    assert rates == {'SST-2': (0.1, 0.2), 'SQuAD v1.1': ()}


def test_table_says_that_learning_rates_were_chosen_on_the_scored_set(base, shards_directory, data, tmp_path):
    chosen = {'rows': 'base', 'learning_rates': '0.001,0.01', 'seeds': '1'}
    run(plan(recipe_for(base, shards_directory, data, tmp_path / 'table', **chosen)))
    text = render(read_results(tmp_path / 'table'))['table.md']
    assert re.search(r'learning rate 0\.0?01 \(the best of 0.001, 0.01 on the set that is scored\)', text)


def test_dry_run_says_how_long_and_writes_nothing(base, shards_directory, data, tmp_path):
    done = call(
        'finetune/run_table.py',
        *flags_for(
            base,
            shards_directory,
            data,
            tmp_path / 'out',
            table=6,
            tasks='sst-2,squad-v1.1',
            alpha_steps=100000,
        ),
        '--dry-run',
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r'^\| optBERT-all \| .* (min|h|d) \|', done.stdout, flags=re.MULTILINE)
    assert '| ALBERT-e | trained from scratch' in done.stdout and re.search(
        '^in all .* (min|h|d)$', done.stdout, re.MULTILINE
    )
    assert re.search(
        'measured on the base: [1-9][0-9]* ms a step of gates, [1-9][0-9]* ms a step of recovery', done.stdout
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'change, named',
    [
        ({'rows': 'optbert-x'}, "no row 'optbert-x'; there are base, bert-l"),
        ({'tasks': 'cola'}, "no task 'cola'"),
        ({'scale': 2}, 'scale must be above 0 and at most 1'),
        ({'table': 7}, 'table must be one of 1, 6'),
        ({'render': True, 'dry_run': True}, 'exclude each other'),
    ],
)
def test_contradictory_table_is_refused(base, shards_directory, data, tmp_path, change, named):
    with pytest.raises(RecipeError, match=re.escape(named)):
        recipe_for(base, shards_directory, data, tmp_path / 'out', **change)


def test_missing_data_and_missing_base_are_said_before_anything_is_written(
    base, shards_directory, data, tmp_path
):
    with pytest.raises(FileNotFoundError, match='RTE/train.tsv: no such file'):
        plan(recipe_for(base, shards_directory, data, tmp_path / 'out', tasks='rte'))
    done = call(ROOT / 'finetune' / 'run_table.py', '--table', 8, '--output', tmp_path / 'out')
    assert done.returncode == 2 and done.stderr.splitlines() == [
        'error: --base is missing',
        'error: --shards is missing',
    ]
    assert list(tmp_path.iterdir()) == []
