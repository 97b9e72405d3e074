"""The page of a report in a browser: at any width nothing is cut off."""

import pytest
from helpers.browser import VIEWS, Page, needs_chromium
from helpers.commands import succeed
from helpers.finetuned import recipe_for, write_glue
from helpers.written_runs import BASE, SMALL, write_run, write_task_run

from gluon_optbert.finetuning.recipes import finetune_glue


@pytest.fixture(scope='module')
def report(tmp_path_factory, model_directory, pruned_run):
    """Two reports: on runs, fine-tuning and a model, and on a run for a task."""
    base = tmp_path_factory.mktemp('browser')
    finetune_glue(recipe_for(model_directory, write_glue(base / 'glue'), base))
    runs = [pruned_run[0], write_run(base / 'a-run-with-quite-a-long-name'), base / 'run', model_directory]
    of_task = [write_task_run(base / 'task', [BASE, SMALL], [80.0, 70.0])]
    for name, paths in (('report', runs), ('task', of_task)):
        succeed('tools/report.py', *paths, '--output', base / f'{name}.html')
    return base


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize('width, scheme', VIEWS)
@pytest.mark.parametrize('name', ['report', 'task'])
def test_nothing_is_cut_off(report, name, width, scheme):
    with Page((report / f'{name}.html').as_uri(), width, scheme) as page:
        page.check()  # its figures are on white, and so is the page
        tables = '[...document.querySelectorAll(".scroll")]'
        assert page.value(f'{tables}.filter(e => e.scrollWidth > e.clientWidth + 1).length') == 0
