"""Transformers itself loads, runs, fine-tunes and saves what is exported for it.

PEER_TRANSFORMERS names interpreters of environments with Torch and Transformers, separated by colons."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.documents import code_of
from helpers.exported import ARCHITECTURES, CASES as HEADS_OF, outside, with_head
from helpers.tiny import ROOT

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.description import TRANSFORMERS_INPUTS, inputs_of
from gluon_optbert.deployment.engines import onnx_feed
from gluon_optbert.deployment.export import network_of
from gluon_optbert.deployment.library_exports import export_transformers
from gluon_optbert.network.running import random_feed, run

PEERS = [path for path in os.environ.get('PEER_TRANSFORMERS', '').split(os.pathsep) if path]
NAMES = [Path(path).parents[1].name for path in PEERS]
NETWORKS = {name: ARCHITECTURES[name] for name in ('even', 'uneven', 'factorised')}
BATCH, LENGTH = 4, 11
TOLERANCE = 1e-5  # of scores of about 1: float32 has 6e-8, and sums run in another order
# What is exported, the end of the class that loads it, and its outputs in the order of the network here.
CASES = {
    'encoder': ('encoder', '', ('last_hidden_state', 'pooler_output')),
    'pretraining': (
        'pretraining',
        'ForPreTraining',
        (None, None, 'seq_relationship_logits', 'prediction_logits'),
    ),
    'mlm': ('pretraining', 'ForMaskedLM', (None, None, None, 'logits')),
    'classification': ('classification', 'ForSequenceClassification', ('logits',)),
    'regression': ('regression', 'ForSequenceClassification', ('logits',)),
    'question answering': ('question answering', 'ForQuestionAnswering', ('start_logits', 'end_logits')),
}
TRAINED = ('mlm', 'classification', 'question answering')


def exported(place, architecture, head, kind):
    """Write an export and a batch with padding beside it.

    Returns
    -------
    outputs : list of np.ndarray
        What this package computes of it.
    mask : np.ndarray of bool, shape (batch, length)
        Where the batch has no padding.
    """
    saved = with_head(architecture, head)
    export_transformers(saved, place / 'out', head=kind)
    feed = random_feed(architecture, batch=BATCH, length=LENGTH, seed=3)
    feed['masked_positions'] = np.tile(np.arange(LENGTH), (BATCH, 1))
    mask = np.arange(LENGTH) < feed['valid_length'][:, np.newaxis]
    np.savez(place / 'feed.npz', **onnx_feed(feed, TRANSFORMERS_INPUTS))
    outputs = run(network_of(saved, kind), feed, inputs_of(kind))
    return outputs if head.pooled else [outputs[0][..., 0], outputs[0][..., 1]], mask


@pytest.fixture(scope='module', params=PEERS, ids=NAMES)
def peer(request, tmp_path_factory):
    """For every network and case: what this package computes, what Transformers does, and what it says."""
    base, jobs, results = tmp_path_factory.mktemp('peer'), [], {}
    for widths, architecture in NETWORKS.items():
        for case, (exports, auto, _) in CASES.items():
            place, (kind, head) = base / f'{widths} {case}', HEADS_OF[exports]
            place.mkdir()
            results[widths, case] = place, *exported(place, architecture, head, kind)
            jobs.append((str(place / 'out'), f'AutoModel{auto}', case in TRAINED))
    program = ROOT / 'tests' / 'helpers' / 'with_transformers.py'
    printed = outside(request.param, program, json.dumps(jobs), place=base)
    said = [json.loads(line) for line in printed.splitlines() if line.startswith('{"version"')]
    return {
        name: (wanted, dict(np.load(place / 'out.npz')), mask, words)
        for (name, (place, wanted, mask)), words in zip(results.items(), said)
    }


pytestmark = pytest.mark.skipif(not PEERS, reason='PEER_TRANSFORMERS names no interpreter')
EVERY = [(widths, case) for widths in NETWORKS for case in CASES]


@pytest.mark.parametrize('widths, case', EVERY)
def test_transformers_loads_every_weight_and_computes_the_same(peer, widths, case):
    wanted, outputs, mask, said = peer[widths, case]
    for name, value in zip(CASES[case][2], wanted):
        if name:
            assert outputs[name].shape == value.shape
            apart = np.abs(outputs[name] - value)
            assert (apart[mask] if value.shape[1] == LENGTH else apart).max() <= TOLERANCE
    assert said['eager'] <= TOLERANCE
    assert said['missing_keys'] == said['mismatched_keys'] == []
    if (widths, case) != ('even', 'mlm'):  # Transformers' own class has no pooler and no NSP head
        assert said['unexpected_keys'] == []


@pytest.mark.parametrize('widths', NETWORKS)
@pytest.mark.parametrize('case', TRAINED)
def test_trainer_fine_tunes_it_and_what_it_saves_is_loaded_again(peer, widths, case):
    trained = peer[widths, case][3]['trained']
    assert trained['moved'] > 100 * TOLERANCE
    assert trained['again'] == 0
    assert trained['missing_keys'] == trained['unexpected_keys'] == []
    assert np.isfinite(trained['loss'])


@pytest.mark.parametrize('python', PEERS, ids=NAMES)
@pytest.mark.parametrize('widths', NETWORKS)
def test_the_example_of_the_page_gives_the_scores_of_this_package(tmp_path, widths, python):
    saved = with_head(NETWORKS[widths], Head('classification', ('0', '1'), 'MRPC'))
    export_transformers(saved, tmp_path / 'hub-mrpc')
    (code,) = (code for code in code_of(ROOT / 'docs' / 'exports.md', 'python') if 'hub-mrpc' in code)
    if widths == 'even':
        code = code.replace(', trust_remote_code=True', '')
    code = code.replace('A man is eating.', 'a b').replace('Someone eats.', 'c d e')
    said = 'print(json.dumps([logits.tolist()[0], batch["input_ids"].tolist()]))\n'
    (tmp_path / 'example.py').write_text(f'import json\n{code}{said}')
    given = json.loads(outside(python, tmp_path / 'example.py', place=tmp_path).splitlines()[-1])
    words = saved.vocabulary
    ids = [words[token] for token in ['[CLS]', *'ab', '[SEP]', *'cde', '[SEP]']]
    assert given[1] == [ids]
    feed = {'input_ids': [ids], 'token_types': [[0] * 4 + [1] * 4], 'valid_length': [8]}
    network = network_of(saved, 'task')
    (wanted,) = run(network, {name: np.array(value) for name, value in feed.items()}, list(feed))
    np.testing.assert_allclose(given[0], wanted[0], atol=TOLERANCE, rtol=0)
