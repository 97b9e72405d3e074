"""Which tokens a text needs, and how words split without the others."""

import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from gluon_optbert.text.tokenizer import (
    SPECIAL_TOKENS,
    casing_of,
    make_tokenizer,
    piece_splitter,
    vocabulary_of,
)
from gluon_optbert.text.trimming import compare_splits, count_words, trimmed_vocabulary

SPELLINGS = st.text('abcAが', min_size=1, max_size=4)
TOKENS = st.tuples(st.sampled_from(['', '##']), SPELLINGS).map(''.join)
VOCABULARIES = st.lists(TOKENS, min_size=1, max_size=25, unique=True).map(
    lambda tokens: vocabulary_of([*SPECIAL_TOKENS, *tokens])
)
WORDS = st.dictionaries(st.text('abcd', min_size=1, max_size=7), st.integers(1, 5), min_size=1, max_size=12)
SINGLE = [*'abc', *('##' + letter for letter in 'abc')]


def of(*tokens):
    return vocabulary_of([*SPECIAL_TOKENS, *tokens])


def uses_of(vocab, words):
    uses = dict.fromkeys(vocab.idx_to_token, 0)
    split = piece_splitter(vocab)
    for word, count in words.items():
        for piece in split(word):
            uses[piece] += count
    return uses


def test_an_unknown_word_may_become_known():
    before, after = of('a', 'ab', '##bc'), of('a', '##bc')
    assert piece_splitter(before)('abc') == ['[UNK]']
    assert piece_splitter(after)('abc') == ['a', '##bc']
    splits = compare_splits({'abc': 3}, before, after)
    assert (splits.unknown, splits.unknown_after, splits.tokens_gone) == (3, 0, 0)


@examples(60)
@given(VOCABULARIES, WORDS, st.integers(1, 6), st.booleans())
def test_tokens_with_enough_uses_and_single_characters_stay_in_order(vocab, words, count, whole):
    """With one use every known word splits as before; none becomes unknown if every character is a token.
    Capitals and accents, which no word has, decide whether the vocabulary is cased, and still do.
    """
    vocab = of(*dict.fromkeys([*vocab.idx_to_token[5:], *SINGLE])) if whole else vocab
    left = trimmed_vocabulary(vocab, words, count=count)
    assert left.idx_to_token == [token for token in vocab.idx_to_token if token in left]
    for token, uses in uses_of(vocab, words).items():
        assert token in left or uses < count and len(token.replace('##', '')) > 1
    assert casing_of(left)[0] == casing_of(vocab)[0]
    splits = compare_splits(words, vocab, left)
    if count == 1:
        assert splits.share == 0 and not splits.examples and not splits.now_unknown
        assert splits.unknown_after <= splits.unknown
    if whole:
        assert splits.unknown_after == splits.unknown and not splits.now_unknown


def test_tokens_that_no_text_uses_go_and_signs_stay():
    vocab = of('[unused1]', '[MARK]', 'a', '##a', 'ab', '##ab', 'abc')
    assert trimmed_vocabulary(vocab, {'ab': 1}) == of('[MARK]', 'a', '##a', 'ab')


def test_a_token_stays_that_words_need_when_longer_tokens_are_gone():
    vocab = of(*SINGLE, 'abca', 'abcb', 'abc', 'ab')
    words = {'abca': 1, 'abcb': 1}
    assert trimmed_vocabulary(vocab, words, count=2) == of(*SINGLE, 'abc')
    assert trimmed_vocabulary(vocab, words, count=3) == of(*SINGLE)


def test_a_word_whose_characters_are_no_tokens_becomes_unknown_and_is_counted():
    vocab = of('a', '##b', 'abc', 'ab', 'b')
    left = trimmed_vocabulary(vocab, {'abc': 2, 'ab': 5}, count=3)
    splits = compare_splits({'abc': 2, 'ab': 5}, vocab, left)
    assert 'abc' not in left and (splits.unknown, splits.unknown_after) == (0, 2)
    (lost,) = splits.now_unknown
    assert (lost.word, lost.uses, lost.before, lost.after) == ('abc', 2, ('abc',), ('[UNK]',))


def test_splits_count_tokens_and_show_the_most_frequent_words_first():
    vocab = of(*SINGLE, 'ab', 'ca', '##ab')
    splits = compare_splits({'ab': 2, 'caab': 3, 'c': 4, 'd': 1}, vocab, of(*SINGLE, 'ca'))
    assert (splits.words, splits.tokens, splits.tokens_after) == (10, 13, 18)
    assert splits.tokens_gone == 5 and splits.share == 5 / 13
    assert [(one.word, one.uses) for one in splits.examples] == [('caab', 3), ('ab', 2)]
    assert splits.examples[0].before == ('ca', '##ab') and splits.examples[0].after == ('ca', '##a', '##b')


@pytest.mark.parametrize('tokens', [['a', '##b', 'ab', 'é'], ['a', 'A', 'é', '##e']])
def test_words_are_those_that_the_tokenizer_splits(tokens):
    vocab = of(*tokens, '.', "'")
    texts = ['a ab abb. É', "A\tbé'a", 'ab\x00ab 東京', '']
    words = count_words(texts, vocab)
    assert sum(words.values()) == sum(sum(count_words([text], vocab).values()) for text in texts)
    ids = [number for text in texts for number in make_tokenizer(vocab)(text)]
    assert uses_of(vocab, words) == {token: ids.count(vocab[token]) for token in vocab.idx_to_token}
