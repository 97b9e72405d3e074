"""A study: its networks and pieces, run, stopped, lost and gone on with, and the tables made of it."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.commands import succeed
from helpers.finetuned import flags_of
from helpers.jobs import horovodrun, needs_horovod
from helpers.pruned import Interrupted, interrupted_at
from helpers.tiny import ROOT, write_saved_model, write_shards
from helpers.written_runs import BASE

from gluon_optbert.architecture.named import bert_base
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult, SeedRun
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.reporting.curves import read_metrics
from gluon_optbert.reproduction import running as module
from gluon_optbert.reproduction.estimate import MEASURES, Times, estimate, readable
from gluon_optbert.reproduction.held_out import measure, read_losses
from gluon_optbert.reproduction.plan import plan
from gluon_optbert.reproduction.recipe import StudyFile, TableRecipe
from gluon_optbert.reproduction.results import result_row
from gluon_optbert.reproduction.rows import rows_at, task_names
from gluon_optbert.reproduction.running import run
from gluon_optbert.reproduction.study_page import draw, summary, table_of, write_study
from gluon_optbert.reproduction.study_results import Difference, StudyResults, read_study
from gluon_optbert.runs.files import locked, write_json
from gluon_optbert.runs.progress import HeldOut
from gluon_optbert.runs.recipe import RecipeError, fill, to_dict
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import Losses

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
    assert {'README.md', 'table_08.md', 'table_15.csv', 'sst-2.png', 'figure_6.svg'} <= written
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
    """Five networks of which the last is hardly cut; a score follows the one loss and not the other."""
    names = ['optBERT-all', 'optBERT-h', 'optBERT-f', 'a random cut', 'BERT-base, trained on']
    facts = {'seed': 1, 'tasks': ['SST-2'], 'unreachable': None}
    networks = [{'row': 'base', 'size': None, 'share': 1.0, **facts}]
    networks += [{'row': row, 'size': 66.0, 'share': 0.6, **facts} for row in names]
    networks[-1]['share'] = 0.9996
    values = zip(names, (4.0, 3.0, 2.0, 1.0, 9.0), (0.1, 0.3, 0.2, 0.4, 0.0), (60.0, 70.0, 80.0, 90.0, 99.0))
    cells, measured = {}, {}
    for row, mlm, nsp, score in values:
        cells[(row, 66.0), 'SST-2'] = {1: written({'dev/accuracy': score})}
        measured[row, 66.0] = {1: HeldOut(mlm, 0.2, nsp, 0.5 + nsp, instances=8)}
    study = StudyResults({'networks': networks}, cells, measured)
    assert study.foretold('SST-2', 'accuracy', 'mlm_loss') == (pytest.approx(-1.0), 4)
    assert study.foretold('SST-2', 'accuracy', 'nsp_loss') == (pytest.approx(0.8), 4)
    measured['optBERT-f', 66.0] = {1: HeldOut(2.0, 0.2, instances=8)}  # text without pairs
    assert study.foretold('SST-2', 'accuracy', 'nsp_loss') is None
    text = study.held_out_text(('optBERT-h', 66.0), 'nsp_accuracy', scale=100, digits=1)
    assert text == '80.0' and study.held_out_text(('optBERT-f', 66.0), 'nsp_accuracy') == '–'


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


def laid_out(place, size, *, gate_steps=1, base='1', score=70.0, objective='parameters', **tuning):
    """A study of the base and optBERT-h at a size, in files; on SST-2 they have a score and the size."""
    facts = {'seed': 1, 'tasks': ['SST-2'], 'how': 'by hand', 'share': 0.5, 'unreachable': None}
    networks = [
        {**facts, 'row': 'base', 'size': None, 'place': 'base-1/whole'},
        {**facts, 'row': 'optBERT-h', 'size': size, 'place': f'optbert-h-1/{size}'},
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
    flags = {'study': 'small.yaml', 'output': small, 'beside': str(large), 'render': True}
    succeed('finetune/run_table.py', *flags_of(flags))
    text = (small / 'tables' / 'README.md').read_text()
    assert '3 of 3 cells' in text  # that of the base is one
    assert 'from the base anew to 66M, to 43M.' in text
    assert '| optBERT-h | 66.0 | -4.0 | 43.0 | -27.0 |' in text
    for number, steps, score in ((8, 1, 66.0), (9, 7, 43.0)):  # with the settings of its own study
        table = (small / 'tables' / f'table_{number:02d}.md').read_text()
        assert f'{steps} of gates' in table and f'| {score} |' in table
    assert (small / 'tables' / 'sst-2.png').is_file()  # as there are two sizes
    assert not (large / 'tables').exists()


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


def test_rows_without_gates_stand_beside_gates_that_are_trained_until_they_settle(recipe, tmp_path):
    settling = {'alpha_steps': 'auto', 'alpha_limit': 60, 'alpha_learning_rate': 0.05}
    values = {**FILE, 'pruning': {**FILE['pruning'], **settling}}
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump(values, sort_keys=False))
    study = plan(recipe)
    steps = {one.row.name: study.making(one).alpha_steps for one in study.chosen() if one.row.maker.method}
    assert steps['optBERT-all'] == 'auto' and isinstance(steps['a random cut'], int)
