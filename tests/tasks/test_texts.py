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


@pytest.mark.parametrize(
    'content, texts',
    [
        ('sentence\tlabel\na b\t1\nc "d\t0\n', ['a b', 'c "d']),
        ('index\tsentence\n0\ta b\n', ['a b']),
        ('Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t8\t9\ta\tb\n', ['a', 'b']),
        ('id\tquestion\tsentence\tlabel\n7\ta\tb\tno\n8\tc\n', ['a', 'b', 'c']),
        ('a b\t1\nc\t0\n', ['a b', '1', 'c', '0']),
    ],
)
def test_of_a_table_the_columns_of_text_are_read_or_all(tmp_path, content, texts):
    assert texts_in(tmp_path, 'data.tsv', content) == texts


def test_of_squad_a_context_is_read_once(tmp_path):
    asked = [
        Question('1', 'a', 'b c', (('b', 0),)),
        Question('2', 'd', 'b c', ()),
        Question('3', 'e', 'f', ()),
    ]
    write_squad(tmp_path / 'dev.json', asked)
    assert sorted(read_texts(tmp_path / 'dev.json')) == ['a', 'b c', 'd', 'e', 'f']


def test_of_json_lines_every_text_is_read(tmp_path):
    lines = [{'text': 'a\tb', 'id': 3, 'label': 'x'}, {'question': 'é', 'more': ['c']}]
    content = '\n\n'.join(json.dumps(line) for line in lines) + '\n'
    assert texts_in(tmp_path, 'data.jsonl', content) == ['a\tb', 'x', 'é']


def test_raw_text_is_read_in_its_layout(tmp_path):
    article = '<doc id="1" title="Title">\nTitle\n\nA b. C d.\n</doc>\n'
    assert texts_in(tmp_path, 'wiki_00', article) == ['A b.', 'C d.']
    assert texts_in(tmp_path, 'lines.txt', 'a fine film\nwe like it\n') == ['a fine film', 'we like it']


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
