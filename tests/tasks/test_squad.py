"""SQuAD: windows that cover every context, answers that are pieces of it, files in the official format."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from helpers.questions import write_squad
from helpers.tiny import TOKENS, vocabulary
from hypothesis import given, strategies as st

from gluon_optbert.tasks.squad import (
    Answer,
    Question,
    Reading,
    answer_files,
    best_answers,
    chosen_answer,
    decide,
    found_answer,
    known_answers,
    make_question_reader,
    read_questions,
    with_probabilities,
)

SQUAD = Path(__file__).parents[3] / 'shared' / 'data' / 'squad'
CLS, SEP = TOKENS.index('[CLS]'), TOKENS.index('[SEP]')
READING = Reading(max_length=12, stride=3, max_question=3)


def question(context, *answers, text='a b', name='q'):
    return Question(name, text, context, answers)


def windows_of(*questions, reading=READING, labelled=False):
    return make_question_reader(vocabulary(), reading)(questions, labelled=labelled)


def spans(windows):
    """The ids of each window."""
    features = windows.features
    return [features.ids[features.starts[i] : features.starts[i + 1]].tolist() for i in range(len(features))]


def letters(text):
    return [TOKENS.index(letter) for letter in text.split()]


def test_long_question_is_cut_and_counted(caplog):
    with caplog.at_level(logging.WARNING):
        windows = windows_of(question('c', text='a b c d e', name='long'), question('c', text='a b c'))
    assert spans(windows) == [[CLS, *letters('a b c'), SEP, *letters('c'), SEP]] * 2
    assert windows.features.seconds.tolist() == [5, 5]
    (message,) = caplog.messages
    assert message.startswith('1 of 2 questions') and message.endswith('long')


def test_long_context_is_read_in_windows_that_overlap_and_reach_its_end():
    context = ' '.join('cdefghijklmnopq')  # 15 tokens; room for 7
    windows = windows_of(question(context))
    assert windows.firsts.tolist() == [0, 3, 6, 9] and windows.features.texts.tolist() == [0] * 4
    parts = [span[4:-1] for span in spans(windows)]
    assert parts == [letters(context)[first : first + 7] for first in (0, 3, 6, 9)]
    assert windows_of(question(' '.join('cdefghi'))).firsts.tolist() == [0]  # just fits
    reading = READING.replace(stride=50)  # beyond a window
    assert windows_of(question(context), reading=reading).firsts.tolist() == [0, 7, 14]


def test_answer_is_labelled_where_a_window_has_all_of_it_and_at_cls_elsewhere():
    context = ' '.join('cdefghijklmnopq')
    windows = windows_of(question(context, ('h i', context.index('h'))), labelled=True)  # tokens 5 and 6
    assert windows.features.labels.tolist() == [[9, 10], [6, 7], [0, 0], [0, 0]]
    for span, (first, last) in zip(spans(windows)[:2], windows.features.labels):
        assert span[first : last + 1] == letters('h i')
    beyond = windows_of(question(context, ('i j', context.index('i'))), labelled=True)  # tokens 6 and 7
    assert beyond.features.labels.tolist() == [[0, 0], [7, 8], [4, 5], [0, 0]]
    touched = windows_of(question('c.d e', ('.', 1)), question('c d'), labelled=True)
    assert touched.features.labels.tolist() == [[5, 5], [0, 0]]


def googles_place(context, text, start):
    """The words among which BERT's program for SQuAD finds an answer, or None where it skips the question."""
    words, of_character, inside = [], [], False
    for character in context:
        if character.isspace():
            inside = False
        elif inside:
            words[-1] += character
        else:
            words.append(character)
            inside = True
        of_character.append(len(words) - 1)
    first, last = of_character[start], of_character[start + len(text) - 1]
    actual, wanted = ' '.join(words[first : last + 1]), ' '.join(text.split())
    return (first, last) if wanted in actual else None


@examples(60)
@given(
    st.lists(st.sampled_from(['a', 'b', 'c', 'ab', 'b.']), min_size=1, max_size=8),
    st.lists(st.sampled_from([' ', '  ', '\n', '\u00a0']), min_size=8, max_size=8),
    st.data(),
)
def test_answers_are_found_where_bert_finds_them(words, spaces, data):
    context = ''.join(word + space for word, space in zip(words, spaces))
    first = data.draw(st.integers(0, len(words) - 1))
    text = ' '.join(words[first : data.draw(st.integers(first + 1, len(words)))])
    start = data.draw(st.integers(0, max(0, len(context) - len(text))))
    place, found = googles_place(context, text, start), found_answer(context, text, start)
    assert (place is None) == (found is None)
    if found is not None:
        assert context[slice(*found)].split() == text.split()
        begins = [match.start() for match in re.finditer(r'\S+', context)]
        assert begins[place[0]] <= found[0] and found[1] <= [*begins[1:], len(context)][place[1]]


def test_answer_that_stands_elsewhere_is_moved_or_left_out_and_counted(caplog):
    asked = [
        question('c  d e f', ('d e', 4), name='beside'),
        question('c d\u00a0e', ('d e', 2), name='spaced'),
        question('c d', ('d', 0), name='wrong'),
    ]
    with caplog.at_level(logging.WARNING):
        windows = windows_of(*asked, question('c d', ('d', 2)), labelled=True)
    assert windows.features.labels.tolist() == [[5, 6], [5, 6], [5, 5]]
    assert windows.features.texts.tolist() == [0, 1, 3]
    moved, left_out = caplog.messages
    assert moved.startswith('2 of 4 questions have an answer at another place')
    assert moved.endswith(': beside, spaced')
    assert left_out.startswith('1 of 4 questions have no answer that stands') and left_out.endswith('wrong')
    assert [found_answer('c d', 'd', start) for start in (-1, 3, 2, 1, 0)] == [None, None, (2, 3), None, None]


def scores_for(windows, wanted):
    """Scores of zero, with one for some (window, token of the context) as start, and as end."""
    features = windows.features
    scores = np.zeros((len(features), int(features.lengths.max()), 2), np.float32)
    for window, start, end, value in wanted:
        scores[window, features.seconds[window] + start, 0] += value
        scores[window, features.seconds[window] + end, 1] += value
    return scores


def test_best_answer_is_cut_out_of_the_context():
    asked = question('C  d\u0301, E f.')
    windows = windows_of(asked, reading=Reading(max_length=16, stride=8, max_question=3))
    answers, nulls = best_answers(
        [asked], windows, scores_for(windows, [(0, 1, 3, 2.0)]), Reading(n_best=5, max_answer=4)
    )
    assert answers[0][0] == Answer('d\u0301, E', 4.0, 3, 8) and nulls == [0.0] and len(answers[0]) == 5


def test_answers_are_no_longer_than_allowed_and_never_end_before_they_begin():
    asked = question('c d e f')
    windows = windows_of(asked)
    answers, _ = best_answers(
        [asked],
        windows,
        scores_for(windows, [(0, 0, 3, 5.0), (0, 3, 0, 5.0)]),
        Reading(n_best=20, max_answer=2),
    )
    assert {answer.text for answer in answers[0]} == {'c', 'd', 'e', 'f', 'c d', 'd e', 'e f'}
    equal, _ = best_answers([asked], windows, scores_for(windows, []), Reading(n_best=20, max_answer=2))
    assert [answer.text for answer in equal[0]] == ['c', 'c d', 'd', 'd e', 'e', 'e f', 'f']


def test_token_is_scored_in_the_window_where_the_shorter_of_its_sides_is_longest():
    """At a tie in the first of them; every token has the number of its window as its score."""
    asked = question(' '.join('cdefghijklmnop'))
    windows = windows_of(asked)  # 0 to 6, 3 to 9, 6 to 12 and 9 to 13
    numbered = [(window, token, token, window / 2) for window in range(4) for token in range(7)]
    answers, _ = best_answers(
        [asked], windows, scores_for(windows, numbered[:-2]), Reading(n_best=100, max_answer=1)
    )
    found = {answer.text: int(answer.score) for answer in answers[0]}
    assert [found[letter] for letter in 'cdefghijklmnop'] == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_having_no_answer_has_its_lowest_score_of_all_windows():
    asked = question(' '.join('cdefghijklmnopq'))
    windows = windows_of(asked)
    scores = scores_for(windows, [])
    scores[:, 0] = [[3.0, 1.0], [-2.0, 1.0], [0.5, 1.0], [5.0, 1.0]]
    assert best_answers([asked], windows, scores, Reading(n_best=1, max_answer=1))[1] == [-1.0]


@examples(50)
@given(
    st.lists(
        st.text(alphabet='aBc \u00e9\u0301\ufb01\ud55c\u6771.,\u2028\n', max_size=40), min_size=1, max_size=3
    ),
    st.integers(0, 9),
)
def test_answers_are_pieces_of_their_context_best_first(contexts, seed):
    asked = [question(context, name=str(i)) for i, context in enumerate(contexts)]
    windows = windows_of(*asked)
    shape = len(windows.features), int(windows.features.lengths.max()), 2
    scores = np.random.RandomState(seed).standard_normal(shape).astype('f')
    answers, nulls = best_answers(asked, windows, scores, Reading(n_best=4, max_answer=3))
    for one, best, null, (begins, _) in zip(asked, answers, nulls, windows.places):
        assert len(best) <= 4 and bool(best) == bool(len(begins))
        assert all(answer.text and answer.text == one.context[answer.start : answer.end] for answer in best)
        assert len({answer.text for answer in best}) == len(best)
        assert [answer.score for answer in best] == sorted((answer.score for answer in best), reverse=True)
        assert decide(best, None, 0.0) == (best[0].text if best else '')
        assert decide(best, null, -np.inf) == ''


def test_no_answer_wins_beyond_the_threshold_only_and_the_chosen_one_has_its_probability():
    answers = [Answer('x', 3.0, 5, 6), Answer('y', 1.0, 7, 8)]
    assert [decide(answers, null, 1.0) for null in (3.0, 4.0, 4.1)] == ['x', 'x', '']
    answer = chosen_answer(answers, 4.0, None)
    assert answer == Answer('x', 3.0, 5, 6, pytest.approx(1 / (1 + np.exp(-2))))
    none = chosen_answer(answers, 4.0, 0.5)
    assert none == Answer('', 4.0, probability=pytest.approx(1 / (1 + np.exp(-1) + np.exp(-3))))
    assert chosen_answer([], 4.0, None) == Answer('', 0.0)
    every = with_probabilities(answers, 2.0)
    assert [one.text for one in every] == ['x', '', 'y'] and sum(
        one.probability for one in every
    ) == pytest.approx(1)
    assert with_probabilities([]) == []


@examples(50)
@given(st.integers(5, 700))
def test_networks_of_any_length_can_read_questions(positions):
    reading = Reading.of({'learning_rate': 1}, positions)
    assert not reading.problems() and reading.max_length <= positions and reading.null_threshold is None


def test_reading_is_that_of_the_fine_tuning_run():
    recipe = {**dict(READING), 'version': '2.0', 'null_threshold': -1.5, 'epochs': 2}
    assert Reading.of(recipe, 512) == READING.replace(null_threshold=-1.5)
    assert Reading.of({**recipe, 'version': '1.1'}, 512) == READING
    for name, value in (('stride', 0), ('stride', 1.5), ('max_length', 6), ('null_threshold', np.inf)):
        with pytest.raises(ValueError, match=name):
            Reading.of({**recipe, name: value}, 512)


def test_files_have_every_question():
    asked = [question('c', name='1'), question('d', name='2'), question(' ', name='3')]
    answers = [[Answer('c', 2.0)], [Answer('d', -1.0)], []]
    files = answer_files(asked, answers, [1.0, 1.0, 1.0], threshold=0.5)
    assert files['predictions.json'] == {'1': 'c', '2': '', '3': ''}
    assert files['answers.json'] == {'1': 'c', '2': 'd', '3': ''}
    assert files['null_odds.json'] == {'1': -1.0, '2': 2.0, '3': 0.0}
    assert [entry['text'] for entry in files['nbest.json']['2']] == ['', 'd']
    assert set(answer_files(asked, answers, None, threshold=0.5)) == {'predictions.json', 'nbest.json'}


def test_questions_are_read_as_they_stand(tmp_path):
    asked = [question('Cé d.', ('d', 3), name='1'), question('e', name='2')]
    path = write_squad(tmp_path / 'dev.json', asked)
    assert read_questions(path) == asked
    path.write_bytes(b'\xef\xbb\xbf' + path.read_bytes())  # a byte order mark, as in every other file of text
    assert read_questions(path) == asked


def asked_as(**more):
    """The text of a file with one question."""
    values = {'id': 'q7', 'question': '?', **more}
    return json.dumps({'data': [{'paragraphs': [{'context': 'c d', 'qas': [values]}]}]})


STANDS, EMPTY = ({'text': text, 'answer_start': 0} for text in ('c', ''))


@pytest.mark.parametrize(
    'more, answers, unknown',
    [
        ({'is_impossible': True, 'answers': [EMPTY]}, (), False),
        ({'is_impossible': True, 'answers': [STANDS]}, (), False),
        ({'answers': [EMPTY]}, (), False),
        ({'answers': [EMPTY, STANDS]}, (('c', 0),), False),
        ({'is_impossible': False, 'answers': [STANDS]}, (('c', 0),), False),
        ({'is_impossible': False, 'answers': []}, (), True),
    ],
)
def test_is_impossible_decides_whatever_the_answers_are(tmp_path, caplog, more, answers, unknown):
    (tmp_path / 'dev.json').write_text(asked_as(**more))
    asked = read_questions(tmp_path / 'dev.json')
    assert (asked[0].answers, asked[0].unknown) == (answers, unknown)
    assert len(windows_of(*asked, labelled=True).features) == (not unknown)
    if unknown:
        with pytest.raises(ValueError, match='dev.json: 1 questions have no answers.* the first is q7'):
            known_answers(asked, 'dev.json')
    else:
        assert known_answers(asked, '') == {'q7': [text for text, _ in answers]}


TWICE = asked_as(id='1').replace('}]}]}]}', '}, {"id": "1", "question": "?"}]}]}]}')
BEYOND = asked_as(id='1', answers=[{'text': 'c', 'answer_start': float('inf')}])


@pytest.mark.parametrize(
    'text, said',
    [
        ('[]', 'wanted a JSON object'),
        ('{"data": [{"paragraphs": 1}]}', 'not in SQuAD'),
        ('{"data": []}', 'has no questions'),
        (BEYOND, 'question 1: answers.0.answer_start must be a finite number'),
        (TWICE, 'question 1 comes twice'),
        (asked_as(is_impossible='false'), 'question q7: is_impossible must be a valid boolean'),
        (asked_as(answers=[{'text': 'c'}]), 'question q7: answers.0.answer_start Field required'),
        (asked_as().replace('}]}]}]}', '}, "?"]}]}]}'), 'question number 2: must be'),
    ],
)
def test_file_that_is_not_squads_is_refused_by_name(tmp_path, text, said):
    (tmp_path / 'dev.json').write_text(text)
    with pytest.raises(ValueError, match=f'dev.json: .*{said}'):
        read_questions(tmp_path / 'dev.json')
    with pytest.raises(FileNotFoundError):
        read_questions(tmp_path / 'none.json')


@pytest.mark.skipif(not SQUAD.is_dir(), reason='no SQuAD beside the project')
@pytest.mark.parametrize('name, count, impossible', [('dev-v1.1', 10570, 0), ('train-v2.0', 4719, 348)])
def test_real_files_have_their_questions_and_answers_where_they_say(name, count, impossible):
    asked = read_questions(SQUAD / f'{name}.json')
    assert len(asked) == count and sum(not one.answers for one in asked) == impossible
    assert all(one.context[start : start + len(text)] == text for one in asked for text, start in one.answers)
