"""Public BERTs bring their published number of steps, and nothing else does."""

import dataclasses
import json

import pytest
from helpers.checkpoints import write_hugging_face
from helpers.tiny import network, vocabulary

from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.importing.convert import KNOWN, ImportRecipe, describe, import_checkpoint, known, name_of
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.runs.recipe import RecipeError, fill


@pytest.mark.parametrize(
    'source, name',
    [
        ('downloads/bert-base-uncased', 'bert-base-uncased'),
        ('downloads/bert-base-uncased/', 'bert-base-uncased'),
        ('hub/models--google-bert--bert-base-uncased/snapshots/86b5e09', 'bert-base-uncased'),
        ('hub/models--bert-base-uncased/snapshots/86b5e09', 'bert-base-uncased'),
        ('uncased_L-12_H-768_A-12/bert_model.ckpt', 'uncased_L-12_H-768_A-12'),
        (
            'models/bert_12_768_12_book_corpus_wiki_en_uncased-75cc780f.params',
            'bert_12_768_12_book_corpus_wiki_en_uncased',
        ),
        ('bert_12_768_12_book_corpus_wiki_en_cased', 'bert_12_768_12_book_corpus_wiki_en_cased'),
    ],
)
def test_a_known_bert_is_known_under_every_name_of_it(source, name):
    assert name_of(source) == name
    assert known(source, KNOWN[name]) == name


def test_widths_or_a_name_alone_are_not_enough():
    assert known('downloads/bert-base-uncased', bert_base()) is not None
    for architecture in (
        dataclasses.replace(bert_base(), vocab_size=28996),
        dataclasses.replace(bert_base(), max_length=128),
        bert_base(6),
        resolve('l6_h384_a12'),
    ):
        assert known('downloads/bert-base-uncased', architecture) is None
    for name in ('all-MiniLM-L6-v2', 'multiberts-seed_0', 'bert-base-multilingual-cased', 'models/base'):
        assert known(name, bert_base()) is None


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """One of the tests' networks, under a name that is known while the test lasts."""
    architecture = dataclasses.replace(network(), vocab_size=len(vocabulary()))
    monkeypatch.setitem(KNOWN, 'tiny-bert', architecture)

    def write(name):
        write_hugging_face(tmp_path / name)
        return tmp_path / name

    return write


def imported(source, output, **more):
    recipe = fill(ImportRecipe, {'source': str(source), 'output': str(output), **more})
    return describe(import_checkpoint(recipe), recipe), read_model(output)


def test_an_import_records_the_published_steps_and_says_so(checkpoint, tmp_path):
    said, model = imported(checkpoint('tiny-bert'), tmp_path / 'model')
    assert model.progress.trained_steps == model.progress.earlier_steps == 1_000_000
    assert any(
        'this is tiny-bert, which was pre-trained for 1,000,000 steps (Devlin' in line for line in said
    )
    said, model = imported(checkpoint('other'), tmp_path / 'unknown')
    assert model.progress.trained_steps == 0 and not any('pre-trained' in line for line in said)
    assert 'earlier_steps' not in json.loads((tmp_path / 'unknown' / 'progress.json').read_text())


def test_steps_that_are_given_count_instead(checkpoint, tmp_path):
    for name, steps in (('tiny-bert', 7), ('tiny-bert', 0), ('other', 9)):
        place = tmp_path / f'{name}-{steps}'
        said, model = imported(checkpoint(name), place, trained_steps=steps)
        assert model.progress.trained_steps == steps and not any('pre-trained' in line for line in said)
    with pytest.raises(RecipeError, match='trained_steps must be '):
        fill(ImportRecipe, {'source': 'a', 'output': 'b', 'trained_steps': -1})
