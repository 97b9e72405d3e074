"""Vocabularies: their files, their tokens' order, and the tokenizer."""

from __future__ import annotations

import os
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import pytest
from gluonnlp.data import BERTTokenizer
from helpers.examples import examples
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.text.tokenizer import (
    SPECIAL_TOKENS,
    make_aligner,
    make_tokenizer,
    read_vocabulary,
    train_wordpiece,
    vocabulary_hash,
    vocabulary_of,
    write_vocabulary,
)

DATA = Path(__file__).parents[3] / 'shared' / 'data'
LETTERS = 'abcdefghijklmnopqrstuvwxyz'
TOKENS = [
    '[PAD]',
    'un',
    '[UNK]',
    '[CLS]',
    '[SEP]',
    '[MASK]',
    *LETTERS,
    *('##' + letter for letter in LETTERS),
    '##able',
    '!',
    "'",
    '0',
    '1',
    '##1',
    '東',
]
VOCAB = vocabulary_of(TOKENS)


def test_tokens_keep_the_order_of_the_file(tmp_path):
    path = tmp_path / 'vocab.txt'
    path.write_bytes('\r\n'.join(TOKENS).encode())
    vocab = read_vocabulary(path)
    assert vocab.idx_to_token == TOKENS and [vocab[token] for token in TOKENS] == list(range(len(TOKENS)))
    assert vocab['no such token'] == TOKENS.index('[UNK]')


def test_a_written_vocabulary_reads_back_with_the_same_hash(tmp_path):
    write_vocabulary(VOCAB, tmp_path / 'v')
    assert vocabulary_hash(read_vocabulary(tmp_path / 'v')) == vocabulary_hash(VOCAB)


def test_a_byte_order_mark_makes_no_difference(tmp_path):
    content = '\n'.join(TOKENS).encode()
    (tmp_path / 'plain').write_bytes(content)
    (tmp_path / 'marked').write_bytes(b'\xef\xbb\xbf' + content)
    assert vocabulary_hash(read_vocabulary(tmp_path / 'marked')) == vocabulary_hash(VOCAB)
    assert vocabulary_hash(read_vocabulary(tmp_path / 'plain')) == vocabulary_hash(VOCAB)


def test_the_hash_sees_the_order():
    assert vocabulary_hash(vocabulary_of(TOKENS[::-1])) != vocabulary_hash(VOCAB)


@pytest.mark.parametrize(
    'content, said',
    [
        (b'', 'empty'),
        ('\n'.join(TOKENS[:5]).encode(), r'\[MASK\] missing'),
        ('\n'.join([*TOKENS, 'a']).encode(), 'on line'),
        ('\n'.join([*TOKENS, '', 'zz']).encode(), 'blank'),
        (b'[PAD]\n\xff\xfe', 'not UTF-8 at byte 6'),
        (b'abc', 'missing'),
    ],
)
def test_a_bad_vocabulary_is_refused_by_name(tmp_path, content, said):
    path = tmp_path / 'bad.txt'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as raised:
        read_vocabulary(path)
    assert str(path) in str(raised.value)


def test_a_line_separator_is_a_token_as_in_berts_chinese_vocabulary(tmp_path):
    path = tmp_path / 'vocab.txt'
    path.write_text('\n'.join([*TOKENS, '\u2028', 'zz']) + '\n', encoding='utf-8')
    vocab = read_vocabulary(path)
    assert vocab['\u2028'] == len(TOKENS) and vocab['zz'] == len(TOKENS) + 1
    write_vocabulary(vocab, tmp_path / 'again')
    assert (tmp_path / 'again').read_bytes() == path.read_bytes()


def test_a_missing_vocabulary_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='no such vocabulary'):
        read_vocabulary(tmp_path / 'none')


@examples(300)
@given(st.text(max_size=60) | st.text(alphabet="abAB un01 !'\t\n\x0b_\x7f\u00e9\u6771", max_size=60))
def test_the_uncased_tokenizer_equals_that_of_gluonnlp(text):
    reference = BERTTokenizer(VOCAB)
    assert make_tokenizer(VOCAB)(text) == VOCAB[reference(text)]


def test_the_tokenizer_equals_that_of_gluonnlp_on_real_text():
    if not DATA.is_dir():
        pytest.skip(f'{DATA} is not here')
    vocab = read_vocabulary(DATA / 'vocab.txt')
    assert vocab['[PAD]'] == 0 and vocab['[MASK]'] == 103 and len(vocab) == 30522
    tokenize, reference = make_tokenizer(vocab), BERTTokenizer(vocab)
    for line in (DATA / 'wiki/AA/wiki_00').read_text(encoding='utf-8').split('\n')[:400]:
        assert tokenize(line) == vocab[reference(line)]


ODD = st.text(
    st.one_of(
        st.sampled_from('aB1!東é ΣİςßﬁŐ한\u0301\u0323\u302e\u200d\u00ad\u2028\ufffd\x00\t\n\x85'),
        st.characters(),
    ),
    max_size=30,
)


@given(ODD)
def test_aligned_tokens_are_the_tokenizers_and_have_places_in_order(text):
    ids, begins, ends = make_aligner(VOCAB)(text)
    assert ids == make_tokenizer(VOCAB)(text)
    assert len(begins) == len(ends) == len(ids)
    assert all(0 <= begin < end <= len(text) for begin, end in zip(begins, ends))
    assert begins == sorted(begins) and ends == sorted(ends)


@given(
    st.lists(st.sampled_from(['unable', 'Éa', 'a\u0301b', '!', '東', 'x1', 'ΑΣ']), max_size=8),
    st.sampled_from([' ', '  ', '\n', '\u00a0']),
)
def test_every_word_is_cut_out_of_the_text_as_it_stands(words, space):
    text = space.join(words)
    align = make_aligner(VOCAB)
    _, begins, ends = align(text)
    place = token = 0
    for word in words:
        count, place = len(align(word)[0]), text.index(word, place)
        assert text[begins[token] : ends[token + count - 1]] == word
        token, place = token + count, place + len(word)
    assert token == len(begins)


def test_tokens_are_parts_of_their_words():
    text = 'Unable, unÁble\u0301!'
    ids, begins, ends = make_aligner(VOCAB)(text)
    assert [(VOCAB.idx_to_token[i], text[begin:end]) for i, begin, end in zip(ids, begins, ends)][:3] == [
        ('un', 'Un'),
        ('##able', 'able'),
        ('[UNK]', ','),
    ]
    assert text[begins[-2] : ends[-2]] == 'Áble\u0301' and text[begins[-1] :] == '!'


def test_a_learnt_vocabulary_has_the_special_tokens_first_and_spells_everything():
    texts = list(pydoc_data.topics.topics.values())
    vocab = train_wordpiece(texts, 1200)
    assert tuple(vocab.idx_to_token[:5]) == SPECIAL_TOKENS and len(vocab) == 1200
    ids = [token for text in texts for token in make_tokenizer(vocab)(text)]
    assert ids.count(vocab['[UNK]']) < 1e-3 * len(ids)
    assert all(token == token.lower() for token in vocab.idx_to_token if token not in SPECIAL_TOKENS)


def test_a_vocabulary_is_learnt_the_same_in_every_process():
    program = (
        'import pydoc_data.topics as t; from gluon_optbert.text.tokenizer import *; '
        'print(vocabulary_hash(train_wordpiece(t.topics.values(), 900)))'
    )
    root = str(Path(__file__).parents[2])
    seed = '2' if os.environ.get('PYTHONHASHSEED') == '1' else '1'  # another one than this process has
    there = subprocess.run(
        [sys.executable, '-c', program],
        check=True,
        capture_output=True,
        cwd=root,
        env={**os.environ, 'PYTHONPATH': root, 'PYTHONHASHSEED': seed},
    ).stdout
    here = vocabulary_hash(train_wordpiece(pydoc_data.topics.topics.values(), 900))
    assert there == f'{here}\n'.encode()


@pytest.mark.parametrize(
    'texts, size, said', [([], 100, 'no text'), (['some text'], 6, 'holds no characters')]
)
def test_what_no_vocabulary_can_be_learnt_from_is_refused(texts, size, said):
    with pytest.raises(ValueError, match=said):
        train_wordpiece(texts, size)
