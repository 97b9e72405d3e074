"""The quickstart says how long it will take, and ends with a page."""

import json

import pytest
import quickstart
from helpers.pages import check_page
from helpers.tiny import run
from quickstart import MEASURED, QuickstartRecipe, check, duration, estimate

from gluon_optbert.runs.failures import RunFailed


@pytest.mark.parametrize(
    'seconds, wanted', [(0.4, '0 seconds'), (66, '66 seconds'), (99.9, '100 seconds'), (977, '16 minutes')]
)
def test_durations_are_said_as_people_do(seconds, wanted):
    assert duration(seconds) == wanted


def test_estimate_is_the_measured_time_scaled_by_a_pass_here(monkeypatch):
    monkeypatch.setattr(quickstart, 'speed_here', lambda: 2 * MEASURED['pass'])
    for short, known in ((True, MEASURED['short']), (False, MEASURED['whole'])):
        said = estimate(QuickstartRecipe(short=short))
        assert said.startswith(f'This will take about {duration(2 * known)}.')
        assert f'took {duration(known)} of processor time' in said


def losses(output, before, after, pruned, random):
    """The records and rounds of a walk with these losses."""
    (output / 'model').mkdir()
    (output / 'model' / 'metrics.jsonl').write_text(json.dumps({'mlm': before}) + '\n')
    rows = [{'recovered': {'mlm_loss': loss}} for loss in (after, pruned)]
    return rows, {'recovered': {'mlm_loss': random}}


@pytest.mark.parametrize(
    'values, says',
    [((6, 5.8, 5.8, 5.9), 'pre-training did not learn'), ((6, 4, 5, 4.9), 'no better than the random cut')],
)
def test_walk_that_learnt_nothing_fails(tmp_path, values, says):
    with pytest.raises(RunFailed, match=says):
        check(tmp_path, *losses(tmp_path, *values))


def test_walk_that_learnt_says_so(tmp_path):
    assert 'beats the random cut' in check(tmp_path, *losses(tmp_path, 6, 4, 4.5, 4.9))


@pytest.mark.slow
def test_short_walk_ends_with_a_page_and_names_the_files_to_open(tmp_path):
    output = tmp_path / 'quick'
    done = run('tools/quickstart.py', output, '--short', '--workers', 1, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('This will take about ')
    for name in ('report.html', 'table.md', 'plots/loss_by_size.png'):
        assert (output / name).is_file() and str(output / name) in done.stdout
    text = ' '.join(check_page((output / 'report.html').read_text(encoding='utf-8')).text)
    assert 'pruned has ' in text and 'random has ' in text and 'FLOPs of 128 tokens' in text
    assert '| random |' in (output / 'table.md').read_text(encoding='utf-8')
    assert 'random' in (output / 'plots' / 'loss_by_size.svg').read_text(encoding='utf-8')
