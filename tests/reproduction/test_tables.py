"""Results tables of the paper, planned on any base: their rows, settings, and what is refused."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from helpers.commands import call
from helpers.tables import FINISHED, flags_for
from helpers.tiny import ROOT, network, saved_model

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.reproduction.estimate import MEASURES, Times, estimate
from gluon_optbert.reproduction.results import read_results
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
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.training.distillation import Weights

PARAMETERS = ParameterCost()


@pytest.fixture
def written(tmp_path):
    """Writes the base's architecture as a model with another progress, and gives its directory."""

    def write(**progress):
        saved = saved_model(network(*[(4, 2, 2, 8)] * 4, max_length=64), progress=progress)
        shutil.rmtree(tmp_path / 'written', ignore_errors=True)
        write_model(tmp_path / 'written', saved)
        return str(tmp_path / 'written')

    return write


def pruned(table_plan):
    """The recipes of the rows that are pruned, by row."""
    rows = (one for one in table_plan.chosen() if one.row.maker.kind == 'pruned')
    return {one.row.name: table_plan.making(one) for one in rows}


@pytest.mark.parametrize('number', TABLES)
def test_every_published_row_is_made_at_its_size_on_bert_base(number):
    """BERT-l has the size of its layers: three make 45.1 million, where Table 9 prints 43."""
    table = load_table(number)
    names, rows = known_rows(table), {row.name: row for row in rows_of(table, bert_base())}
    assert set(row_names(table)) <= set(names) <= set(MAKERS)
    assert len({slug_of(name) for name in names}) == len(names)
    for published, record, name in zip(row_names(table), table.records(), table.architectures):
        row = rows[published]
        by_size = row.maker.size is by_share
        wanted = record['parameters_m'] * 1e6 if by_size else PARAMETERS.cost(resolve(name))
        if row.unreachable is None:
            assert abs(wanted - row.share * PARAMETERS.cost(bert_base())) <= 1
        # one filter a layer leaves 52 million, and one head 83
        too_small = (number, published) in {(9, 'optBERT-f'), (15, 'optBERT-f'), (13, 'optBERT-a')}
        assert (row.unreachable is not None) == too_small
        if number == 1:
            assert row.architecture == resolve(name)


@pytest.mark.parametrize('number', [1, 6, 15])
def test_a_table_is_planned_with_one_row_beyond_the_paper(planned, number, tmp_path):
    tasks = [task for task in task_names(load_table(number)) if task not in ('MRPC', 'RTE')]
    table_plan = planned(table=number, tasks=','.join(tasks))
    names = known_rows(load_table(number))
    rows = {one.row.name: one.row for one in table_plan.networks}
    assert list(rows) == (names if {'BERT-base', 'bert_base'} & set(names) else ['base', *names])
    assert list(table_plan.tasks) == tasks
    for one in table_plan.chosen():
        place = tmp_path / 'out' / 'rows' / one.row.slug
        assert one.row.maker.kind == 'base' or table_plan.making(one).output == place
        assert {table_plan.tuning(one, task).max_length for task in tasks} == {64}
    assert list(tmp_path.iterdir()) == []
    own = {'rotate_heads': True, 'reconstruct': True, 'teacher': 'parent', 'relative_gates': 'hav'}
    for name, recipe in pruned(table_plan).items():
        beyond = {field: getattr(recipe, field) for field in BEYOND_THE_PAPER if not recipe.is_default(field)}
        assert beyond == (own if name == 'optBERT-all+' else {})
    if 'optBERT-all' in rows:
        same = [(rows[name].share, rows[name].maker.prune) for name in ('optBERT-all', 'optBERT-all+')]
        assert same[0] == same[1] and same[0][1] == 'hakvf'


def test_baselines_are_trained_from_scratch_for_the_steps_that_are_asked_for(finished, base):
    before = read_model(base)
    bert_l, albert = (read_model(finished[0] / 'rows' / row) for row in ('bert-l', 'albert-e'))
    assert bert_l.architecture.layers == before.architecture.layers[:3]  # nine of twelve
    assert albert.architecture.e == 2 and albert.architecture.layers == before.architecture.layers
    first = before.parameters['encoder.position_weight']
    for saved in (bert_l, albert):
        assert saved.progress.trained_steps == 3 and saved.recipe['learning_rate'] == 3e-3
        assert saved.recipe['batch_size'] == 8  # of the pruning settings
        start = saved.parameters['encoder.position_weight']
        assert start.shape != first.shape or not np.allclose(start, first, atol=0.01)
    assert 'Steps of a row that is trained from scratch: 3.' in (finished[0] / 'table.md').read_text()


def test_the_embedding_of_albert_has_the_published_part_of_the_hidden_size():
    for name, width in (('bert_base', 64), ('l6_h384_a12', 32), ('l4_h256_a4', 21)):
        row = next(row for row in rows_of(load_table(6), resolve(name)) if row.name == 'ALBERT-e')
        assert row.architecture == dataclasses.replace(resolve(name), e=width)
    rows = {row.name: row for row in rows_of(load_table(6), resolve('albert_e64'))}
    assert 'is a width of 64 here, and the embedding has 64' in rows['ALBERT-e'].unreachable


def test_rows_from_scratch_take_the_steps_of_the_base_and_the_optimizer_of_pre_training_unless_told(
    planned, written, base, tmp_path
):
    values = {'table': 6, 'rows': 'bert-l', 'scratch_steps': None}
    known = written(step=30, earlier_steps=170)
    (tmp_path / 'lamb.yaml').write_text('optimizer: lamb')
    for more, steps, optimizer in (
        ({}, 200, 'bertadam'),
        ({'scale': 0.1, 'pruning': str(tmp_path / 'lamb.yaml')}, 20, 'lamb'),
        ({'scratch_steps': 7, 'pretraining': str(tmp_path / 'lamb.yaml')}, 7, 'lamb'),
    ):
        table_plan = planned(base=known, **{**values, **more})
        row = next(one for one in table_plan.networks if one.row.slug == 'bert-l')
        assert (table_plan.scratch_steps, table_plan.making(row).optimizer) == (steps, optimizer)
    unknown = written()
    assert planned(base=unknown, **{**values, 'rows': 'bert-l-truncated'}).scratch_steps is None
    with pytest.raises(ValueError, match='written does not say how many steps .* give --scratch-steps'):
        planned(base=unknown, **values)


@pytest.mark.parametrize('scale, steps', [(0.1, 'auto'), (0.05, 50)])
def test_gates_of_a_table_are_trained_until_they_settle_if_they_have_the_steps(planned, scale, steps):
    table_plan = planned(alpha_steps='auto', scale=scale)
    recipes, most = pruned(table_plan), round(1000 * scale)
    trained = {'optBERT-h', 'optBERT-all', 'optBERT-all+', 'BERT-all uniform'}
    assert trained <= {name for name, recipe in recipes.items() if recipe.alpha_steps == steps}
    assert steps != 'auto' or {recipes[name].alpha_limit for name in trained} == {most}
    assert recipes['BERT-ℓ truncated'].alpha_steps == most
    described = table_plan.to_dict()
    assert (described['alpha_steps'], described['alpha_steps_auto']) == (most, steps == 'auto')


def test_weights_of_a_teacher_act_in_the_row_that_has_one(planned, further):
    """Settings of the paper's rows may be stated where they change nothing."""
    weights = 'teacher_weights: {scores: 0.25, labels: 0.5}\ntemperature: 4\n'
    off = 'rotate_heads: false\nteacher: null\nrelative_gates: none\n'
    recipes = pruned(planned(pruning=further(weights + off), scale=0.5))
    plain, taught = recipes['optBERT-all'], recipes['optBERT-all+']
    assert plain.teacher is None and taught.teacher == 'parent'
    assert taught.teaching() == Weights(labels=0.5, scores=0.25, states=1.0, temperature=4.0)
    assert taught.batch_size == plain.batch_size == 8
    assert taught.recovery_steps == plain.recovery_steps == 1


@pytest.mark.parametrize('file', ['', 'alpha_steps: null\nmethod: magnitude\n'])
def test_gates_of_the_row_beside_the_papers_settle_unless_steps_are_stated(
    file, planned, written, further, tmp_path
):
    base = written(step=30000, earlier_steps=20000)

    def gates(more='', **flags):
        values = {'alpha_steps': None, 'scale': 0.5, 'pruning': further(more), **flags}
        table_plan = planned(base=base, **values)
        how = {row['name']: row['how'] for row in table_plan.to_dict()['rows']}['optBERT-all+']
        plain, beside = (pruned(table_plan)[name] for name in ('optBERT-all', 'optBERT-all+'))
        rates.append((plain.alpha_learning_rate, beside.alpha_learning_rate))
        return [plain.alpha_steps, beside.alpha_steps], beside.alpha_limit, how

    rates = []
    steps, limit, how = gates(file)
    assert steps == [25, 'auto'] and limit == 500 and rates == [(0.01, 0.05)]
    assert how.endswith(', and recovered, in each round at most 500 steps of gates')
    assert gates(file + 'alpha_learning_rate: 0.02\nalpha_limit: 300\n')[1] == 150
    assert rates[-1] == (0.02, 0.02)
    steps, _, how = gates('alpha_steps: 40\n') if file else gates(alpha_steps=40)
    assert steps == [20, 20] and how.endswith('relative_gates hav, and recovered')


def test_row_with_a_plus_is_chosen_by_either_name(planned):
    whole = planned()
    for typed in ('optbert-all-plus', 'optbert-all+', 'optBERT-all+', 'optbert-all'):
        chosen = dataclasses.replace(whole, recipe=whole.recipe.replace(rows=(typed,))).chosen()
        assert [one.row.slug for one in chosen] == ['base', slug_of(typed)]


def test_row_with_repairs_and_a_teacher_is_made_and_has_no_published_scores(finished):
    made = finished[0] / 'rows' / 'optbert-all-plus'
    assert all((made / 'round-1' / stage).is_dir() for stage in ('rotated', 'reconstructed', 'model'))
    records = map(json.loads, (made / 'metrics.jsonl').read_text().splitlines())
    assert {'mlm', 'nsp', 'scores', 'states'} <= next({*one} for one in records if one['phase'] == 'recovery')
    rows = {row.name: row for row in read_results(finished[0]).rows}
    row = rows['optBERT-all+']
    assert row.entries['sst2'].state == 'done' and row.parameters
    assert row.published_parameters_m is None and row.entries['sst2'].published is None
    assert rows['optBERT-all'].published_parameters_m is not None
    how = 'with rotate_heads, reconstruct, teacher parent, relative_gates hav, and recovered, '
    assert f'optBERT-all+: method alpha on hakvf {how}' in (finished[0] / 'table.md').read_text()


def test_pruned_rows_have_the_networks_they_are_named_after(finished, base):
    assert {path.name for path in (finished[0] / 'rows').iterdir()} == set(FINISHED['rows'].split(','))
    before = read_model(base).architecture
    h_alone, everything = (
        read_model(finished[0] / 'rows' / row / 'round-1' / 'model').architecture
        for row in ('optbert-h', 'optbert-all-plus')
    )
    assert h_alone.layers == before.layers and h_alone.h < before.h
    largest = PARAMETERS.cost(before) * 88e6 / PARAMETERS.cost(bert_base()) + 1
    assert max(PARAMETERS.cost(h_alone), PARAMETERS.cost(everything)) <= largest


def test_scale_and_learning_rates_are_those_of_flags_and_files(planned, tmp_path):
    (tmp_path / 'rates.yaml').write_text('learning_rates: [0.1, 0.2]\n')
    tasks = {'tasks': 'sst-2,squad-v1.1'}

    def cells(table_plan):
        row = table_plan.chosen()[0]
        return {task: table_plan.tuning(row, task) for task in table_plan.tasks}

    scaled = planned(**tasks, scale=0.1, alpha_steps=25, recovery_steps=100, learning_rates='1e-5,2e-5')
    assert (scaled.pruning.alpha_steps, scaled.pruning.recovery_steps) == (3, 10)
    exact = planned(**tasks, scale=0.55, recovery_steps=100)  # 0.55 * 100 is above 55 in floating point
    assert exact.pruning.recovery_steps == 55
    found = {task: (cell.limit, cell.epochs, cell.learning_rates) for task, cell in cells(scaled).items()}
    # of 6 questions and 41 sentences
    assert found == {'SQuAD v1.1': (1, 1, (1e-5, 2e-5)), 'SST-2': (5, 1, (1e-5, 2e-5))}
    by_file = cells(planned(**tasks, glue=str(tmp_path / 'rates.yaml')))
    rates = {task: cell.learning_rates for task, cell in by_file.items()}
    assert rates == {'SST-2': (0.1, 0.2), 'SQuAD v1.1': ()}


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
    assert settings(**files) == [(5, 16, 3, 2), (5, 24, 2, 0)]


def test_dry_run_says_how_long_and_writes_nothing(base, shards_directory, data, tmp_path):
    more = {'table': 6, 'tasks': 'sst-2,squad-v1.1', 'alpha_steps': 100000}
    flags = flags_for(base, shards_directory, data, tmp_path / 'out', **more)
    done = call('finetune/run_table.py', *flags, '--dry-run')
    assert done.returncode == 0, done.stderr
    ms = '[1-9][0-9]* ms a step of'
    for said in (
        r'^\| optBERT-all \| .* (min|h|d) \|',
        r'^\| ALBERT-e \| trained from scratch',
        '^in all .* (min|h|d)$',
        f'measured on the base: {ms} gates, {ms} recovery, {ms} recovery with a teacher',
        'not counted: rotate_heads and reconstruct$',
    ):
        assert re.search(said, done.stdout, re.MULTILINE), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'change, named',
    [
        ({'rows': 'optbert-x'}, "no row 'optbert-x'; there are base, bert-l"),
        ({'table': 7}, 'table must be one of 1, 6'),
        ({'render': True, 'dry_run': True}, 'exclude each other'),
        ({'glue': 'seeds: [1, 2, 3]'}, 'the table decides seeds (--seeds)'),
        ({'pruning': 'gate_teacher: true\nrotate_heads: true'}, 'without rotate_heads, gate_teacher; '),
    ],
)
def test_what_a_table_cannot_have_is_refused(planned, tmp_path, change, named):
    for file in {'glue', 'pruning'} & set(change):
        (tmp_path / 'further.yaml').write_text(change[file])
        change = {file: str(tmp_path / 'further.yaml')}
    with pytest.raises(RecipeError, match=re.escape(named)):
        planned(**change)


def test_missing_data_and_missing_base_are_said_before_anything_is_written(planned, tmp_path):
    with pytest.raises(FileNotFoundError, match='RTE/train.tsv: no such file'):
        planned(tasks='rte')
    done = call(ROOT / 'finetune' / 'run_table.py', '--table', 8, '--output', tmp_path / 'out')
    wanted = ['error: --base is missing', 'error: --shards is missing']
    assert done.returncode == 2 and done.stderr.splitlines() == wanted
    assert list(tmp_path.iterdir()) == []


def test_estimate_counts_halves_of_gate_training_evaluations_teachers_and_repairs(planned, further):
    """A round has 4 steps of gates and 10 of recovery, of a second, or of three with a teacher."""
    times = Times(None, None)
    times.seconds = {**dict.fromkeys([*MEASURES, 'SST-2'], 1.0), 'recovery with a teacher': 3.0}

    def seconds(split_half=False, evaluate_every=0):
        file = further(f'split_half: {str(split_half).lower()}\nevaluate_every: {evaluate_every}\n')
        more = {'pruning': file, 'alpha_steps': 4, 'recovery_steps': 10, 'rows': 'optbert-h,optbert-all+'}
        making = {one.network.row.name: one.making for one in estimate(planned(**more), times)}
        return making['optBERT-h'], making['optBERT-all+']

    plain, repaired = seconds()
    assert (plain, repaired) == (4 + 10 + 3, 4 + 10 * 3 + 4)
    assert seconds(split_half=True)[0] == plain + 4
    assert seconds(evaluate_every=3)[0] == plain + 3
