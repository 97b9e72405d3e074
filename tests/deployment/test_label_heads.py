"""Several labels at a time, and labels of words: trained, pruned, verified, exported, predicted, scored and
served.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.exported import with_head
from helpers.tiny import network, write_saved_model
from pydantic import TypeAdapter

import gluon_optbert as opt
from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.notebook import predictor_of
from gluon_optbert.serving.bodies import body_of, instances_of
from gluon_optbert.serving.settings import ServiceSettings
from gluon_optbert.tasks.examples import labels_of, task_of_head

pytestmark = pytest.mark.filterwarnings('error:.*is not used by any computation')  # of MXNet
PARTS = (('train', 200, 0), ('dev', 60, 1))  # with their sizes and seeds
LETTERS, FIRST, THIRDS = 'abcdefghi', set('abc'), ('first', 'middle', 'rest')


def tagged(count, seed):
    """Letters, of which those of the first third are of one kind of entity; neighbours are one entity."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        words = random.choice(list(LETTERS), random.randint(1, 6)).tolist()
        inside = [word in FIRST for word in words]
        tags = [
            'O' if not own else 'I-first' if i and inside[i - 1] else 'B-first'
            for i, own in enumerate(inside)
        ]
        yield words, tags


def write_words(directory):
    directory.mkdir()
    for part, count, seed in PARTS:
        lines = [f'{word} {tag}\n' for pair in tagged(count, seed) for word, tag in [*zip(*pair), ('', '')]]
        (directory / f'{part}.conll').write_text(''.join(line.lstrip(' ') for line in lines))
    task = {'name': 'letters', 'head': 'token_classification', 'labels': ['O', 'B-first', 'I-first']}
    return task, {'fields': ['words'], 'label': 'tags', 'metrics': ['entity_f1', 'tag_accuracy']}, 'conll'


def write_labels(directory):
    directory.mkdir()
    for part, count, seed in PARTS:
        rows = [
            {'text': ' '.join(words), 'label': sorted({THIRDS[LETTERS.index(word) // 3] for word in words})}
            for words, _ in tagged(count, seed)
        ]
        (directory / f'{part}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    task = {'name': 'thirds', 'head': 'multi_label', 'labels': list(THIRDS)}
    return task, {'fields': ['text'], 'label': 'label', 'metrics': ['f1_micro', 'exact_match']}, 'jsonl'


@pytest.fixture(scope='module', params=[write_words, write_labels])
def journey(request, tmp_path_factory):
    """A fine-tuned network, a run that pruned it, and its data."""
    place = tmp_path_factory.mktemp('heads')
    task, reading, ending = request.param(place / 'data')
    files = {'train': f'train.{ending}', 'dev': {'dev': f'dev.{ending}'}, 'test': {}}
    same = {'format': 1, 'index': 'index', 'headerless': None, 'incomplete_rows': False, 'gluonnlp': ''}
    (place / 'task.json').write_text(json.dumps({**same, **task, **reading, **files}))
    common = {'data': place / 'data', 'batch_size': 8}
    base = write_saved_model(place / 'base', architecture=network(h=16))
    tuned = opt.finetune_glue(
        **common,
        model=base,
        output=place / 'tuned',
        max_length=12,
        epochs=6,
        learning_rate=0.004,
        dropout=0.0,
    )
    pruned = opt.prune_task(
        **common,
        model=tuned,
        output=place / 'pruned',
        target=0.7,
        rounds=1,
        method='fisher',
        teacher='parent',
        steps=16,
        learning_rate=0.0027,
        prune='akvf',
    )
    return tuned, pruned, place / 'data' / f'dev.{ending}', place


def test_the_head_is_learnt_pruned_and_verified(journey):
    tuned, pruned, dev, _ = journey
    decisive = tuned.result.metric
    assert tuned.result.mean[decisive] > max(80, tuned.result.majority[decisive] + 5)
    assert pruned.rounds[-1].recovered.value > 60 and pruned.rounds[-1].flops < 0.75 * pruned.rounds[0].flops
    assert max(value for name, value in opt.verify(run=pruned)[0].items() if name != 'round') < 1e-5
    assert opt.score(tuned, dev)[decisive.partition('/')[2]] == pytest.approx(tuned.result.mean[decisive])


def test_exports_predict_what_the_network_predicts(journey, tmp_path):
    _, pruned, dev, _ = journey
    measured = opt.export(pruned, tmp_path / 'deploy', onnx=True)
    assert all(value < 1e-5 for values in measured.values() for value in values.values())
    assert opt.score(tmp_path / 'deploy', dev) == opt.score(pruned, dev)
    opt.export(pruned, tmp_path / 'hub', format='transformers')
    opt.import_checkpoint(source=str(tmp_path / 'hub'), output=tmp_path / 'back')
    head = opt.read_model(tmp_path / 'back').head
    assert (head.kind, head.labels) == (pruned.model.head.kind, pruned.model.head.labels)
    opt.export(pruned, tmp_path / 'optimum', format='onnx')


def test_a_sentence_is_tagged_by_its_characters():
    head = Head('token_classification', ('O', 'B-town', 'I-town'))
    predictor = predictor_of(with_head(network(max_length=8), head))
    text = ' a b, (c). '
    whole, same = predictor.predict([text, Instance('a b , ( c ) .', words=tuple('ab,(c).'))])
    assert whole.words == same.words == tuple('ab,(c).') and whole.tags == same.tags  # in two parts
    for entity in whole.entities:
        assert text[entity.start : entity.end] == entity.text and 0 < entity.probability <= 1
    for labels in (('M', 'town'), ('town', 'M')):  # a letter is one of the kinds
        letters = Head('token_classification', labels)
        found = next(predictor_of(with_head(network(max_length=8), letters)).predict(['a']))
        assert [entity.label for entity in found.entities] == [*found.tags]
    empty = next(predictor.predict(['  ']))
    assert (empty.words, empty.entities) == ((), ())
    body = TypeAdapter(body_of(head, ServiceSettings()))
    assert instances_of(body.validate_python({'text': 'a b'})) == [Instance('a b')]
    with pytest.raises(ValueError, match='two texts'):
        list(predictor.predict([('a', 'b')]))


def test_labels_of_a_cell():
    head = Head('multi_label', ('news', 'sport', 'town'), columns=('text', 'label'))
    cells = [(1, 'sport, town'), (2, ''), (3, ['news']), (4, 'news|TOWN')]
    labels = labels_of(task_of_head(head, Path('x.csv')), cells, 'x')
    assert labels.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 0, 1]]
