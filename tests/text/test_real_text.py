"""The tokenizer on real sentences, beside those of GluonNLP and of `tokenizers`."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

import pytest
from gluonnlp.data import BERTSentenceTransform, BERTTokenizer
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from gluon_optbert.tasks.features import make_reader
from gluon_optbert.text.tokenizer import (
    SPECIAL_TOKENS,
    make_aligner,
    make_tokenizer,
    read_vocabulary,
    train_wordpiece,
    vocabulary_of,
    word_splitter,
)

DATA = Path(__file__).parents[3] / 'shared' / 'data'
SENTENCES = 10_000
LONG = 'a' * 200
LETTERS = 'abcdemsk'
TINY = vocabulary_of([*SPECIAL_TOKENS, *LETTERS, *'[]é東', *(f'##{letter}' for letter in LETTERS)])
HARD = [
    '[MASK] and [CLS] are words in a text, not tokens.',
    'control\x00 characters\x7f\u200d, \ufffd and\u2028lines\x85',
    'Tōkyō 東京都, 한국어, かが, ελληνικός, İstanbul, ﬁne, naïve, cafe\u0301',
    f'{LONG} {LONG}a',
    '😀🏳️\u200d🌈 emoji ½ ² ™ — “quotes” …',
    '',
    '   ',
]


def texts():
    """Sentences of GLUE, paragraphs of SQuAD and Wikipedia, a third each."""
    glue = (
        text
        for path in sorted(DATA.glob('glue/*/dev*.tsv'))
        for line in path.read_text(encoding='utf-8').split('\n')[1:1500]
        for text in line.split('\t')
    )
    articles = json.loads((DATA / 'squad/dev-v1.1.json').read_text(encoding='utf-8'))['data']
    squad = (paragraph['context'] for article in articles for paragraph in article['paragraphs'])
    files = (path.read_text(encoding='utf-8') for path in sorted(DATA.glob('wiki/AA/*')))
    wiki = (line for content in files for line in content.split('\n'))
    for three in itertools.zip_longest(glue, squad, wiki, fillvalue=''):
        yield from filter(str.strip, three)


@pytest.fixture(scope='module')
def sentences():
    """Real sentences, and hard ones."""
    if not DATA.is_dir():
        pytest.skip(f'{DATA} is not here')
    real = list(itertools.islice(texts(), SENTENCES))
    assert len(real) == SENTENCES and sum(not text.isascii() for text in real) > 500
    return real + HARD


@pytest.fixture(scope='module')
def vocabularies(sentences):
    """An uncased vocabulary and a cased one."""
    return {
        False: read_vocabulary(DATA / 'vocab.txt'),
        True: train_wordpiece(sentences[:2000], 4000, cased=True),
    }


def test_ids_of_real_sentences_are_those_of_gluonnlp(sentences, vocabularies):
    vocabulary = vocabularies[False]
    tokenize, reference = make_tokenizer(vocabulary), BERTTokenizer(vocabulary, lru_cache_size=2**17)
    assert [text for text in sentences if tokenize(text) != vocabulary[reference(text)]] == []


@pytest.mark.parametrize('cased', [False, True])
def test_ids_and_places_of_real_sentences_are_those_of_tokenizers(sentences, vocabularies, cased):
    """An accent that stands behind its letter belongs to the letter here, and to no token there."""
    vocabulary = vocabularies[cased]
    tokenize, align = make_tokenizer(vocabulary), make_aligner(vocabulary)
    reference = BertWordPieceTokenizer(
        dict(vocabulary.token_to_idx), lowercase=not cased, strip_accents=not cased
    )
    others = []
    for text in sentences[: -len(HARD)]:
        ids, begins, ends = align(text)
        wanted = reference.encode(text, add_special_tokens=False)
        assert ids == tokenize(text) == wanted.ids, text
        for begin, end, place in zip(begins, ends, wanted.offsets):
            if (begin, end) != place:
                assert begin == place[0] and all(
                    unicodedata.category(mark) == 'Mn' for mark in text[place[1] : end]
                )
                others.append(text[begin:end])
    assert len(others) < 10


def test_special_tokens_in_a_text_are_text():
    assert make_tokenizer(TINY)('[MASK]') == TINY[['[', 'm', '##a', '##s', '##k', ']']]


def test_a_word_beyond_two_hundred_characters_is_unknown():
    tokenize = make_tokenizer(TINY)
    assert len(tokenize(LONG)) == 200 and tokenize(LONG + 'a') == [TINY['[UNK]']]


CHARACTERS = st.text(
    st.one_of(st.sampled_from('aBé東ΣςİﬁŐ한\u0301\u0323\u200d\u2028\ufffd\x00\t\x85[]'), st.characters()),
    max_size=40,
)


@given(CHARACTERS)
def test_words_without_accents_but_with_capitals_are_those_of_gluonnlp(text):
    from gluonnlp.data.fast_bert_tokenizer import BasicTokenizer

    assert word_splitter(cased=False, capitals=True)(text) == BasicTokenizer(lower=False).tokenize(text)
    assert word_splitter(cased=False)(text) == BasicTokenizer(lower=True).tokenize(text)


@given(st.tuples(CHARACTERS, CHARACTERS))
def test_a_pair_of_texts_is_read_as_by_the_transform_of_gluonnlp(pair):
    assume(all(make_tokenizer(TINY)(text) for text in pair))
    transform = BERTSentenceTransform(BERTTokenizer(TINY), max_seq_length=200, vocab=TINY, pad=False)
    ids, length, segments = transform(pair)
    features = make_reader(TINY, max_length=200)([pair])
    assert features.ids.tolist() == ids.tolist() and features.lengths.tolist() == [length]
    assert int(features.seconds[0]) == len(segments) - segments.sum()
