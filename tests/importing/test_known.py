"""Public BERTs bring their published number of steps, and nothing else does."""

import dataclasses

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


def test_an_import_records_the_published_steps_unless_others_are_given(checkpoint, tmp_path):
    for number, (name, given, steps) in enumerate(
        [
            ('tiny-bert', None, 1_000_000),
            ('tiny-bert', 7, 7),
            ('tiny-bert', 0, 0),
            ('other', None, 0),
            ('other', 9, 9),
        ]
    ):
        more = {} if given is None else {'trained_steps': given}
        said, model = imported(checkpoint(name), tmp_path / f'model-{number}', **more)
        assert model.progress.trained_steps == steps
        noted = any('this is tiny-bert, which was pre-trained for 1,000,000 steps' in line for line in said)
        assert noted == (steps == 1_000_000)
    with pytest.raises(RecipeError, match='trained_steps must be '):
        fill(ImportRecipe, {'source': 'a', 'output': 'b', 'trained_steps': -1})
