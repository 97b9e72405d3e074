"""Cased text: capitals and accents are kept, as BERT's own programs keep them."""

import itertools
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer, normalizers, pre_tokenizers

from gluon_optbert.analysis.sample import sample_of_texts
from gluon_optbert.tasks.features import make_reader
from gluon_optbert.text.tokenizer import (
    SPECIAL_TOKENS,
    casing_of,
    is_cased,
    make_aligner,
    make_tokenizer,
    read_vocabulary,
    train_wordpiece,
    vocabulary_of,
    word_splitter,
)

WIKI = Path(__file__).parents[3] / 'shared' / 'data' / 'wiki' / 'AA'
WORDS = (
    'café',
    'cafe',
    'Café',
    'Cafe',
    '##é',
    '##É',
    '##e',
    '##\u0301',
    'Ő',
    '東',
    '한',
    'Σ',
    '##ς',
    '!',
    '—',
)
CASED = vocabulary_of([*SPECIAL_TOKENS, *'abcdefzABCDEFZ01', *WORDS])
UNCASED = vocabulary_of([*SPECIAL_TOKENS, *'abcdefz', '##e', 'cafe'])
TEXT = st.text(
    st.one_of(
        st.sampled_from('aB1!東é ΣİςßﬁŐ한—\u0301\u0323\u302e\u200d\u00ad\u2028\ufffd\ue000\x00\x7f\t\n\x85'),
        st.characters(blacklist_categories=('Cs',)),
    ),
    max_size=40,
)


def reference(vocabulary):
    """The tokenizer of `tokenizers` for a cased vocabulary; text → ids."""
    tokenizer = BertWordPieceTokenizer(dict(vocabulary.token_to_idx), lowercase=False, strip_accents=False)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


REFERENCE = reference(CASED)


@pytest.fixture(scope='module')
def paragraphs():
    """Some paragraphs of Wikipedia, of which many have accents and other scripts."""
    if not WIKI.is_dir():
        pytest.skip(f'{WIKI} is not here')
    with open(WIKI / 'wiki_00', encoding='utf-8') as file:
        lines = [line.strip() for line in itertools.islice(file, 1500) if not line.startswith('<')]
    assert sum(not line.isascii() for line in lines) > 100
    return lines


def tokens_of(text, vocabulary=CASED):
    return [vocabulary.idx_to_token[i] for i in make_tokenizer(vocabulary)(text)]


@pytest.mark.parametrize(
    'tokens, cased, evidence',
    [
        ('a ##b é [unused0] [SPECIAL] <S> <T> 東 1', False, 'none of its 5 tokens has a capital'),
        ('a A ##B 東', True, '2 of its 4 tokens have capitals, such as A'),
        ('1 東 が ##が か', True, '2 of its 5 tokens have accents, such as が'),
        ('1 東 か ! — [X]', None, 'none of its 5 tokens has a letter with a capital or an accent'),
    ],
)
def test_the_vocabulary_says_whether_it_is_cased(tokens, cased, evidence, caplog):
    vocabulary = vocabulary_of([*SPECIAL_TOKENS, *tokens.split()])
    assert casing_of(vocabulary) == (cased, evidence)
    assert is_cased(vocabulary) == bool(cased) and (evidence in caplog.text) == (cased is None)
    for stated in (False, True):
        if cased in (stated, None):
            assert is_cased(vocabulary, stated) == stated
        else:
            with pytest.raises(ValueError, match=f'^v.txt: {evidence}, so it is .*leave --cased out'):
                is_cased(vocabulary, stated, source='v.txt')


def test_a_public_uncased_vocabulary_is_one():
    path = WIKI.parents[1] / 'vocab.txt'
    if not path.is_file():
        pytest.skip(f'{path} is not here')
    assert casing_of(read_vocabulary(path))[0] is False


@pytest.mark.parametrize('vocabulary, words', [(CASED, 'café Café'), (UNCASED, 'cafe cafe')])
def test_every_reader_of_text_asks_the_vocabulary(vocabulary, words):
    wanted = vocabulary[words.split()]
    assert make_tokenizer(vocabulary)('café Café') == wanted == make_aligner(vocabulary)('café Café')[0]
    assert make_reader(vocabulary, max_length=8)([('café Café',)]).ids[1:-1].tolist() == wanted


def test_cased_text_keeps_its_accents_and_uncased_text_loses_them():
    assert tokens_of('café Café CafÉ') == ['café', 'Café', '[UNK]']
    assert tokens_of('café Café', UNCASED) == ['cafe', 'cafe']
    assert tokens_of('cafe\u0301 한—東a') == ['cafe', '##\u0301', '한', '—', '東', 'a']


@given(TEXT)
@example('Café, cafe\u0301 — 한국 東京 \u2028\ue000x\u200dy')
def test_cased_ids_are_those_of_tokenizers(text):
    assume(not any(token in text for token in SPECIAL_TOKENS))  # which there are tokens, and here text
    assert make_tokenizer(CASED)(text) == REFERENCE(text)


def test_characters_of_every_kind_are_cleaned_and_split_as_in_tokenizers():
    text = ''.join(map(chr, itertools.chain(range(0x3500), range(0xF800, 0x12000))))
    clean = normalizers.BertNormalizer(lowercase=False, strip_accents=False).normalize_str(text)
    wanted = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(clean)]
    assert word_splitter(cased=True)(text) == wanted and len(wanted) > 1000


def test_half_a_surrogate_pair_is_a_character_like_others():
    text = 'a \ud83d b\udc00'
    assert tokens_of(text) == ['a', '[UNK]', '[UNK]']
    assert make_aligner(CASED)(text)[1:] == ([0, 2, 4], [1, 3, 6])


@given(TEXT)
def test_cased_tokens_are_the_text_as_it_is_written(text):
    ids, begins, ends = make_aligner(CASED)(text)
    assert ids == make_tokenizer(CASED)(text)
    assert begins == sorted(begins) and ends == sorted(ends)
    for i, begin, end in zip(ids, begins, ends):
        token = CASED.idx_to_token[i]
        if token != '[UNK]':
            assert ''.join(word_splitter(cased=True)(text[begin:end])) == token.replace('##', '')


def test_cased_ids_of_real_text_are_those_of_tokenizers(paragraphs):
    vocabulary = train_wordpiece(paragraphs, 3000, cased=True)
    tokenize, align = make_tokenizer(vocabulary), make_aligner(vocabulary)
    wanted = reference(vocabulary)
    for line in paragraphs:
        assert tokenize(line) == wanted(line) == align(line)[0]


def test_a_learnt_cased_vocabulary_spells_accents_and_capitals(paragraphs):
    only_cased = {'é', '##é', 'A'}
    assert only_cased <= set(train_wordpiece(paragraphs, 3000, cased=True).idx_to_token)
    assert only_cased.isdisjoint(train_wordpiece(paragraphs, 3000).idx_to_token)


def test_words_to_probe_are_written_as_the_vocabulary_keeps_them():
    (words,) = sample_of_texts([['Café café!']], CASED).words
    assert [word for _, word in words] == ['Café', 'café', '!']
    (words,) = sample_of_texts([['Café café!']], UNCASED).words
    assert [word for _, word in words] == ['Cafe', 'cafe', '!']
