"""The quickstart says what the random cut lost; `.ci/run` walks it."""

import pytest
from quickstart import check

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
