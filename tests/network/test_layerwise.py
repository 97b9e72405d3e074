"""States of a network that runs layer by layer."""

import dataclasses

import numpy as np
import pytest
from helpers.networks import UNEVEN, random_batches
from helpers.tiny import network, random_parameters

from gluon_optbert.network.running import layer_norm_scales, random_feed, real_tokens
from gluon_optbert.network.saved_model import SavedModel


def saved(architecture, **more):
    return SavedModel(architecture, {**random_parameters(architecture), **more}, None)


def test_scale_of_every_layer_norm_is_that_of_its_inputs():
    model = saved(UNEVEN)
    (batch,) = batches = random_batches(UNEVEN, 1, size=6)
    kept, parameters = np.array([0, 2, 3, 5]), model.parameters
    scales = layer_norm_scales(model, kept, batches)
    assert list(scales) == ['embedding', 'attention 1', 'layer 1', 'attention 2', 'attention 3', 'layer 3']
    length = batch.input_ids.shape[1]
    sums = parameters['word_embed.0.weight'][batch.input_ids]
    sums = sums + parameters['token_type_embed.0.weight'][batch.token_types]
    sums = sums + parameters['encoder.position_weight'][:length]
    sums = sums[np.arange(length) < batch.valid_length[:, np.newaxis]]
    before, after = (np.square(part.std(axis=1)).mean() for part in (sums, sums[:, kept]))
    assert scales['embedding'] == pytest.approx(np.sqrt(before / after), rel=1e-5)
    assert set(layer_norm_scales(model, np.arange(6), batches).values()) == {1.0}


def test_instances_that_only_fill_a_batch_have_no_tokens():
    (batch,) = random_batches(UNEVEN, 1, size=3)
    weights = np.array([1, 0, 1], np.float32)
    real = real_tokens(dataclasses.replace(batch, instance_weights=weights)).reshape(-1, 3)
    assert real.sum(axis=0).tolist() == (batch.valid_length * weights).tolist()


def test_a_unit_that_carries_the_variance_of_one_layer_is_found_there():
    architecture = network()
    bias = np.zeros(8, np.float32)
    bias[3] = 1000
    model = saved(architecture, **{'encoder.transformer_cells.1.ffn.ffn_2.bias': bias})
    batches = random_batches(architecture, 1, size=6)
    scales = layer_norm_scales(model, np.delete(np.arange(8), 3), batches)
    assert scales['layer 2'] > 50 and all(scales[name] < 3 for name in scales if name != 'layer 2')
    without_another = layer_norm_scales(model, np.delete(np.arange(8), 4), batches)
    assert without_another['layer 2'] == pytest.approx((7 / 64) ** 0.5 / (6 / 49) ** 0.5, rel=0.02)


@pytest.mark.parametrize('length', [1, 2, 5])
def test_random_inputs_lie_within_their_length(length):
    feed = random_feed(UNEVEN, batch=4, length=length)
    assert feed['valid_length'].max() == length and feed['masked_positions'].max() < length


def test_a_factorized_embedding_has_a_width_of_its_own():
    architecture = network(e=4)
    scales = layer_norm_scales(saved(architecture), np.arange(4), random_batches(architecture, 1, size=6))
    assert 'embedding' not in scales and 'layer 1' in scales
