"""Collections of texts: what is learnt from, and which pairs are held out with their scores."""

import json

import pytest

from gluon_optbert.tasks.collection import read_collection, read_pairs

SCORED = 'a cat,the cat,4.5\na dog,a log,0.0\n'


def write(directory, **files):
    """Files by their names, with two underscores in place of the dot and one in place of a slash."""
    for name, content in files.items():
        path = directory / name.replace('__', '.').replace('_', '/')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory


def names_and_scores(collection):
    return {name: pairs.labels.tolist() for name, pairs in collection.scored.items()}


def test_all_texts_of_all_files_are_learnt_from_once(tmp_path):
    write(
        tmp_path,
        a__txt='one\n\ntwo\ttabs\none\n',
        b__csv='x y,"z, z"\none,w\n',
        c__tsv='sentence1\tsentence2\tlabel\np\tq\tentailment\n',
        d__jsonl=json.dumps({'title': 'no', 'text': 'four'}) + '\n',
        deeper_e__txt='five\n',
        README__md='not a text\n',
        notes__json='{}',
    )
    found = read_collection(tmp_path)
    assert found.texts == ('one', 'two\ttabs', 'x y', 'z, z', 'w', 'p', 'q', 'four', 'five')
    assert not found.scored


def test_blank_lines_above_a_header_are_no_header(tmp_path):
    write(tmp_path, a__csv='\ntext,label\nseven,x\n', b__tsv='\n\nsentence1\tsentence2\tscore\np\tq\t1.5\n')
    found = read_collection(tmp_path)
    assert found.texts == ('seven',) and names_and_scores(found) == {'b': [1.5]}


@pytest.mark.parametrize(
    'content, texts',
    [
        ('text,label\rseven,x\reight,y\r', ('seven', 'eight')),
        ('"one\nmore, and",two\nthree,four\n', ('one\nmore, and', 'two', 'three', 'four')),
    ],
)
def test_the_first_row_of_csv_ends_where_csv_says(tmp_path, content, texts):
    (tmp_path / 'a.csv').write_bytes(content.encode())
    assert read_collection(tmp_path).texts == texts


def test_a_table_called_dev_is_held_out_and_other_scores_are_not_read(tmp_path):
    write(
        tmp_path,
        sick_test__csv=SCORED,
        sts_validation__csv=SCORED,
        train__csv='a cat,one,3.5\ntwo,three,1\n',
        other__txt='the cat\nfour\n',
    )
    found = read_collection(tmp_path)
    assert names_and_scores(found) == {'sts-validation': [4.5, 0.0], 'sick-test': [4.5, 0.0]}
    assert next(iter(found.scored)) == 'sts-validation'
    assert set(found.texts) == {'one', 'two', 'three', 'four'}  # and none of a pair that is held out


def test_all_pairs_with_scores_are_held_out_where_no_table_is_called_dev(tmp_path):
    write(
        tmp_path, pairs__csv=SCORED, more__jsonl='{"text": "a", "pair": "b", "label": 0.5}\n', a__txt='one\n'
    )
    found = read_collection(tmp_path)
    assert names_and_scores(found) == {'more': [0.5], 'pairs': [4.5, 0.0]} and found.texts == ('one',)


@pytest.mark.parametrize('share, held', [(0.1, 2), (0.5, 10)])
def test_a_share_is_held_out_where_all_texts_have_scores(tmp_path, share, held):
    write(tmp_path, pairs__csv=''.join(f'one {i},two {i},{i / 2}\n' for i in range(20)))
    found = read_collection(tmp_path / 'pairs.csv', held_out=share)
    assert [len(pairs) for pairs in found.scored.values()] == [held] and [*found.scored] == ['pairs']
    assert len(found.texts) == 2 * (20 - held)


@pytest.mark.parametrize(
    'content, more, labels',
    [
        ('a,b,1\nc,d,0\n', {}, None),  # classes, as in fine-tuning
        ('a,b,1\nc,d,0\n', {'kind': 'regression'}, [1.0, 0.0]),
        ('a,b,0.5\nc,d,0\n', {'kind': 'classification'}, None),
        ('a,0.5\nc,1\n', {}, None),  # of no pair
        ('left,right,likeness\na,b,1\nc,d,0\n', {'text': ('left', 'right'), 'label': 'likeness'}, [1.0, 0.0]),
        ('sentence1,sentence2,score\na,b,1.5\nc,d,0\n', {}, [1.5, 0.0]),
        ('sentence1,sentence2,gold_label\na,b,neutral\nc,d,-\n', {}, None),
    ],
)
def test_scores_are_numbers_with_a_fraction_or_what_is_named(tmp_path, content, more, labels):
    pairs = read_pairs(write(tmp_path, a__csv=content) / 'a.csv', **more)
    assert (None if pairs.labels is None else pairs.labels.tolist()) == labels
    assert pairs.texts[0][0] == 'a' and len(pairs) == 2


@pytest.mark.parametrize(
    'files, more, message',
    [
        ({'a__csv': 'left,right,likeness\na,b,1\n'}, {}, 'if it is a header, name its columns with --text'),
        ({'a__csv': 'l,r,s\na,b,high\n'}, {'text': ('l', 'r'), 'label': 's'}, "line 2 has 'high' as 's'"),
        ({'a__jsonl': '{"body": "a"}\n'}, {}, "none of the columns 'body' is known as text"),
        ({'a__csv': SCORED, 'a__tsv': 'a\tb\t0.5\n'}, {}, 'two tables with scores are called a'),
        ({'README__md': 'text\n'}, {}, r'no file in there ends with \.txt, \.csv, \.tsv, \.jsonl'),
    ],
)
def test_what_is_not_clear_is_refused(tmp_path, files, more, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_collection(write(tmp_path, **files), **more)
