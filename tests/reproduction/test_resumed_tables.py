"""A results table that was interrupted goes on; what is finished stays."""

import pytest
from helpers.finetuned import Interrupted, stop_at
from helpers.tables import recipe_for, values_for
from helpers.tiny import contents

from gluon_optbert.reproduction import running as table_runs
from gluon_optbert.reproduction.plan import plan
from gluon_optbert.reproduction.recipe import TableRecipe
from gluon_optbert.reproduction.results import NOT_RUN, read_results
from gluon_optbert.reproduction.running import run
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import Workers


def test_a_row_that_was_made_otherwise_is_not_continued(finished, base, shards_directory, data, tmp_path):
    output = tmp_path / 'table'
    values = values_for(base, shards_directory, data, output, rows='bert-all-uniform')
    run(plan(fill(TableRecipe, values)))
    made = output / 'rows' / 'bert-all-uniform' / 'recipe.yaml'
    made.write_text(made.read_text().replace('method: uniform-alpha', 'method: uniform'))
    before = contents(output)
    with pytest.raises(ValueError, match='bert-all-uniform was begun with other settings of method'):
        run(plan(fill(TableRecipe, {**values, 'resume': True})))
    assert contents(output) == before


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
    # the base is not pruned
    assert len(calls) == (3 if stopped_in == 'prune' else 4) and calls[2] == calls[1]
    assert before.items() <= contents(output).items()
    rows = {row.name: row.entries['sst2'].state for row in read_results(output).rows}
    assert rows['BERT-ℓ truncated'] == rows['optBERT-h'] == 'done' and rows['optBERT-all'] == NOT_RUN


def test_moved_table_goes_on_with_an_unfinished_cell_and_a_lost_copy(
    base, shards_directory, data, tmp_path, monkeypatch
):
    values = values_for(base, shards_directory, data, tmp_path / 'old' / 'table', rows='optbert-h', seeds='1')
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 6 + 4)  # the base has 6 steps, and then the row is begun
        run(plan(fill(TableRecipe, values)))
    (tmp_path / 'old').rename(tmp_path / 'new')
    monkeypatch.chdir(tmp_path)  # where the same place has a shorter name
    moved = {**values, 'output': 'new/table', 'resume': True}
    run(plan(fill(TableRecipe, moved)))
    cell = tmp_path / 'new' / 'table' / 'cells' / 'optbert-h' / 'sst-2'
    before = contents(tmp_path / 'new')
    copy = tmp_path / 'new' / 'table' / 'results' / 'optbert-h' / 'sst-2.json'
    copy.unlink()  # as if the table had been killed before it
    run(plan(fill(TableRecipe, {**moved, 'output': str(tmp_path / 'new' / 'table')})))
    assert contents(tmp_path / 'new') == before
    made = cell / 'recipe.yaml'
    made.write_text(made.read_text().replace('epochs: 1', 'epochs: 2'))
    with pytest.raises(ValueError, match='optbert-h/sst-2 was begun with other settings of epochs'):
        run(plan(fill(TableRecipe, moved)))


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
