"""A score is shown with its deviation, and marked where it says nothing."""

import pytest

from gluon_optbert.runs.progress import exceeds, score_text


@pytest.mark.parametrize(
    'mean, std, majority, wanted',
    [
        (68.38235, 0.0, 68.38235, '68.4 ± 0.0 *'),
        (68.0, None, 68.38235, '68.0 *'),
        (81.7, 0.44, 50.9, '81.7 ± 0.4'),
        (50.0, None, None, '50.0'),
    ],
)
def test_a_score_that_is_no_better_than_the_majority_class_is_marked(mean, std, majority, wanted):
    assert score_text(mean, std, majority=majority) == wanted


def test_rounding_of_a_mean_is_no_advantage():
    majority = 100 * 279 / 408
    assert not exceeds(sum([majority] * 3) / 3, majority) and exceeds(100 * 280 / 408, majority)
