"""Sentences of words with tags: files, tokens, words of a text, and the entities that count."""

import json

import numpy as np
import pytest
from helpers.examples import examples
from helpers.tiny import vocabulary
from hypothesis import given, strategies as st

from gluon_optbert.architecture.heads import Head
from gluon_optbert.tasks.features import NO_TAG, batch_of
from gluon_optbert.tasks.metrics import entities, score, usual_metrics
from gluon_optbert.tasks.tagging import KEYS, is_tagged, make_tag_reader, read_sentences, split_words

WORDS, TAGS = (('text', 'c'), ('d',)), (('B-town', 'I-town'), ('O',))


def in_json(words, tags):
    """The sentences as JSON lines with these keys."""
    return '\n'.join(json.dumps({words: own, tags: names}) for own, names in zip(WORDS, TAGS))


@pytest.mark.parametrize(
    'name, content',
    [
        ('one.conll', '-DOCSTART- -X- O O\n\ntext NN B-town\nc NN I-town\n\n\nd NN O\n'),
        ('one.BIO', 'text\tB-town\r\nc\tI-town\r\n\r\nd\tO'),
        *(('one.jsonl', in_json(*keys)) for keys in KEYS),
        ('one.jsonl', '\n \n' + in_json(*KEYS[0])),
    ],
)
def test_layouts_of_tagged_words_are_read_alike(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    found = read_sentences(tmp_path / name)
    assert tuple(one.words for one in found) == WORDS and tuple(one.tags for one in found) == TAGS
    assert is_tagged(tmp_path / name)


def test_what_has_no_tag_for_a_word_is_refused(tmp_path):
    for name, content, said in (
        ('one.conll', 'ab B-town\nc\n', 'line 2 has no tag'),
        ('one.conll', '# id 7 domain=en\nab B-town\n', 'line 2 has 2 columns, .* 4: .* comments'),
        ('one.conll', '10\u00a0000 O\nab O\n', 'line 2 has 2 columns, .* 3: .* tabs'),
        ('one.conll', '\n\n', 'has no sentence'),
        ('one.jsonl', '{"words": ["ab"], "tags": []}', 'line 1: wanted an object with lists of words and as'),
        ('one.jsonl', '{"tokens": ["ab"], "ner_tags": [3]}', r'line 1: .* text, found .*\[3\]'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=said):
            read_sentences(tmp_path / name)
    for line in (
        '{"text": "a", "label": "words"}',
        '{"sentence": "a", "label": "tokens"}',
        '{"words": ["a"]',
        '',
    ):
        (tmp_path / 'one.jsonl').write_text(line)
        assert not is_tagged(tmp_path / 'one.jsonl') and not is_tagged(tmp_path / 'one.csv')


@given(st.text(alphabet=' ab.,-(“”é\u3000'))
def test_words_of_a_text_are_all_of_it_but_spaces(text):
    spans = split_words(text)
    assert [end <= begin for (_, end), (begin, _) in zip(spans, spans[1:])].count(False) == 0
    assert ''.join(text[first:end] for first, end in spans) == ''.join(text.split())


def test_punctuation_around_words_is_words():
    text = "(St. John's), “Ann”."
    assert [text[a:b] for a, b in split_words(text)] == [
        '(', 'St', '.', "John's", ')', ',', '“', 'Ann', '”', '.'
    ]  # fmt: skip


@examples(50)
@given(
    st.lists(st.lists(st.sampled_from(['a', 'abc', 'zzzz', '\u200b']), max_size=9), min_size=1, max_size=4),
    st.integers(4, 8),
)
def test_every_word_is_tagged_once_however_long_its_sentence(sentences, longest):
    tags = [list(range(len(words))) for words in sentences]
    features = make_tag_reader(vocabulary(), max_length=longest)(sentences, tags)
    assert features.lengths.max() <= longest
    batch = batch_of(features, np.arange(len(features)))
    scores = np.eye(10)[batch.labels.astype(int) * (batch.labels != NO_TAG)]
    found = [own.argmax(axis=1).tolist() for own in features.by_text(scores)]
    assert found == tags
    assert (batch.labels != NO_TAG).sum() == sum(map(len, sentences))


@pytest.mark.parametrize(
    'tags, wanted',
    [
        ('B-a I-a O B-a', [('a', 0, 2), ('a', 3, 4)]),
        ('I-a I-a B-a I-b', [('a', 0, 2), ('a', 2, 3), ('b', 3, 4)]),
        ('S-a B-a I-a E-a I-a', [('a', 0, 1), ('a', 1, 4), ('a', 4, 5)]),
        ('B-a M-a E-a S-a', [('a', 0, 3), ('a', 3, 4)]),
        ('B M E S', [('', 0, 3), ('', 3, 4)]),
        ('U-a B-a L-a', [('a', 0, 1), ('a', 1, 3)]),
        ('B B I O I', [('', 0, 1), ('', 1, 3), ('', 4, 5)]),  # of one kind, which has no name
        ('noun noun verb O', [('noun', 0, 2), ('verb', 2, 3)]),
        ('O O', []),
    ],
)
def test_entities_of_tags(tags, wanted):
    assert entities(tags.split()) == wanted


def test_a_letter_is_a_kind_where_other_tags_are_no_marks():
    assert entities(['M', 'O']) == [('', 0, 1)]
    assert entities(['M', 'O'], ['O', 'M', 'F', 'town']) == [('M', 0, 1)]
    assert score(['entity_precision'], [['M', 'O']], [['M', 'town']]) == {'entity_precision': 100}


@pytest.mark.parametrize(
    'tags, metric',
    [
        ('O B-a I-a', 'entity_f1'),
        ('O B I', 'entity_f1'),
        ('B E M S', 'entity_f1'),
        ('noun verb', 'tag_accuracy'),
    ],
)
def test_the_metric_that_decides_follows_from_the_tags(tags, metric):
    assert usual_metrics(Head('token_classification', tuple(tags.split())))[0] == metric


def test_an_entity_counts_with_all_of_its_words_and_its_kind():
    wanted = [['B-a', 'I-a', 'O', 'B-b'], ['O']]
    predicted = [['B-a', 'O', 'O', 'B-b'], ['B-a']]
    scores = score(['entity_precision', 'entity_recall', 'entity_f1', 'tag_accuracy'], predicted, wanted)
    assert list(scores.values()) == pytest.approx([100 / 3, 50, 40, 60])
