"""A results table that was interrupted goes on; what is finished stays."""

import shutil

import pytest
from helpers.pruned import interrupted_at
from helpers.tables import FINISHED
from helpers.tiny import contents

from gluon_optbert.network.saved_model import read_model
from gluon_optbert.reproduction import running as table_runs
from gluon_optbert.reproduction.plan import plan
from gluon_optbert.reproduction.results import NOT_RUN, read_results
from gluon_optbert.reproduction.running import run
from gluon_optbert.training.distributed import Workers


@pytest.fixture
def go_on(finished, table_recipe, tmp_path, monkeypatch):
    """Resumes a copy of the finished table with other settings; nothing may have changed then."""

    def refuse(*_, **__):
        raise AssertionError('computed again')

    output = shutil.copytree(finished[0], tmp_path / 'finished')
    workers, before = Workers(), contents(output)
    for name in ('prune', 'pretrain', 'finetune_glue', 'finetune_squad'):
        monkeypatch.setattr(table_runs, name, refuse)
    monkeypatch.setattr(table_runs, 'Workers', refuse)  # those that are given are all there are

    def resume(**more):
        recipe = table_recipe(output, **{**FINISHED, 'resume': True, **more})
        run(plan(recipe, workers=workers), workers=workers)

    yield resume
    tasks = {'inputs.json': before['inputs.json']}  # to which a task that is asked for is added
    assert {**contents(output), **tasks} == before


def test_finished_table_is_not_computed_again_and_takes_more_tasks(go_on, data, tmp_path):
    with pytest.raises(FileExistsError, match='--resume'):
        go_on(resume=False)
    go_on(tasks='sst-2')
    with pytest.raises(AssertionError, match='computed again'):
        go_on(tasks='mnli')
    (tmp_path / 'other.yaml').write_text((data / 'tuning.yaml').read_text() + 'learning_rate: 0.5\n')
    for change in ({'seeds': '1'}, {'alpha_steps': 3}, {'glue': str(tmp_path / 'other.yaml')}):
        with pytest.raises(ValueError, match='other settings of ' + next(iter(change))):
            go_on(**change)


def test_resumed_table_takes_settings_of_squad_2_and_holds_finished_cells_to_them(go_on, tmp_path):
    """The cells were made with the settings of --squad."""
    for batch_size in (8, 4):
        (tmp_path / f'{batch_size}.yaml').write_text(f'batch_size: {batch_size}\n')
    same, other = ({'squad2': str(tmp_path / f'{size}.yaml')} for size in (8, 4))
    go_on(**same)
    with pytest.raises(
        ValueError, match='cells/bert-base/squad-v2.0 was begun with other settings of batch_size'
    ):
        go_on(**other, tasks='squad-v2.0')
    with pytest.raises(ValueError, match='other settings of batch_size'):
        go_on(**other, tasks='squad-v2.0', rows='bert-l')
    go_on(**other, tasks='sst-2')


def test_a_row_that_was_made_otherwise_is_not_continued(finished, table_recipe, tmp_path):
    output = shutil.copytree(finished[0], tmp_path / 'table')
    made = output / 'rows' / 'optbert-h' / 'recipe.yaml'
    made.write_text(made.read_text().replace('method: alpha', 'method: magnitude'))
    before = contents(output)
    with pytest.raises(ValueError, match='optbert-h was begun with other settings of .*method'):
        run(plan(table_recipe(output, resume=True, **FINISHED)))
    assert contents(output) == before


def test_table_that_was_stopped_and_moved_goes_on_with_what_is_missing(
    table_recipe, base, tmp_path, monkeypatch
):
    def go_on(output, resume=True):
        chosen = {'rows': 'bert-l-truncated,optbert-h', 'seeds': '1', 'resume': resume}
        run(plan(table_recipe(output, **chosen)))

    # the base and the first row have 6 steps of fine-tuning, and then the second is begun
    with interrupted_at(6 + 6 + 4, 'SST-2'):
        go_on(tmp_path / 'old' / 'table', resume=False)
    (tmp_path / 'old').rename(tmp_path / 'new')
    before = contents(tmp_path / 'new')
    finished = {name: content for name, content in before.items() if '.training' not in name}
    monkeypatch.chdir(tmp_path)  # where the same place has a shorter name
    monkeypatch.setattr(table_runs, 'prune', None)  # which all rows are
    go_on('new/table')
    table, whole = tmp_path / 'new' / 'table', contents(tmp_path / 'new')
    assert finished.items() < whole.items()
    truncated = read_model(table / 'rows' / 'bert-l-truncated' / 'round-1' / 'model').architecture
    assert truncated.layers == read_model(base).architecture.layers[:2]  # six of twelve
    rows = {row.name: row.entries['sst2'].state for row in read_results(table).rows}
    assert rows['BERT-ℓ truncated'] == rows['optBERT-h'] == 'done' and rows['optBERT-all'] == NOT_RUN
    (table / 'results' / 'optbert-h' / 'sst-2.json').unlink()  # as if the table had been killed before it
    go_on(table)
    assert contents(tmp_path / 'new') == whole
    made = table / 'cells' / 'optbert-h' / 'sst-2' / 'recipe.yaml'
    made.write_text(made.read_text().replace('epochs: 1', 'epochs: 2'))
    with pytest.raises(ValueError, match='optbert-h/sst-2 was begun with other settings of epochs'):
        go_on('new/table')
