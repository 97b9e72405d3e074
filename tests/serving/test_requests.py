"""What a request may hold: one text or several, in bounded numbers; anything else is refused in words."""

import json

import pytest
from helpers.services import HEADS
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.deployment.instances import Instance
from gluon_optbert.serving.requests import LONGEST_ID, BadRequest, read_instances
from gluon_optbert.serving.settings import ServiceSettings

SETTINGS = ServiceSettings(max_texts=3, max_characters=20)


def read(values, head='sentences'):
    body = values if isinstance(values, bytes) else json.dumps(values).encode()
    return read_instances(body, HEADS[head], SETTINGS)


@pytest.mark.parametrize(
    'values, head, wanted',
    [
        ({'text': 'a b'}, 'sentences', [Instance('a b')]),
        ({'text': 'a b', 'pair': None, 'id': 7}, 'sentences', [Instance('a b', id='7')]),
        ({'text': 'a', 'pair': 'b'}, 'pairs', [Instance('a', 'b')]),
        ({'question': 'a', 'context': 'b'}, 'questions', [Instance('a', 'b')]),
        ({'text': 'a', 'pair': 'b'}, 'questions', [Instance('a', 'b')]),
        ({'instances': ['a', {'text': 'b', 'id': 'x'}]}, 'sentences', [Instance('a'), Instance('b', id='x')]),
        ({'instances': ['a', {'text': 'b', 'pair': 'c'}]}, 'embeddings', [Instance('a'), Instance('b', 'c')]),
    ],
)
def test_one_text_or_several_are_read(values, head, wanted):
    assert read(values, head) == wanted


def test_what_is_as_large_as_may_be_is_read():
    largest = {'text': 'a' * SETTINGS.max_characters, 'id': 'b' * LONGEST_ID}
    instances = read({'instances': [largest] * SETTINGS.max_texts})
    assert instances == [Instance(largest['text'], id=largest['id'])] * 3


@pytest.mark.parametrize(
    'values, head, status, words',
    [
        (b'', 'sentences', 400, 'not JSON'),
        (b'{"text": "a"', 'sentences', 400, 'not JSON'),
        (b'\xff\xfe', 'sentences', 400, 'not UTF-8: invalid start byte at byte 0'),
        (b'{"text": NaN}', 'sentences', 400, 'NaN is no number'),
        (b'{"text": "a", "id": -Infinity}', 'sentences', 400, 'Infinity'),
        (b'{"id": ' + b'9' * 100_000 + b'}', 'sentences', 400, 'a number of 100000 digits'),
        (b'[' * 100_000, 'sentences', 400, 'nested too deeply'),
        (b'{"text":' * 100_000, 'sentences', 400, 'nested too deeply'),
        (b'"\\ud800"', 'sentences', 422, 'found a text'),
        ({'text': '\ud800'}, 'sentences', 422, 'lone surrogate'),
        ({'text': 'a', 'id': '\udfff'}, 'sentences', 422, 'lone surrogate'),
        (None, 'sentences', 422, 'found null'),
        ([1, 2], 'sentences', 422, 'found a list of 2'),
        ({}, 'sentences', 422, 'found no text'),
        ({'txt': 'a'}, 'sentences', 422, "unknown 'txt'"),
        ({'text': 3}, 'sentences', 422, 'text must be a text, found a number'),
        ({'text': ''}, 'sentences', 422, 'text is empty'),
        ({'text': ' \n\t'}, 'sentences', 422, 'text is empty'),
        ({'text': 'a' * 21}, 'sentences', 413, '21 characters, and a text may have 20'),
        ({'text': 'a', 'id': [1]}, 'sentences', 422, 'id must be'),
        ({'text': 'a', 'id': 1.5}, 'sentences', 422, 'id must be'),
        ({'text': 'a', 'id': True}, 'sentences', 422, 'found true or false'),
        ({'text': 'a', 'id': 'b' * 201}, 'sentences', 422, 'id must be'),
        ({'text': 'a', 'pair': 'b'}, 'sentences', 422, 'two texts, and SST-2 is a task on one sentence'),
        ({'text': 'a'}, 'pairs', 422, 'one text, and STS-B is a task on pairs'),
        ({'text': 'a'}, 'questions', 422, 'question without a context'),
        ({'question': 'a', 'context': 'b'}, 'pairs', 422, 'answers no questions'),
        ({'question': 'a'}, 'questions', 422, "found 'question'"),
        ({'text': 'a', 'context': 'b'}, 'questions', 422, "found 'context', 'text'"),
        ({'instances': []}, 'sentences', 422, 'found a list of 0'),
        ({'instances': None}, 'sentences', 422, 'found null'),
        ({'instances': 'a'}, 'sentences', 422, 'found a text'),
        ({'instances': ['a'], 'text': 'b'}, 'sentences', 422, "found 'text' beside it"),
        ({'instances': ['a', 3]}, 'sentences', 422, 'instances[1]: wanted an object'),
        ({'instances': ['a', {'text': ''}]}, 'sentences', 422, 'instances[1]: text is empty'),
        ({'instances': ['a'] * 4}, 'sentences', 413, '4 instances, and a request may have 3'),
    ],
)
def test_anything_else_is_refused_in_words(values, head, status, words):
    with pytest.raises(BadRequest) as raised:
        read(values, head)
    assert raised.value.status == status and words in str(raised.value)
    assert len(str(raised.value)) < 400 and str(raised.value).isprintable()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
KEYS = st.sampled_from(['text', 'pair', 'question', 'context', 'id', 'instances'])


@given(ANY | st.dictionaries(KEYS, ANY), st.sampled_from(sorted(HEADS)))
def test_any_json_is_read_or_refused(values, head):
    try:
        instances = read(values, head)
    except BadRequest as error:
        assert error.status in (400, 413, 422) and str(error).isprintable()
    else:
        assert 1 <= len(instances) <= 3 and all(one.first.strip() for one in instances)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body):
    with pytest.raises(BadRequest) as raised:
        read(body)
    assert raised.value.status in (400, 413, 422)
