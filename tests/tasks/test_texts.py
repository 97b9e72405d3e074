"""Texts are read from whatever files a user has."""

import json
from collections import Counter

import pytest
from helpers.questions import write_squad

from gluon_optbert.tasks.squad import Question
from gluon_optbert.tasks.texts import read_texts, read_words
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, vocabulary_of

VOCABULARY = vocabulary_of([*SPECIAL_TOKENS, *'abcdefgh'])


def texts_in(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding='utf-8')
    return list(read_texts(tmp_path / name))


LINES = [{'text': 'a\tb', 'id': 3, 'label': 'x'}, {'question': 'é', 'more': ['c']}]


@pytest.mark.parametrize(
    'name, content, texts',
    [
        # of a table the columns of text, or all
        ('data.tsv', 'sentence\tlabel\na b\t1\nc "d\t0\n', ['a b', 'c "d']),
        ('data.tsv', 'index\tsentence\n0\ta b\n', ['a b']),
        ('data.tsv', 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t8\t9\ta\tb\n', ['a', 'b']),
        ('data.tsv', 'id\tquestion\tsentence\tlabel\n7\ta\tb\tno\n8\tc\n', ['a', 'b', 'c']),
        ('data.tsv', 'a b\t1\nc\t0\n', ['a b', '1', 'c', '0']),
        ('data.jsonl', '\n\n'.join(map(json.dumps, LINES)) + '\n', ['a\tb', 'x', 'é']),
        ('wiki_00', '<doc id="1" title="Title">\nTitle\n\nA b. C d.\n</doc>\n', ['A b.', 'C d.']),
        ('lines.txt', 'a fine film\nwe like it\n', ['a fine film', 'we like it']),
    ],
)
def test_texts_are_read_as_a_file_has_them(tmp_path, name, content, texts):
    assert texts_in(tmp_path, name, content) == texts


def test_of_squad_a_context_is_read_once(tmp_path):
    asked = [
        Question('1', 'a', 'b c', (('b', 0),)),
        Question('2', 'd', 'b c', ()),
        Question('3', 'e', 'f', ()),
    ]
    write_squad(tmp_path / 'dev.json', asked)
    assert sorted(read_texts(tmp_path / 'dev.json')) == ['a', 'b c', 'd', 'e', 'f']


@pytest.mark.parametrize(
    'name, content, said',
    [
        ('data.jsonl', '{"a": "b"}\n{"a"', 'data.jsonl: line 2: not JSON'),
        ('data.jsonl', '[1]\n', 'data.jsonl: line 1: wanted a JSON object, found list'),
        ('data.json', '{}', "data.json: not in SQuAD's format.*; take it out, or make it JSON lines"),
    ],
)
def test_what_is_not_what_its_ending_says_is_refused_by_name(tmp_path, name, content, said):
    with pytest.raises(ValueError, match=said):
        texts_in(tmp_path, name, content)


def test_words_are_counted_over_all_files(tmp_path):
    (tmp_path / 'a.tsv').write_text('sentence\tlabel\nA bb\t1\n', encoding='utf-8')
    (tmp_path / 'b.jsonl').write_text('{"text": "a, c"}\n', encoding='utf-8')
    words = read_words(sorted(tmp_path.iterdir()), VOCABULARY)
    assert words == Counter({'a': 2, 'bb': 1, ',': 1, 'c': 1})


def test_files_without_a_word_are_refused(tmp_path):
    (tmp_path / 'empty.txt').write_text('\n \n', encoding='utf-8')
    with pytest.raises(ValueError, match='empty.txt: no text in 1 file'):
        read_words([tmp_path / 'empty.txt'], VOCABULARY)
