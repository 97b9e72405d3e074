"""Public BERTs bring their published number of steps, and nothing else does."""

import dataclasses

import pytest
from helpers.checkpoints import write_hugging_face
from helpers.tiny import network

from gluon_optbert.architecture.named import bert_base
from gluon_optbert.importing.convert import KNOWN, ImportRecipe, describe, import_checkpoint, known, name_of
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.runs.recipe import fill


@pytest.mark.parametrize(
    'source, name',
    [
        ('downloads/bert-base-uncased', 'bert-base-uncased'),
        ('downloads/bert-base-uncased/', 'bert-base-uncased'),
        ('hub/models--google-bert--bert-base-uncased/snapshots/86b5e09', 'bert-base-uncased'),
        ('uncased_L-12_H-768_A-12/bert_model.ckpt', 'uncased_L-12_H-768_A-12'),
        (
            'models/bert_12_768_12_book_corpus_wiki_en_uncased-75cc780f.params',
            'bert_12_768_12_book_corpus_wiki_en_uncased',
        ),
    ],
)
def test_a_known_bert_is_known_under_every_name_of_it(source, name):
    assert name_of(source) == name
    assert known(source, KNOWN[name]) == name


def test_widths_or_a_name_alone_are_not_enough():
    assert known('downloads/bert-base-uncased', bert_base()) is not None
    for architecture in (dataclasses.replace(bert_base(), max_length=128), bert_base(6)):
        assert known('downloads/bert-base-uncased', architecture) is None
    for name in ('multiberts-seed_0', 'bert-base-multilingual-cased'):
        assert known(name, bert_base()) is None


@pytest.mark.parametrize(
    'name, given, steps',
    [('tiny-bert', None, 1_000_000), ('tiny-bert', 0, 0), ('other', None, 0), ('other', 9, 9)],
)
def test_an_import_records_the_published_steps_unless_others_are_given(
    tmp_path, monkeypatch, name, given, steps
):
    monkeypatch.setitem(KNOWN, 'tiny-bert', network())
    values = {'source': str(write_hugging_face(tmp_path / name)), 'output': str(tmp_path / 'model')}
    recipe = fill(ImportRecipe, values if given is None else {**values, 'trained_steps': given})
    said = describe(import_checkpoint(recipe), recipe)
    assert read_model(tmp_path / 'model').progress.trained_steps == steps
    noted = any('this is tiny-bert, which was pre-trained for 1,000,000 steps' in line for line in said)
    assert noted == (steps == 1_000_000)
