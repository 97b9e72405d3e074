"""The quickstart says what the random cut lost, and ends with a page."""

import pytest
from helpers.pages import check_page
from helpers.tiny import run
from quickstart import check, verdict

from gluon_optbert.runs.failures import RunFailed


@pytest.mark.parametrize(
    'values, says',
    [
        ((5.7, 5.8, (0.5, 0.1)), 'pre-training did not learn'),
        ((5.7, 4, (-0.1, 0.2)), 'no better than the random cut'),
    ],
)
def test_walk_that_learnt_nothing_fails(values, says):
    with pytest.raises(RunFailed, match=says):
        check(*values)


@pytest.mark.parametrize('error, chance', [(0.05, False), (0.3, True)])
def test_walk_that_learnt_says_by_how_much_the_random_cut_is_worse(error, chance):
    said = check(6, 4, (0.4, error))
    assert f'0.400 larger (standard error {error:.3f})' in said and ('chance' in said) == chance


@pytest.mark.slow
def test_short_walk_ends_with_a_page_and_names_the_files_to_open(tmp_path):
    output = tmp_path / 'quick'
    done = run('tools/quickstart.py', output, '--short', '--workers', 1, timeout=900)
    assert done.returncode == 0, done.stderr
    for name in ('report.html', 'table.md', 'deploy'):
        assert (output / name).exists() and str(output / name) in done.stdout
    page = check_page((output / 'report.html').read_text(encoding='utf-8'))
    text = ' '.join(page.text)
    assert 'pruned has ' in text and 'random has ' in text and 'forward passes of 8 sequences' in text
    assert len(verdict(output)) == 2 and all(sentence in done.stdout for sentence in verdict(output))
    assert '| random |' in (output / 'table.md').read_text(encoding='utf-8')
