"""Results tables of the paper, planned on any base: their rows, settings, and what is refused."""

import dataclasses
import json
import re

import numpy as np
import pytest
from helpers.commands import call
from helpers.tables import flags_for, recipe_for, values_for
from helpers.tiny import ROOT, network, saved_model

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.reproduction.estimate import MEASURES, Times, estimate
from gluon_optbert.reproduction.plan import plan
from gluon_optbert.reproduction.recipe import TableRecipe
from gluon_optbert.reproduction.results import NOT_REACHABLE, read_results, render
from gluon_optbert.reproduction.rows import (
    BEYOND_THE_PAPER,
    MAKERS,
    TABLES,
    by_share,
    known_rows,
    row_names,
    rows_of,
    slug_of,
    task_names,
)
from gluon_optbert.reproduction.running import run
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.training.distillation import Weights

PARAMETERS = ParameterCost()


def times_of(**others):
    """A second for everything, but what is named."""
    times = Times(None, None)
    times.seconds = {**dict.fromkeys([*MEASURES, 'SST-2'], 1.0), **others}
    return times


@pytest.mark.parametrize('number', TABLES)
def test_every_published_row_of_results_has_a_maker(number):
    table = load_table(number)
    names = known_rows(table)
    assert set(row_names(table)) <= set(names) <= set(MAKERS)
    assert len({slug_of(name) for name in names}) == len(names)


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
def test_every_table_is_planned(planned, number, tmp_path):
    tasks = [task for task in task_names(load_table(number)) if task not in ('MRPC', 'RTE')]
    table_plan = planned(table=number, tasks=','.join(tasks))
    names = known_rows(load_table(number))
    rows = names if {'BERT-base', 'bert_base'} & set(names) else ['base', *names]
    assert [one.row.name for one in table_plan.networks] == rows and list(table_plan.tasks) == tasks
    for one in table_plan.chosen():
        assert (
            one.row.maker.kind == 'base'
            or table_plan.making(one).output == tmp_path / 'out' / 'rows' / one.row.slug
        )
        assert {table_plan.tuning(one, task).max_length for task in tasks} == {64}
    assert list(tmp_path.iterdir()) == []


def test_row_out_of_reach_says_why(base, shards_directory, data, tmp_path):
    output = tmp_path / 'out'
    recipe = recipe_for(base, shards_directory, data, output, table=15, rows='optbert-f')
    table_plan = plan(recipe)
    reasons = {one.row.name: one.row.unreachable for one in table_plan.networks}
    assert 'cannot be reached by pruning f' in reasons['optBERT-f']
    assert [one.row.name for one in table_plan.chosen()] == ['base']
    run(table_plan)
    row = next(row for row in read_results(output).rows if row.name == 'optBERT-f')
    assert {entry.text() for entry in row.entries.values()} == {NOT_REACHABLE}
    assert reasons['optBERT-f'] in render(read_results(output))['table.md']


def test_baselines_of_table_6_are_trained_from_scratch_for_the_steps_that_are_asked_for(
    table_recipe, base, tmp_path
):
    (tmp_path / 'pretraining.yaml').write_text('learning_rate: 3.0e-3\nsteps: 9\narchitecture: bert_base\n')
    recipe = table_recipe(table=6, rows='albert-e,bert-l', pretraining=str(tmp_path / 'pretraining.yaml'))
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


def test_rows_from_scratch_have_the_optimizer_of_pre_training_unless_told(
    planned, base, shards_directory, data, tmp_path
):
    values = values_for(base, shards_directory, data, tmp_path / 'out', table=6, rows='bert-l')
    (tmp_path / 'lamb.yaml').write_text('optimizer: lamb')
    for more, wanted in (
        ({}, 'bertadam'),
        ({'pruning': str(tmp_path / 'lamb.yaml')}, 'lamb'),
        ({'pretraining': str(tmp_path / 'lamb.yaml')}, 'lamb'),
    ):
        planned = plan(fill(TableRecipe, {**values, **more}))
        row = next(one for one in planned.networks if one.row.slug == 'bert-l')
        assert planned.making(row).optimizer == wanted


def test_gates_of_a_table_may_be_trained_until_they_settle(base, shards_directory, data, tmp_path):
    values = values_for(base, shards_directory, data, tmp_path / 'out', alpha_steps='auto', scale=0.1)
    table_plan = plan(fill(TableRecipe, values))
    recipes = {
        one.row.slug: table_plan.making(one) for one in table_plan.chosen() if one.row.maker.kind == 'pruned'
    }
    settling = {slug for slug, recipe in recipes.items() if recipe.alpha_steps == 'auto'}
    trained = {'optbert-h', 'optbert-all', 'optbert-all-plus', 'bert-all-uniform', 'optbert-f'}
    assert settling == trained & set(recipes)
    assert {'optbert-all', 'optbert-all-plus', 'bert-all-uniform'} <= settling
    assert {recipe.alpha_limit for slug, recipe in recipes.items() if slug in settling} == {100}
    assert recipes['bert-l-truncated'].alpha_steps == 100
    assert table_plan.to_dict()['alpha_steps'] == 100


def test_gates_of_a_scaled_table_take_all_steps_where_these_are_too_few_to_settle(
    base, shards_directory, data, tmp_path
):
    values = values_for(base, shards_directory, data, tmp_path / 'out', alpha_steps='auto', scale=0.05)
    table_plan = plan(fill(TableRecipe, values))
    recipes = [table_plan.making(one) for one in table_plan.chosen() if one.row.maker.kind == 'pruned']
    assert {recipe.alpha_steps for recipe in recipes} == {50}
    described = table_plan.to_dict()
    assert (described['alpha_steps'], described['alpha_steps_auto']) == (50, False)


def settings_beyond_the_paper(table_plan):
    """By row, those of pruning that are not off."""
    recipes = {
        one.row.name: table_plan.making(one) for one in table_plan.chosen() if one.row.maker.kind == 'pruned'
    }
    return {
        name: {one: getattr(recipe, one) for one in BEYOND_THE_PAPER if not recipe.is_default(one)}
        for name, recipe in recipes.items()
    }


@pytest.mark.parametrize('number', sorted(set(TABLES) - {1}))
def test_repairs_and_a_teacher_are_those_of_one_row_beside_the_papers(planned, number):
    tasks = ','.join(task for task in task_names(load_table(number)) if task in ('SST-2', 'SQuAD v1.1'))
    table_plan = planned(table=number, tasks=tasks or 'squad-v2.0')
    settings = settings_beyond_the_paper(table_plan)
    own = {'rotate_heads': True, 'reconstruct': True, 'teacher': 'parent', 'relative_gates': 'hav'}
    assert {name: found for name, found in settings.items() if found} == (
        {'optBERT-all+': own} if 'optBERT-all' in settings else {}
    )
    rows = {one.row.name: one.row for one in table_plan.networks}
    if 'optBERT-all' in rows:
        assert rows['optBERT-all+'].share == rows['optBERT-all'].share
        assert rows['optBERT-all+'].maker.prune == rows['optBERT-all'].maker.prune == 'hakvf'


def test_weights_of_a_teacher_act_in_the_row_that_has_one(planned, data, tmp_path):
    """Settings of the paper's rows may be stated where they change nothing."""
    further = tmp_path / 'further.yaml'
    weights = 'teacher_weights: {scores: 0, labels: 0.5}\ntemperature: 4\n'
    off = 'rotate_heads: false\nteacher: null\nrelative_gates: none\n'
    further.write_text((data / 'pruning.yaml').read_text() + weights + off)
    table_plan = planned(pruning=str(further), scale=0.5)
    recipes = {one.row.name: table_plan.making(one) for one in table_plan.chosen() if one.row.slug != 'base'}
    assert recipes['optBERT-all'].teacher is None
    taught = recipes['optBERT-all+']
    assert taught.teacher == 'parent' and taught.teaching() == Weights(
        labels=0.5, scores=0.0, states=1.0, temperature=4.0
    )
    assert taught.batch_size == recipes['optBERT-all'].batch_size == 8
    assert taught.recovery_steps == recipes['optBERT-all'].recovery_steps == 1


@pytest.mark.parametrize('file', ['', 'alpha_steps: null\n', 'method: magnitude\n'])
def test_gates_of_the_row_beside_the_papers_settle_unless_steps_are_stated(
    file, shards_directory, data, tmp_path
):
    trained = dataclasses.replace(
        saved_model(architecture=network(*[(4, 2, 2, 8)] * 4, max_length=64)),
        progress=Progress(step=30000, earlier_steps=20000),
    )
    write_model(tmp_path / 'base', trained)

    def gates(more='', **flags):
        further = tmp_path / 'further.yaml'
        further.write_text((data / 'pruning.yaml').read_text() + more)
        values = {'alpha_steps': None, 'scale': 0.5, 'pruning': str(further), **flags}
        table_plan = plan(recipe_for(tmp_path / 'base', shards_directory, data, tmp_path / 'out', **values))
        rows = {one.row.name: one for one in table_plan.networks}
        how = {row['name']: row['how'] for row in table_plan.to_dict()['rows']}
        recipes = [table_plan.making(rows[name]) for name in ('optBERT-all', 'optBERT-all+')]
        rates.append([recipe.alpha_learning_rate for recipe in recipes])
        return [recipe.alpha_steps for recipe in recipes], recipes[1].alpha_limit, how['optBERT-all+']

    rates = []
    steps, limit, how = gates(file)
    assert steps == [25, 'auto'] and limit == 500 and rates == [[0.01, 0.05]]
    gates(file + 'alpha_learning_rate: 0.02\n')
    assert rates[-1] == [0.02, 0.02]
    assert how.endswith(', and recovered, in each round at most 500 steps of gates')
    assert gates(file + 'alpha_limit: 300\n')[1] == 150
    for stated in (gates(file, alpha_steps=40), gates('alpha_steps: 40\n')):
        assert stated[0] == [20, 20] and stated[2].endswith('relative_gates hav, and recovered')


@pytest.mark.parametrize('typed', ['optbert-all-plus', 'optbert-all+', 'optBERT-all+'])
def test_row_with_a_plus_is_chosen_by_either_name(table_recipe, typed):
    recipe = table_recipe(rows=typed)
    assert [one.row.slug for one in plan(recipe).chosen()] == ['base', 'optbert-all-plus']
    recipe = recipe.replace(rows=('optbert-all',))
    assert [one.row.slug for one in plan(recipe).chosen()] == ['base', 'optbert-all']


def test_row_with_repairs_and_a_teacher_is_made_and_has_no_published_scores(finished):
    made = finished[0] / 'rows' / 'optbert-all-plus'
    for stage in ('rotated', 'reconstructed', 'model'):
        assert (made / 'round-2' / stage).is_dir()
    first = next(
        line for line in map(json.loads, (made / 'metrics.jsonl').open()) if line['phase'] == 'recovery'
    )
    assert {'mlm', 'nsp', 'scores', 'states'} <= set(first)
    rows = {row.name: row for row in read_results(finished[0]).rows}
    row = rows['optBERT-all+']
    assert row.entries['sst2'].state == 'done' and row.published_parameters_m is None
    assert row.parameters and row.entries['sst2'].published is None
    assert rows['optBERT-all'].published_parameters_m is not None
    how = 'with rotate_heads, reconstruct, teacher parent, relative_gates hav, and recovered, '
    assert f'optBERT-all+: method alpha on hakvf {how}' in (finished[0] / 'table.md').read_text()


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


def test_scale_shortens_steps_and_training_sets(planned):
    table_plan = planned(scale=0.1, alpha_steps=25, recovery_steps=100, tasks='sst-2,squad-v1.1')
    assert (table_plan.pruning.alpha_steps, table_plan.pruning.recovery_steps) == (3, 10)
    row = table_plan.chosen()[0]
    # of 6 questions and 41 sentences
    assert [table_plan.tuning(row, task).limit for task in table_plan.tasks] == [1, 5]
    assert table_plan.tuning(row, 'SST-2').epochs == 1


def test_squad_2_has_its_own_epochs_and_batches(planned, tmp_path):
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
        table_plan = planned(**asked)
        row = table_plan.chosen()[0]
        cells = [table_plan.tuning(row, task) for task in ('SQuAD v1.1', 'SQuAD v2.0')]
        return [(cell.epochs, cell.batch_size, cell.limit, len(cell.learning_rates)) for cell in cells]

    assert settings() == [(3, 32, 3, 0), (2, 48, 3, 0)]
    assert settings(epochs=1) == [(1, 32, 3, 0), (1, 48, 3, 0)]
    assert settings(squad=files['squad']) == [(5, 32, 3, 2), (5, 48, 3, 2)]
    assert settings(squad1=files['squad1'], squad2=files['squad2']) == [(3, 16, 3, 0), (2, 24, 2, 0)]
    assert settings(**files) == [(5, 16, 3, 2), (5, 24, 2, 0)]


def test_cells_choose_among_the_learning_rates_that_are_asked_for(planned, tmp_path):
    (tmp_path / 'rates.yaml').write_text('learning_rates: [0.1, 0.2]\n')
    by_flag, by_file = (
        planned(tasks='sst-2,squad-v1.1', **more)
        for more in ({'learning_rates': '1e-5,2e-5'}, {'glue': str(tmp_path / 'rates.yaml')})
    )
    row = by_flag.chosen()[0]
    assert [by_flag.tuning(row, task).learning_rates for task in by_flag.tasks] == [(1e-5, 2e-5)] * 2
    rates = {task: by_file.tuning(row, task).learning_rates for task in by_file.tasks}
    assert rates == {'SST-2': (0.1, 0.2), 'SQuAD v1.1': ()}


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
        'measured on the base: [1-9][0-9]* ms a step of gates, [1-9][0-9]* ms a step of recovery, '
        '[1-9][0-9]* ms a step of recovery with a teacher',
        done.stdout,
    )
    assert 'not counted: rotate_heads and reconstruct\n' in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'change, named',
    [
        ({'rows': 'optbert-x'}, "no row 'optbert-x'; there are base, bert-l"),
        ({'tasks': 'cola'}, "no task 'cola'"),
        ({'scale': 2}, 'scale must be '),
        ({'table': 7}, 'table must be one of 1, 6'),
        ({'render': True, 'dry_run': True}, 'exclude each other'),
    ],
)
def test_contradictory_table_is_refused(table_recipe, change, named):
    with pytest.raises(RecipeError, match=re.escape(named)):
        table_recipe(**change)


def test_missing_data_and_missing_base_are_said_before_anything_is_written(planned, tmp_path):
    with pytest.raises(FileNotFoundError, match='RTE/train.tsv: no such file'):
        planned(tasks='rte')
    done = call(ROOT / 'finetune' / 'run_table.py', '--table', 8, '--output', tmp_path / 'out')
    assert done.returncode == 2 and done.stderr.splitlines() == [
        'error: --base is missing',
        'error: --shards is missing',
    ]
    assert list(tmp_path.iterdir()) == []


def test_estimate_counts_the_halves_of_gate_training_and_evaluations_on_the_way(planned, data, tmp_path):
    def seconds(**changes):
        """Of making optBERT-h, whose two rounds have 4 steps of gates and 10 of recovery, a second each."""
        further = tmp_path / 'further.yaml'
        lines = [f'{name}: {json.dumps(value)}\n' for name, value in changes.items()]
        further.write_text((data / 'pruning.yaml').read_text() + ''.join(lines))
        options = {'pruning': str(further), 'alpha_steps': 4, 'recovery_steps': 10, 'rows': 'optbert-h'}
        table_plan = planned(**options)
        (row,) = (row for row in estimate(table_plan, times_of()) if row['network'].row.name == 'optBERT-h')
        return row['making']

    whole = seconds(split_half=False, evaluate_every=0)
    assert whole == 2 * (4 + 10 + 3)
    assert seconds(split_half=True, evaluate_every=0) == whole + 2 * 4
    assert seconds(split_half=False, evaluate_every=3) == whole + 2 * 3


def test_estimate_counts_the_steps_of_a_teacher_and_the_measurement_of_a_repair(planned):
    """Two rounds have 4 steps of gates and 10 of recovery."""
    options = {'alpha_steps': 4, 'recovery_steps': 10, 'rows': 'optbert-all,optbert-all+'}
    table_plan = planned(**options)
    times = times_of(**{'recovery with a teacher': 3.0})
    making = {row['network'].row.name: row['making'] for row in estimate(table_plan, times)}
    assert making['optBERT-all'] == 2 * (4 + 10 + 3)
    assert making['optBERT-all+'] == 2 * (4 + 10 * 3 + 4)


@pytest.mark.parametrize(
    'file, content, named',
    [
        ('glue', 'seeds: [1, 2, 3]', 'the table decides seeds (--seeds)'),
        ('glue', 'data: elsewhere', 'the table decides data (--data-glue, --data-squad)'),
        ('pruning', 'objective: flops', 'the table decides objective; leave it out'),
        (
            'pruning',
            'reconstruct: true',
            'the rows of the paper are pruned without reconstruct; leave that out there. Of the rows beside '
            'them, optBERT-all+ has rotate_heads, reconstruct, teacher, relative_gates',
        ),
        ('pruning', 'gate_teacher: true\nrotate_heads: true', 'without rotate_heads, gate_teacher; '),
        ('pruning', 'teacher: parent\nobjective: flops', 'without teacher; '),
        ('pruning', 'teacher: parent\nobjective: flops', 'the table decides objective; leave it out'),
    ],
)
def test_settings_that_the_table_decides_are_refused(planned, tmp_path, file, content, named):
    (tmp_path / 'further.yaml').write_text(content + '\n')
    options = {file: str(tmp_path / 'further.yaml')}
    with pytest.raises(RecipeError, match=re.escape(named)):
        planned(**options)
