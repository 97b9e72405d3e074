"""Vocabularies and their files, and the tokenizer beside those of GluonNLP and of `tokenizers`."""

from __future__ import annotations

import os
import pydoc_data.topics
import subprocess
import sys

import pytest
from gluonnlp.data import BERTSentenceTransform, BERTTokenizer
from helpers.examples import examples
from helpers.tiny import environment
from hypothesis import assume, example, given, strategies as st
from tokenizers import BertWordPieceTokenizer

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
    vocabulary_hash,
    vocabulary_of,
    write_vocabulary,
)

LETTERS = 'abcdefghijklmnopqrstuvwxyz'
CONTINUED = [f'##{letter}' for letter in LETTERS]
TOKENS = ['[PAD]', 'un', *SPECIAL_TOKENS[1:], *LETTERS, *CONTINUED, '##able', *"!'01[]東", '##1', '##ς']
UNCASED = vocabulary_of([*TOKENS, 'cafe'])
CASED = vocabulary_of([*TOKENS, *'ABCDEFZŐ한Σ—', *('café', 'Café', '##é', '##É', '##\u0301')])
IDS, ALIGNED = (
    {True: make(CASED), False: make(UNCASED)} for make in (make_tokenizer, make_aligner)
)  # by whether they are cased
GLUONNLP, READ = BERTTokenizer(UNCASED), make_reader(UNCASED, max_length=200)
LIBRARY = BertWordPieceTokenizer(dict(CASED.token_to_idx), lowercase=False, strip_accents=False)
# what GluonNLP and `tokenizers` take from one version of Unicode
TEXT = st.text(
    st.sampled_from('aB1!東é ΣİςßﬁŐ한\u0301\u0323\u302e\u200d\u00ad\u2028\ufffd\t\n[]—')
    | st.characters(max_codepoint=0x5FF),
    max_size=40,
)
ODD = TEXT | st.text(max_size=40)


def tokens_of(text, cased):
    return [(CASED if cased else UNCASED).idx_to_token[i] for i in IDS[cased](text)]


def test_a_written_vocabulary_reads_back_in_order_whatever_its_line_ends(tmp_path):
    tokens = [*TOKENS, '\u2028', 'zz']  # a line separator is a token of BERT's Chinese vocabulary
    for content in ('\n'.join(tokens), '\r\n'.join(tokens), '\ufeff' + '\n'.join(tokens) + '\n'):
        (tmp_path / 'vocab.txt').write_bytes(content.encode())
        vocab = read_vocabulary(tmp_path / 'vocab.txt')
        assert vocab.idx_to_token == tokens and vocab[tokens] == list(range(len(tokens)))
        assert vocab['no such token'] == tokens.index('[UNK]')
        write_vocabulary(vocab, tmp_path / 'again')
        assert vocabulary_hash(read_vocabulary(tmp_path / 'again')) == vocabulary_hash(vocab)
    assert vocabulary_hash(vocabulary_of(tokens[::-1])) != vocabulary_hash(vocab)
    with pytest.raises(ValueError):
        vocab.to_tokens([0, -1])


@pytest.mark.parametrize(
    'content, said',
    [
        (b'', 'empty'),
        ('\n'.join(TOKENS[:5]).encode(), r'\[MASK\] missing'),
        ('\n'.join([*TOKENS, 'a']).encode(), 'on line'),
        ('\n'.join([*TOKENS, '', 'zz']).encode(), 'blank'),
        (b'[PAD]\n\xff\xfe', 'not UTF-8 at byte 6'),
    ],
)
def test_a_bad_vocabulary_is_refused_by_name(tmp_path, content, said):
    (tmp_path / 'bad.txt').write_bytes(content)
    with pytest.raises(ValueError, match=f'bad.txt: .*{said}'):
        read_vocabulary(tmp_path / 'bad.txt')
    with pytest.raises(FileNotFoundError):
        read_vocabulary(tmp_path / 'none')


@pytest.mark.parametrize(
    'tokens, cased, witness',
    [
        ('a ##b é [unused0] <S> 東 1', False, 'none'),
        ('a A ##B 東', True, 'such as A'),
        ('1 東 が ##が か', True, 'such as が'),
        ('1 東 か ! — [X]', None, 'none'),
    ],
)
def test_the_vocabulary_says_whether_it_is_cased(tokens, cased, witness, caplog):
    vocabulary = vocabulary_of([*SPECIAL_TOKENS, *tokens.split()])
    told, evidence = casing_of(vocabulary)
    assert told == cased and witness in evidence
    assert is_cased(vocabulary) == bool(cased) and (evidence in caplog.text) == (cased is None)
    for stated in (False, True):
        if cased in (stated, None):
            assert is_cased(vocabulary, stated) == stated
        else:
            with pytest.raises(ValueError, match='--cased'):
                is_cased(vocabulary, stated)


@pytest.mark.parametrize('vocabulary, words', [(CASED, 'café Café'), (UNCASED, 'cafe cafe')])
def test_every_reader_of_text_asks_the_vocabulary(vocabulary, words):
    read = make_reader(vocabulary, max_length=8)([('café Café',)])
    assert read.ids[1:-1].tolist() == vocabulary[words.split()]
    (probed,) = sample_of_texts([['Café']], vocabulary).words
    assert probed == ((1, 'Café' if vocabulary is CASED else 'Cafe'),)


@example('aΣ Σa aΣb İΣ')
@given(TEXT)
def test_uncased_ids_are_those_of_gluonnlp(text):
    assert IDS[False](text) == UNCASED[GLUONNLP(text)]


@given(ODD)
def test_cased_ids_are_those_of_tokenizers(text):
    assume(not any(token in text for token in SPECIAL_TOKENS))  # which there are tokens, and here text
    assert IDS[True](text) == LIBRARY.encode(text, add_special_tokens=False).ids


@examples(50)
@given(st.tuples(TEXT, TEXT))
def test_a_pair_of_texts_is_read_as_by_the_transform_of_gluonnlp(pair):
    assume(all(map(IDS[False], pair)))
    transform = BERTSentenceTransform(GLUONNLP, max_seq_length=200, vocab=UNCASED, pad=False)
    ids, length, segments = transform(pair)
    features = READ([pair])
    assert features.ids.tolist() == ids.tolist() and features.lengths.tolist() == [length]
    assert int(features.seconds[0]) == len(segments) - segments.sum()


@given(text=ODD, cased=st.booleans())
def test_aligned_tokens_are_the_tokenizers_and_stand_in_order(text, cased):
    ids, begins, ends = ALIGNED[cased](text)
    assert ids == IDS[cased](text)
    assert all(0 <= begin < end <= len(text) for begin, end in zip(begins, ends))
    assert begins == sorted(begins) and ends == sorted(ends)
    for number, begin, end in zip(ids, begins, ends) if cased else ():
        token = CASED.idx_to_token[number].replace('##', '')
        assert token == '[UNK]' or ''.join(tokens_of(text[begin:end], True)).replace('##', '') == token


def test_tokens_keep_the_accents_behind_them_and_unknown_words_are_whole():
    text = 'Unable, unÁble\u0301!'
    ids, begins, ends = ALIGNED[False](text)
    places = [(UNCASED.idx_to_token[i], text[begin:end]) for i, begin, end in zip(ids, begins, ends)]
    wanted = [('un', 'Un'), ('##able', 'able'), ('[UNK]', ','), ('un', 'un'), ('##able', 'Áble\u0301')]
    assert places == [*wanted, ('!', '!')]


def test_odd_words():
    assert tokens_of('[MASK]', False) == ['[', *('m', '##a', '##s', '##k'), ']']  # text is no special token
    assert len(tokens_of('a' * 200, False)) == 200 and tokens_of('a' * 201, False) == ['[UNK]']
    assert tokens_of('cafe\u0301 한—東a', True)[-5:] == ['##\u0301', '한', '—', '東', 'a']
    half_pairs = 'a \ud83d b\udc00'
    assert tokens_of(half_pairs, True) == ['a', '[UNK]', '[UNK]']
    assert ALIGNED[True](half_pairs)[1:] == ([0, 2, 4], [1, 3, 6])


def test_a_learnt_vocabulary_has_the_special_tokens_first_and_spells_everything():
    texts = list(pydoc_data.topics.topics.values())[:12]
    vocab = train_wordpiece(texts, 600)
    assert tuple(vocab.idx_to_token[:5]) == SPECIAL_TOKENS and len(vocab) == 600
    tokenize = make_tokenizer(vocab)
    ids = [token for text in texts for token in tokenize(text)]
    assert ids.count(vocab['[UNK]']) < 1e-3 * len(ids)
    assert not casing_of(vocab)[0] and casing_of(train_wordpiece(texts, 600, cased=True))[0]
    program = (
        'import pydoc_data.topics as t; from gluon_optbert.text.tokenizer import *; '
        'print(vocabulary_hash(train_wordpiece(list(t.topics.values())[:12], 600)))'
    )
    seed = '2' if os.environ.get('PYTHONHASHSEED') == '1' else '1'  # another one than this process has
    words = [sys.executable, '-c', program]
    there = subprocess.run(words, check=True, capture_output=True, env=environment(PYTHONHASHSEED=seed))
    assert there.stdout == f'{vocabulary_hash(vocab)}\n'.encode()


def test_what_no_vocabulary_can_be_learnt_from_is_refused():
    for texts, size, said in (([], 100, 'no text'), (['some text'], 6, 'holds no characters')):
        with pytest.raises(ValueError, match=said):
            train_wordpiece(texts, size)
