"""tools/trim_vocabulary.py: what it says, and that what it writes is trained, pruned and compared."""

import pytest
from helpers.commands import refused, succeed
from helpers.tiny import contents, write_shards
from helpers.trimmed import TOKENS, write_whole

from gluon_optbert.network.saved_model import read_model


@pytest.fixture
def place(tmp_path):
    """A folder with a model directory and a file of text."""
    write_whole(tmp_path / 'whole', max_length=32)
    return tmp_path


def trim(place, *words):
    """The words of a command that trims."""
    named = ('--model', place / 'whole', '--text', place / 'text.txt', '--output', place / 'trimmed')
    return 'tools/trim_vocabulary.py', *named, *words


def test_it_says_what_went_and_how_the_text_splits(place):
    said = succeed(*trim(place, '--count', 2))
    left = len(read_model(place / 'trimmed').vocabulary)
    for line in (
        f'tokens: {len(TOKENS)} before, {left} left (',
        'text: 21 words, ',
        '  dogs (1): dog ##s -> d ##o ##g ##s\n',
        'unknown words: 0 before, 0 now\n',
        'next: python tools/verify.py ',
        f'--vocab {place / "trimmed" / "vocab.txt"} ',
    ):
        assert line in said
    said = succeed('tools/verify.py', place / 'trimmed', '--text', place / 'text.txt')
    assert 'encoded: largest difference ' in said and '  dogs (1): dog ##s -> ' in said
    assert 'verified: 1 sequence whose tokens all stayed, within 1e-06 of the network' in said


def test_bad_input_is_one_line_and_nothing_is_written(place):
    before = contents(place)
    assert 'nowhere: no such file or directory of text' in refused(*trim(place, '--text', 'nowhere'))
    assert contents(place) == before


def test_flags_of_a_trimmed_vocabulary_go_with_no_run(tmp_path):
    assert '--text goes with a model with a trimmed' in refused('tools/verify.py', tmp_path, '--text', 'x')


def test_shards_of_the_whole_vocabulary_are_refused_with_the_way_out(place):
    succeed(*trim(place))
    write_shards(place / 'shards')
    words = ('--model', place / 'trimmed', '--shards', place / 'shards', '--output', place / 'out')
    said = refused('pretrain/run_pretraining.py', *words, '--steps', 1)
    assert 'make shards with the --vocab of the model' in said


def test_trimmed_network_is_pruned_on_its_shards_and_compared_with_the_whole_one(place):
    succeed(*trim(place, '--count', 2))
    model, short = place / 'trimmed', ('--batch-size', 4, '--evaluation-limit', 4)
    vocab, shards = model / 'vocab.txt', place / 'shards'
    sizes = ('--max-seq-length', 16, '--held-out', 0.5, '--layout', 'sentences', '--next-sentence', 'false')
    succeed(
        'pretrain/make_shards.py', '--input', place / 'text.txt', '--vocab', vocab, '--output', shards, *sizes
    )
    steps = ('--alpha-steps', 1, '--recovery-steps', 1, '--rounds', 1, '--target', 0.8)
    learning = ('--model', model, '--shards', shards, *short)
    succeed('pretrain/run_prune.py', *learning, *steps, '--output', place / 'pruned')
    assert 'verified: 1 round' in succeed('tools/verify.py', place / 'pruned')
    data = ('--data', shards, '--probes', 'false', '--output', place / 'compared')
    said = succeed('tools/compare_models.py', place / 'whole', model, *data)
    assert 'CKA of whole with trimmed: 1.000 behind the last layers, 1.000 behind' in said
