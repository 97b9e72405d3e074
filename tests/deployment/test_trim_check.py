"""tools/verify.py on a trimmed vocabulary: it passes what is equal, and fails loudly at what is not."""

import dataclasses
import shutil

import numpy as np
import pytest
from helpers.commands import call
from helpers.trimmed import write_whole

import gluon_optbert as opt
from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment import trim_check
from gluon_optbert.deployment.export import NotEqual
from gluon_optbert.deployment.trim_check import TOLERANCE
from gluon_optbert.deployment.verify import VerifyRecipe
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.text.tokenizer import TokenizerSettings
from gluon_optbert.text.trimming import TRIM


def check_trimmed(directory, **more):
    """The check of a directory with these settings."""
    return trim_check.check_trimmed(VerifyRecipe(run=directory, **more))


def trimmed_in(place, *, count=1, **more):
    """A folder with the whole network, the text, and the trimmed network."""
    whole = write_whole(place / 'whole', **more)
    opt.trim_vocabulary(model=whole, text=[place / 'text.txt'], output=place / 'trimmed', count=count)
    return place


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A network that was trimmed to tokens of two uses, so that some sentences split anew; only read."""
    return trimmed_in(tmp_path_factory.mktemp('trimmed'), count=2)


def test_every_output_is_within_the_tolerance(finished, tmp_path):
    for place, sequences in ((finished, 1), (trimmed_in(tmp_path / 'all'), 4)):
        checked = check_trimmed(place / 'trimmed')
        assert set(checked.differences) == {'encoded', 'pooled', 'next_sentence_scores', 'masked_scores'}
        assert all(0 <= value <= TOLERANCE for value in checked.differences.values())
        assert checked.sequences == sequences and checked.splits is None
        assert opt.verify(run=place / 'trimmed') == [checked.differences]
    checked = check_trimmed(trimmed_in(tmp_path / 'task', head=Head('question_answering')) / 'trimmed')
    assert list(checked.differences) == ['scores'] and checked.differences['scores'] <= TOLERANCE


def test_a_tokenizer_that_was_imported_as_it_is_is_said(finished, tmp_path):
    settings = TokenizerSettings(lowercase=True, strip_accents=True, as_is='the normalizer (NFKC)')
    for name in ('whole', 'trimmed'):
        saved = read_model(finished / name)
        saved.vocabulary.settings = settings
        extra = {TRIM: (finished / name / TRIM).read_bytes()} if name == 'trimmed' else {}
        write_model(tmp_path / name, saved, extra=extra)
    done = call('tools/verify.py', tmp_path / 'trimmed', '--model', tmp_path / 'whole')
    assert done.returncode == 0 and 'not read as by the tokenizer of the checkpoint: the norm' in done.stdout


def test_other_text_is_compared_and_its_splits_are_counted(finished, tmp_path):
    (tmp_path / 'other.tsv').write_text('sentence\tlabel\nthe cats\t1\nthe dog\t0\n', encoding='utf-8')
    checked = check_trimmed(finished / 'trimmed', text=[tmp_path / 'other.tsv'])
    assert checked.sequences == 1 and [one.word for one in checked.splits.examples] == ['dog']
    assert (checked.splits.tokens, checked.splits.tokens_gone) == (5, 1)


@pytest.mark.parametrize('name, token', [('word_embed.0.weight', 'the'), ('decoder.3.bias', '[MARK]')])
def test_a_weight_that_was_changed_is_found(finished, tmp_path, name, token):
    saved = read_model(finished / 'trimmed')
    value = saved.parameters[name].copy()
    value[saved.vocabulary[token]] += np.float32(0.01)
    parameters = {**saved.parameters, name: value}
    extra = {TRIM: (finished / 'trimmed' / TRIM).read_bytes()}
    write_model(tmp_path / 'changed', dataclasses.replace(saved, parameters=parameters), extra=extra)
    with pytest.raises(NotEqual, match='above 1e-06 of the largest value: encoded'):
        check_trimmed(tmp_path / 'changed')


def test_the_whole_network_may_have_moved_but_must_be_the_same(finished, tmp_path):
    shutil.copytree(finished, tmp_path / 'run')
    shutil.copytree(finished / 'whole', tmp_path / 'moved')
    record = (tmp_path / 'run' / 'trimmed' / TRIM).read_text()
    assert str(finished / 'whole') in record
    assert check_trimmed(tmp_path / 'run' / 'trimmed', model=tmp_path / 'moved').sequences == 1
    with pytest.raises(FileNotFoundError, match='nowhere: the network before trimming is not here.*--model'):
        check_trimmed(finished / 'trimmed', model=tmp_path / 'nowhere')
    other = read_model(tmp_path / 'moved')
    other.parameters['pooler.bias'][0] += 1
    write_model(tmp_path / 'moved', other, replace=True)
    with pytest.raises(ValueError, match='moved: not the network that .*trimmed was trimmed from'):
        check_trimmed(finished / 'trimmed', model=tmp_path / 'moved')


def test_text_of_which_nothing_stayed_or_that_is_gone_is_refused(finished, tmp_path):
    with pytest.raises(FileNotFoundError, match='no such file or directory of text; give text as --text'):
        check_trimmed(finished / 'trimmed', text=[tmp_path / 'nowhere'])
    (tmp_path / 'text.txt').write_text('dog\n\ndogs dog\n')
    with pytest.raises(ValueError, match='no sentence whose tokens all stayed; give others as --text'):
        check_trimmed(finished / 'trimmed', text=[tmp_path / 'text.txt'])
