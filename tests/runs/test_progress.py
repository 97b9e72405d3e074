"""Contents of progress.json: read, changed and written again, and nothing else changes."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gluon_optbert.runs.progress import (
    Epoch,
    HeldOut,
    Progress,
    TaskScores,
    exceeds,
    marked,
    paired_error,
    score_text,
)

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**6)
MEASURED = ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'instances')
HELD_OUT = st.fixed_dictionaries(dict.fromkeys(MEASURED, NUMBERS), optional={'mlm_standard_error': NUMBERS})
EPOCH = st.fixed_dictionaries(
    {'epoch': st.integers(1, 9), 'step': st.integers(1, 9), 'scores': st.just({'dev/f1': 50.0})}
)
FILES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(('step', 'earlier_steps', 'head_steps', 'best_step', 'round'), st.integers(0, 10**6)),
        **dict.fromkeys(('mlm_loss', 'mlm_accuracy', 'mlm_standard_error', 'best_mlm_loss'), NUMBERS),
        'untrained': st.lists(st.sampled_from(['mlm', 'nsp', 'pooler'])),
        'before': HELD_OUT,
        'after_cut': HELD_OUT,
        'unlogged': st.lists(NUMBERS, max_size=3),
        'epochs': st.lists(EPOCH, max_size=2),
        'of another version': st.none() | st.lists(st.integers(), max_size=2) | st.text('aä', max_size=3),
    },
)


def written(values):
    return json.dumps(values, sort_keys=True)


@given(FILES)
def test_what_is_read_is_written(values):
    progress = Progress.from_dict(values)
    assert written(progress.to_dict()) == written(values)
    assert Progress.from_dict(progress.to_dict()) == progress


@given(FILES, st.integers(0, 9), NUMBERS)
def test_changes_are_those_of_a_dict(values, step, loss):
    changed = Progress.from_dict(values).updated(best_step=step, mlm_loss=loss, before=None)
    wanted = {**values, 'best_step': step, 'mlm_loss': loss}
    wanted.pop('before', None)
    assert written(changed.to_dict()) == written(wanted)


def test_fields_say_what_the_file_says():
    measured = {'mlm_loss': 2.5, 'mlm_accuracy': 0.5, 'nsp_loss': 0.7, 'nsp_accuracy': 0.6, 'instances': 16}
    progress = Progress.from_dict({'step': 4, **measured, 'earlier_steps': 6, 'before': measured, 'round': 1})
    assert progress.held_out == progress.before == HeldOut(2.5, 0.5, 0.7, 0.6, instances=16)
    assert (progress.trained_steps, progress.round, progress.after_cut) == (10, 1, None)
    assert Progress().trained_steps == 0 and Progress().held_out is None and Progress().to_dict() == {}
    assert Progress(step=1, epochs=(Epoch(1, 1, {}),)).to_dict() == {
        'step': 1,
        'epochs': [{'epoch': 1, 'step': 1, 'scores': {}}],
    }


@pytest.mark.parametrize(
    'values', [{'step': True}, {'untrained': [3]}, {'before': {'mlm_loss': 1.0}}, {'epochs': [{}]}]
)
def test_value_of_another_type_is_refused_by_name(values):
    with pytest.raises(ValueError, match=f'there: {next(iter(values))}[. ]'):
        Progress.from_dict(values, source='there')


def test_score_of_one_answer_to_all_comes_back_and_decides_what_is_poor():
    for value, poor in ((50.0, True), (51.0, False)):
        scores = TaskScores({'dev/accuracy': value}, 'dev/accuracy', 100, 1.0, 50.0)
        assert TaskScores.from_dict(json.loads(json.dumps(scores.to_dict()))) == scores
        assert scores.poor is poor
    assert not TaskScores({'dev/f1': 0.0}, 'dev/f1', 100).poor


@pytest.mark.parametrize(
    'mean, std, majority, wanted',
    [(68.38235, 0.0, 68.38235, '68.4 ± 0.0 *'), (81.7, 0.44, 50.9, '81.7 ± 0.4'), (50.0, None, None, '50.0')],
)
def test_a_score_that_is_no_better_than_the_majority_class_is_marked(mean, std, majority, wanted):
    assert score_text(mean, std, majority=majority) == wanted


def test_rounding_of_a_mean_is_no_advantage():
    majority = 100 * 279 / 408
    assert not exceeds(sum([majority] * 3) / 3, majority) and exceeds(100 * 280 / 408, majority)


def test_marks_say_what_is_right_wrong_or_right_in_part():
    credits = np.array([0, 1e-3, 1 / 27, 0.5, 2 / 3, 26 / 27, 0.999, 1])
    assert marked(credits) == '0aanrzz1' and marked(credits > 0.4) == '00011111'


def test_error_of_a_difference_is_that_of_the_credits_instance_by_instance():
    one, other = np.clip(np.random.RandomState(0).uniform(-0.5, 1.5, (2, 400)), 0, 1)
    apart = 100 * (other - one)
    error = paired_error([apart.mean()], [marked(one)], [marked(other)])
    assert error == pytest.approx(apart.std(ddof=1) / 20, rel=0.01)  # marks have 28 steps
