"""Tasks as data: every file is one, and the official layout is read as it is, with its oddities."""

import json

import gluonnlp
import pytest
from helpers.tiny import ROOT

from gluon_optbert.architecture.heads import Head
from gluon_optbert.tasks.metrics import METRICS
from gluon_optbert.tasks.task import find_task, known_head, read_task

TASK_FILES = sorted((ROOT / 'gluon_optbert' / 'tasks' / 'descriptions').glob('*.json'))


@pytest.fixture
def written(tmp_path):
    """Writes the file of RTE with other values."""
    values = json.loads((ROOT / 'gluon_optbert' / 'tasks' / 'descriptions' / 'rte.json').read_text())

    def write(**changes):
        (tmp_path / 'task.json').write_text(json.dumps({**values, **changes}))
        return tmp_path / 'task.json'

    return write


@pytest.mark.parametrize('path', TASK_FILES, ids=lambda path: path.stem)
def test_task_file_is_whole(path):
    task = read_task(path)
    assert task.head.task == task.name and set(task.metrics) <= set(METRICS)
    assert hasattr(gluonnlp.data, task.gluonnlp)
    files = task.train, *task.dev.values(), *task.test, *task.test.values()
    assert all(name.endswith('.tsv') for name in files)


def test_label_orders_are_the_canonical_ones():
    assert find_task('MNLI').head.labels == ('contradiction', 'entailment', 'neutral')
    assert find_task('RTE').head.labels == find_task('QNLI').head.labels == ('entailment', 'not_entailment')
    assert all(find_task(name).head.labels == ('0', '1') for name in ('CoLA', 'SST-2', 'MRPC', 'QQP', 'WNLI'))
    assert find_task('STS-B').head.kind == 'regression'


def test_name_is_found_however_it_is_written():
    assert all(find_task(name).name == 'SST-2' for name in ('SST-2', 'sst2', 'Sst_2'))
    with pytest.raises(ValueError, match='no task; there are CoLA, MNLI'):
        find_task('IMDb')


def test_users_own_task_file_is_read(written):
    path = written(name='Mine', labels=['x', 'y', 'z'])
    assert find_task(path).head.labels == ('x', 'y', 'z') and find_task(str(path)).name == 'Mine'
    with pytest.raises(FileNotFoundError):
        read_task(path.with_name('none.json'))


@pytest.mark.parametrize(
    'change, said',
    [
        ({'format': 2}, 'format must be 1, found 2'),
        ({'metrics': ['bleu']}, "metric 'bleu' is none of"),
        ({'metrics': ['f1'], 'labels': ['a', 'b', 'c']}, "metric 'f1' goes with two labels, and there are 3"),
        ({'head': 'regression', 'labels': []}, "'accuracy' goes with a classification, .* is regression"),
        (
            {'head': 'question_answering', 'labels': [], 'metrics': []},
            'task.json: a task of a table has a head of .*, found question_answering',
        ),
        ({'fields': []}, 'fields List should have at least 1'),
        ({'extra': 1}, 'extra Extra inputs'),
        ({'names': ['a']}, 'task.json: head: 2 labels have as many different names'),
        ({'labels': [0, 1]}, 'labels.0 must be a valid string, found 0; labels.1'),
        ({'test': {'train': 'RTE/test.tsv'}}, "'train' is the name of two sets"),
        ({'name': ' '}, 'name String should match'),
        ({'fields': ['a', 'a']}, 'one column is named twice'),
        ({'labels': [], 'names': ['no', 'yes']}, 'names has no labels to name'),
    ],
)
def test_task_file_that_is_wrong_is_refused(written, change, said):
    with pytest.raises(ValueError, match=said):
        read_task(written(**change))


@pytest.mark.parametrize('name', ['../evil.tsv', 'x\\y.tsv', '', '.hidden', 'a\nb.tsv', '\ud800', 'ü' * 128])
def test_submission_without_a_plain_file_name_is_refused(written, name):
    with pytest.raises(ValueError) as error:
        read_task(written(test={'RTE.tsv': 'RTE/test.tsv', name: 'RTE/test.tsv'}))
    assert str(error.value).endswith(f'test: {name!r:.80} is no plain file name; call it predictions.tsv')


def test_head_of_a_known_task_gets_its_names_and_columns():
    known = known_head(Head('classification', ('0', '1'), 'MRPC'))
    assert known.names == ('not_equivalent', 'equivalent')
    assert known.columns == ('#1 String', '#2 String', 'Quality')
    for head in (
        Head('classification', ('0', '1'), 'Reviews'),  # no task of the package
        Head('classification', ('no', 'yes'), 'MRPC'),  # other labels
        Head('classification', ('0', '1'), 'MRPC', ('a', 'b')),  # has names
    ):
        assert known_head(head) is head
