"""A study: its networks and pieces, run, stopped, lost and gone on with, and the tables made of it."""

import contextlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.finetuned import flags_of
from helpers.jobs import horovodrun, needs_horovod
from helpers.pruned import Interrupted, interrupted_at
from helpers.tiny import ROOT, write_saved_model, write_shards

from gluon_optbert.architecture.named import bert_base
from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult, SeedRun
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.reporting.curves import read_metrics
from gluon_optbert.reproduction import running as module
from gluon_optbert.reproduction.estimate import MEASURES, Times, estimate, readable
from gluon_optbert.reproduction.held_out import measure, read_losses
from gluon_optbert.reproduction.plan import plan
from gluon_optbert.reproduction.recipe import StudyFile, TableRecipe
from gluon_optbert.reproduction.rows import rows_at
from gluon_optbert.reproduction.running import run
from gluon_optbert.reproduction.study_page import table_of, write_study
from gluon_optbert.reproduction.study_results import StudyResults, read_study
from gluon_optbert.runs.files import locked, write_file
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.training.distributed import Workers

FILE = {
    'rows': {
        'optBERT-all': [1, 2],
        'BERT-all uniform': [1],
        'a random cut': [1],
        'BERT-base, trained on': [1],
        'BERT-ℓ': [1],
        'optBERT-f': [1],
    },
    'sizes': [66, 88],
    'tasks': {
        'SST-2': {'settings': {'epochs': 1, 'batch_size': 8, 'limit': 16}},
        'MNLI': {'seeds': 1, 'sizes': [88], 'rows': ['optBERT-all'], 'settings': {'epochs': 1, 'limit': 16}},
    },
    'pruning': {
        'batch_size': 8,
        'evaluation_limit': 8,
        'alpha_steps': 2,
        'recovery_steps': 2,
        'log_every': 0,
    },
    'scratch_steps': 2,
}


@pytest.fixture
def recipe(tmp_path, base, shards_directory, data):
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump(FILE, sort_keys=False))
    values = {'study': str(tmp_path / 'study.yaml'), 'base': str(base), 'shards': str(shards_directory)}
    return fill(TableRecipe, {**values, 'data_glue': str(data / 'glue'), 'output': str(tmp_path / 'out')})


def scores_of(output):
    results = {path: FineTuningResult.read(path) for path in output.rglob('result.json')}
    return {
        str(path.relative_to(output)): (result.model_sha256, result.mean) for path, result in results.items()
    }


def test_networks_come_by_size_seed_and_row_and_one_ladder_makes_all_sizes(recipe):
    study = plan(recipe)
    names = [(one.row.name, one.size, one.seed) for one in study.networks]
    assert names[0] == ('base', None, 1)
    assert names[1:4] == [('optBERT-all', 66, 1), ('BERT-all uniform', 66, 1), ('a random cut', 66, 1)]
    assert names.index(('optBERT-all', 66, 2)) < names.index(('optBERT-all', 88, 1))
    ladder = next(one for one in study.networks if one.row.name == 'optBERT-all' and one.size == 66)
    shares = [one.row.share for one in study.networks if one.run == ladder.run]
    on_both = [(one.row.name, one.size, one.seed) for one in study.networks if len(study.tasks_of(one)) == 2]
    assert on_both == [('base', None, 1), ('optBERT-all', 88, 1)]
    assert ladder.round == 2 and list(study.making(ladder).targets) == sorted(shares, reverse=True)


def test_a_row_has_settings_of_its_own(recipe):
    def write(**settings):
        recipe.study.write_text(yaml.safe_dump({**FILE, 'pruning_of': {'optBERT-all': settings}}))
        return plan(recipe)

    study = write(gamma=0.5, alpha_steps=7)
    settings = {}
    for one in study.networks:
        if one.row.maker.trains_gates:
            run = study.making(one)
            settings[one.row.name] = (run.gamma, run.alpha_steps, run.recovery_steps)
    assert settings.pop('optBERT-all') == (0.5, 7, 2) and {*settings.values()} == {(0.01, 2, 2)}
    row = next(one.row for one in study.networks if one.row.name == 'optBERT-all')
    assert study.how(row).endswith('in each round 7 steps of gates, gamma 0.5')
    with pytest.raises(RecipeError, match='pruning_of.optBERT-all.seed is not of single rows'):
        write(seed=3)
    with pytest.raises(RecipeError, match='pruning_of.optBERT-all.reconstruct is not of single rows'):
        write(reconstruct=True)
    recipe.study.write_text(yaml.safe_dump({**FILE, 'pruning_of': {'optBERT-h': {'gamma': 0.5}}}))
    with pytest.raises(RecipeError, match='pruning_of.optBERT-h is of no row'):
        plan(recipe)


def test_gates_whose_penalty_has_no_prices_are_a_row_where_a_study_has_it(recipe):
    rows = ('optBERT-all', 'optBERT-all, unweighted')
    recipe.study.write_text(yaml.safe_dump({**FILE, 'rows': dict.fromkeys(rows, [1])}))
    study = plan(recipe)
    unweighted = {one.row.name: study.making(one).unweighted for one in study.networks if one.size == 66}
    assert unweighted == dict(zip(rows, (False, True)))
    facts = {'size': 66.0, 'seed': 1, 'how': '', 'share': 0.6, 'unreachable': None}
    found = StudyResults({'networks': [{'row': row, **facts} for row in ('base', rows[1])]}, {})
    names = {number: [row.name for row in table_of(found, number).rows] for number in (1, 8)}
    assert rows[1] in names[8] and rows[1] not in names[1] and 'a random cut' not in names[8]


def test_a_share_of_the_flops_is_out_of_reach_where_pruning_a_width_leaves_more():
    rows = rows_at(['optBERT-f', 'optBERT-all'], [0.75, 0.2], bert_base(), {'objective': 'flops'})
    assert {key: row.unreachable is None for key, row in rows.items()} == {
        ('optBERT-f', 0.75): True,
        ('optBERT-f', 0.2): False,
        ('optBERT-all', 0.75): True,
        ('optBERT-all', 0.2): True,
    }
    assert 'of the flops remain' in rows['optBERT-f', 0.2].unreachable
    assert rows['optBERT-all', 0.2].share == pytest.approx(0.2)


@pytest.mark.slow
def test_study_is_stopped_its_networks_lost_and_it_ends_as_an_undisturbed_one(recipe, tmp_path, monkeypatch):
    def write(*rows, epochs=1):
        task = {'settings': {**FILE['tasks']['SST-2']['settings'], 'epochs': epochs}}
        values = {**FILE, 'rows': {name: FILE['rows'][name] for name in rows}, 'tasks': {'SST-2': task}}
        recipe.study.write_text(yaml.safe_dump(values, sort_keys=False))

    write('optBERT-all', 'BERT-all uniform', 'BERT-ℓ')
    study = plan(recipe)
    run(study)
    whole, output = scores_of(recipe.output), tmp_path / 'other'
    assert len(whole) == sum(len(study.tasks_of(one)) for one in study.chosen())
    assert not list((recipe.output / 'networks').rglob('model.params'))  # nothing is left to be made of them

    stopped = recipe.replace(output=output, minutes=1e-9)
    write()
    assert run(plan(stopped)) == 1
    write('optBERT-all')  # a row that is added
    study = plan(stopped.replace(minutes=None, resume=True))
    calls = []

    def tune(*args, **more):
        calls.append(args)
        if len(calls) == 3:
            raise Interrupted
        return finetune_glue(*args, **more)

    monkeypatch.setattr(module, 'finetune_glue', tune)
    with pytest.raises(Interrupted):
        run(study)
    monkeypatch.undo()
    assert list((output / 'networks').rglob('model.params'))
    of_networks = read_study(output).recovered
    keep = ['-f', ROOT / 'results' / 'tables' / 'Makefile', 'collect', f'WORK={tmp_path}', 'STUDY=other']
    subprocess.run(['make', '-C', tmp_path, *keep], check=True)
    shutil.rmtree(output)  # a machine is lost
    with tarfile.open(tmp_path / 'other.tar.xz') as kept:
        assert not [name for name in kept.getnames() if name.endswith('.params')]
        kept.extractall(tmp_path)
    with locked(output / 'cells' / 'optbert-all-2'):  # another process has taken these pieces
        assert run(study) == 2
    assert not list((output / 'cells' / 'optbert-all-2').rglob('result.json'))
    assert run(study) == 0
    of_row = {
        name: scores for name, scores in whole.items() if name.startswith(('cells/base', 'cells/optbert'))
    }
    assert scores_of(output) == of_row
    write('optBERT-all', epochs=2)
    with pytest.raises(ValueError, match='sst-2 was begun with other settings of epochs'):
        run(plan(recipe.replace(output=output, resume=True)))
    assert scores_of(output) == of_row

    shutil.rmtree(recipe.output / 'cells' / 'bert-l-1' / '88M')  # as if that had not been run
    found = read_study(recipe.output)
    row = next(row for row in table_of(found, 8).rows if row.name == 'optBERT-all')
    assert [len(entry.scores) for entry in row.entries.values() if entry.scores] == [2]
    written = {path.name for path in write_study(recipe.output)}
    assert {'README.md', 'table_08.md', 'table_15.csv', 'sst-2.png', 'dimensions.svg'} <= written
    text = (recipe.output / 'tables' / 'README.md').read_text()
    assert 'not run' in text and 'optBERT-all before BERT-all uniform' in text
    assert f'- {len(whole) - 1} cells: ' in text  # all on this machine
    rounds = json.loads((recipe.output / 'networks' / 'optbert-all-2' / 'rounds.json').read_text())
    losses = [found.recovered['optBERT-all', size][2].mlm_loss for size in (88.0, 66.0)]
    assert losses == [one['recovered']['mlm_loss'] for one in rounds[1:]]
    for key, of_seeds in of_networks.items():  # read before the networks were removed
        assert of_seeds.items() <= found.recovered[key].items()
    assert ('optBERT-all', 66.0) in of_networks
    assert found.losses.keys() == {key for key, _ in found.cells}  # every network, built ones and the base
    for key, of_seeds in found.losses.items():
        for seed, one in of_seeds.items():
            assert one.measured == found.recovered[key][seed]
            assert one.sums.sum() / one.tokens.sum() == pytest.approx(one.measured.mlm_loss, abs=1e-4)
    assert 'optBERT-all before BERT-all uniform | MLM loss' in text
    apart = found.difference(('optBERT-all', 66.0), ('BERT-all uniform', 66.0), 'SST-2', 'accuracy')
    pair = [found.cells[(name, 66.0), 'SST-2'][1] for name in ('optBERT-all', 'BERT-all uniform')]
    assert apart.mean == pytest.approx(np.subtract(*(one.runs[0].scores[one.metric] for one in pair)))
    right = [np.array(list(map(int, one.runs[0].right['dev']))) for one in pair]
    assert apart.error == pytest.approx(100 * np.subtract(*right).std(ddof=1) / len(right[0]) ** 0.5)


def test_a_process_waits_while_another_one_begins_with_the_study(recipe, monkeypatch):
    stopped, free = recipe.replace(minutes=1e-9), contextlib.ExitStack()
    left = run(plan(stopped))
    free.enter_context(locked(recipe.output))
    monkeypatch.setattr(module.time, 'sleep', lambda seconds: free.close())
    assert run(plan(stopped.replace(resume=True))) == left


def test_what_other_processes_have_done_counts_in_the_time_that_is_left(recipe, monkeypatch, capsys):
    values = {**FILE, 'rows': {'BERT-ℓ': [1]}, 'sizes': [66]}
    values['tasks'] = dict.fromkeys(['SST-2', 'MNLI'], FILE['tasks']['SST-2'])
    recipe.study.write_text(yaml.safe_dump(values, sort_keys=False))
    study = plan(recipe)

    def tune(own, workers):
        for task in study.tasks:  # the other one by another process
            study.cell(study.networks[0], task).mkdir(parents=True)

    def pretrain(*args, **more):
        raise Interrupted

    monkeypatch.setattr(module, 'finetune_glue', tune)
    monkeypatch.setattr(module, 'pretrain', pretrain)
    with pytest.raises(Interrupted):
        run(study)
    said = capsys.readouterr().err
    assert 'study: 6 jobs' in said and 'network 1/2 base, SST-2 | job 3/6' in said


def test_a_size_without_tasks_is_measured_on_the_way_to_the_next(recipe, monkeypatch):
    values = {**FILE, 'rows': {'a random cut': [1]}, 'tasks': {'SST-2': {'sizes': [66]}}}
    recipe.study.write_text(yaml.safe_dump(values, sort_keys=False))
    monkeypatch.setattr(module, 'finetune_glue', lambda own, workers: Path(own.output).mkdir(parents=True))
    run(plan(recipe))
    kept = read_losses(recipe.output / 'cells' / 'a-random-cut-1' / '88M')
    assert kept is not None and len(kept.sums) == 8
    logged = read_metrics(recipe.output / 'networks' / 'a-random-cut-1' / 'metrics.jsonl')
    speeds = {one['round']: one['tokens_per_second'] for one in logged if 'tokens_per_second' in one}
    measured = {('a random cut', 88.0): [speeds[1]], ('a random cut', 66.0): [speeds[2]]}
    assert read_study(recipe.output).speeds == measured


def test_a_task_that_comes_later_makes_a_row_from_scratch_again(recipe):
    def write(*tasks):
        values = {**FILE, 'rows': {'BERT-ℓ': [1]}, 'sizes': [66]}
        values['tasks'] = dict.fromkeys(tasks, FILE['tasks']['SST-2'])
        recipe.study.write_text(yaml.safe_dump(values, sort_keys=False))

    write('SST-2')
    run(plan(recipe))
    first = scores_of(recipe.output)
    write('SST-2', 'MNLI')
    elsewhere = recipe.study.rename(recipe.study.with_name('elsewhere.yaml'))
    assert run(plan(recipe.replace(study=elsewhere, resume=True))) == 0
    both = scores_of(recipe.output)
    assert len(both) == 4 and first.items() <= both.items()
    of_row = {sums for path, (sums, _) in both.items() if path.startswith('cells/bert-l-1')}
    assert len(of_row) == 1  # the same network, bit for bit
    assert not [path for path in write_study(recipe.output) if path.stem == 'sst-2']  # a plot of one size


@pytest.fixture
def moved(recipe, tmp_path):
    """Moves the output, and copies the base, the shards and the data; the recipe with the places of now."""

    def move(name):
        places = {'base': recipe.base, 'shards': recipe.shards, 'data_glue': recipe.data_glue}
        for field, place in places.items():
            shutil.copytree(place, tmp_path / name / field)
        (last,) = tmp_path.rglob('study.json')
        last.parent.rename(tmp_path / name / 'out')
        new = {field: tmp_path / name / field for field in [*places, 'output']}
        return recipe.replace(**{**new, 'output': tmp_path / name / 'out', 'resume': True})

    return move


@pytest.mark.slow
def test_a_study_goes_on_where_it_and_its_base_shards_and_data_are_elsewhere(recipe, moved, tmp_path):
    values = {**FILE, 'rows': {'BERT-base, trained on': [1]}, 'tasks': {'SST-2': FILE['tasks']['SST-2']}}
    recipe.study.write_text(yaml.safe_dump(values, sort_keys=False))
    run(plan(recipe.replace(output=tmp_path / 'undisturbed')))
    whole = scores_of(tmp_path / 'undisturbed')
    shutil.rmtree(tmp_path / 'undisturbed')
    with interrupted_at(2, 'recovery'):
        run(plan(recipe))
    elsewhere = moved('second')
    with interrupted_at(1, 'SST-2'):
        run(plan(elsewhere))
    third = moved('third')
    assert run(plan(third)) == 0
    assert len(whole) == 3 and scores_of(third.output) == whole
    left = third.output / 'cells' / 'base-1' / 'whole' / 'sst-2' / 'seed-1'
    left.mkdir()  # as if the study had been killed before it removed the network of the cell
    assert run(plan(third)) == 0 and not left.exists()


def test_what_a_study_shows_beside_it_is_not_part_of_it(recipe):
    """So one goes on that was begun before there was such a flag."""
    recipe = recipe.replace(minutes=1e-9)
    left = run(plan(recipe))
    begun = recipe.output / 'recipe.yaml'
    values = yaml.safe_load(begun.read_text())
    assert values.pop('beside') == []
    begun.write_text(yaml.safe_dump(values))
    assert run(plan(recipe.replace(resume=True))) == left > 0


def test_other_content_of_base_shards_or_data_is_refused_at_any_place(recipe, moved, tmp_path):
    run(plan(recipe.replace(minutes=1e-9)))
    known = (recipe.output / 'inputs.json').read_bytes()
    elsewhere = moved('second')
    run(plan(elsewhere.replace(minutes=1e-9)))
    assert (elsewhere.output / 'inputs.json').read_bytes() == known
    architecture = read_model(recipe.base).architecture
    others = {
        'base': write_saved_model(tmp_path / 'other' / 'base', architecture=architecture, seed=9),
        'shards': write_shards(tmp_path / 'other' / 'shards', train=(64,)),
    }
    refusal = 'out was begun with other content of'
    for field, named in {'base': r'base \(model.params\);', 'shards': r'shards \(train\);'}.items():
        with pytest.raises(ValueError, match=f'{refusal} {named}'):
            run(plan(elsewhere.replace(**{field: others[field]})))
    dev = elsewhere.data_glue / 'SST-2' / 'dev.tsv'
    dev.write_text(dev.read_text().replace('\t1', '\t0'))
    with pytest.raises(ValueError, match=rf'{refusal} SST-2 \(SST-2/dev.tsv\);'):
        run(plan(elsewhere))
    (elsewhere.output / 'inputs.json').unlink()  # as in a study of an earlier version
    with pytest.raises(ValueError, match='other settings of base .*, data_glue .*, shards'):
        run(plan(elsewhere))


@needs_horovod
@pytest.mark.slow
def test_two_workers_keep_the_losses_of_one_and_render(recipe, tmp_path):
    values = {**FILE, 'rows': {'optBERT-all': [1]}, 'sizes': [66], 'tasks': {'SST-2': FILE['tasks']['SST-2']}}
    recipe.study.write_text(yaml.safe_dump(values, sort_keys=False))
    places = {name: getattr(recipe, name) for name in ('study', 'base', 'shards', 'data_glue', 'output')}
    done = horovodrun('finetune/run_table.py', *flags_of(places))
    assert done.returncode == 0, done.stderr
    assert (recipe.output / 'tables' / 'README.md').is_file()
    alone = plan(recipe.replace(output=tmp_path / 'alone'))
    measure(alone, alone.networks[0], Workers())
    one, two = (
        read_losses(place / 'cells' / 'base-1' / 'whole') for place in (tmp_path / 'alone', recipe.output)
    )
    assert np.array_equal(one.tokens, two.tokens)
    np.testing.assert_allclose(one.sums, two.sums, rtol=1e-4)


def test_wrong_file_is_refused_with_everything_that_is_wrong(tmp_path):
    wrong = {**FILE, 'rows': {'optBERT-x': [1]}, 'tasks': {'SST-2': {}, 'CoLA': {}}}
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump(wrong))
    with pytest.raises(RecipeError, match="no row 'optBERT-x'.*no task 'CoLA'"):
        StudyFile.read(tmp_path / 'study.yaml')
    (tmp_path / 'study.yaml').write_text('rows: {}\nsizes: [-1, .inf]\nfoo: 1\n8: 1\n')
    with pytest.raises(RecipeError) as error:
        StudyFile.read(tmp_path / 'study.yaml')
    assert len(error.value.problems) == 5  # both sizes, tasks, foo, 8


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'tasks': {'SST-2': {'rows': ['optBERT-h', 'base']}}}, "SST-2.*'optBERT-h'"),
        ({'tasks': {'SST-2': {'sizes': [66, 67]}}}, 'SST-2.*67'),
        ({'rows': {'optBERT-all': []}}, 'optBERT-all.*seed'),
        ({'rows': {'optBERT-all': [1, 1]}}, 'optBERT-all.*twice'),
        ({'sizes': [66, 66.0]}, 'sizes.*twice'),
        ({'rows': {'BERT-ℓ': [1]}, 'sizes': [0.5]}, 'BERT-ℓ'),
        ({'objective': 'flops'}, 'sizes.*flops'),
        ({'pruning': {'rounds': 4}}, 'pruning.rounds'),
        ({'pretraining': {'steps': 9}}, 'pretraining.steps.*scratch_steps'),
    ],
)
def test_what_a_study_would_leave_out_without_a_word_is_refused(tmp_path, change, said):
    fine = {'rows': {'optBERT-all': [1]}, 'sizes': [66], 'tasks': {'SST-2': {'rows': ['base']}}}
    path = tmp_path / 'study.yaml'
    path.write_text(yaml.safe_dump(fine))
    StudyFile.read(path)
    path.write_text(yaml.safe_dump({**fine, **change}))
    with pytest.raises(RecipeError, match=said) as error:
        StudyFile.read(path)
    assert len(error.value.problems) == 1


def test_estimate_says_what_is_left_and_counts_a_round_of_a_ladder_once(recipe):
    times = Times(None, None)
    times.seconds = dict.fromkeys([*MEASURES, 'SST-2', 'MNLI'], 1.0)
    study = plan(recipe)
    text = readable(study, times)
    assert 'longest piece' in text and '13 are left' in text
    making = [one.making for one in estimate(study, times) if one.network.row.name == 'optBERT-all']
    a_round = 2 + 2 + 3  # steps of gates and recovery, and evaluations
    assert making == [2 * a_round] * 2 + [0.0] * 2
    first = next(one for one in study.networks if (one.row.name, one.size) == ('optBERT-all', 88))
    study.model(first).mkdir(parents=True)  # of a study whose first size is done, which is not made again
    (study.model(first) / 'model.params').touch()
    making = [one.making for one in estimate(study, times) if one.network.row.name == 'optBERT-all']
    assert making == [a_round, 2 * a_round, 0.0, 0.0]


def test_estimate_learns_from_the_fine_tuning_that_was_done_on_the_machine_of_the_base(recipe):
    times = Times(None, None)
    times.seconds = dict.fromkeys([*MEASURES, 'SST-2', 'MNLI'], 10.0)
    study = plan(recipe)

    def tuning():
        return {(one.network.size, one.network.seed): one.tuning['SST-2'] for one in estimate(study, times)}

    assert tuning() == {(None, 1): 10, (66, 1): 10, (66, 2): 10, (88, 1): 10, (88, 2): 10}
    base, one, other = study.chosen()[:3]
    for network, seconds, cpu in ((base, 3.0, 'fast'), (one, 1.5, 'fast'), (other, 9.0, 'slow')):
        run = SeedRun(1, (), 1, {'dev/accuracy': 50.0}, seconds)
        origin = {'machine': {'cpu': cpu, 'system': network.row.name}}
        cell = FineTuningResult('SST-2', 'dev/accuracy', '0', 9, {}, {}, (run,), {}, origin)
        write_file(study.cell(network, 'SST-2') / 'result.json', cell.to_json())
    assert (one.size, other.size) == (66, 66) and tuning()[66, 2] == 5 and tuning()[88, 1] == 10
    assert '66M SST-2 0.50' in readable(study, times)


def test_rows_without_gates_stand_beside_gates_that_are_trained_until_they_settle(recipe, tmp_path):
    settling = {'alpha_steps': 'auto', 'alpha_limit': 60, 'alpha_learning_rate': 0.05}
    values = {**FILE, 'pruning': {**FILE['pruning'], **settling}}
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump(values, sort_keys=False))
    study = plan(recipe)
    steps = {one.row.name: study.making(one).alpha_steps for one in study.chosen() if one.row.maker.method}
    assert steps['optBERT-all'] == 'auto' and isinstance(steps['a random cut'], int)
