"""The encoder and the pre-training network around it: GluonNLP's numbers where it has the widths, and one
graph for all.
"""

import gc
import json
import weakref

import mxnet as mx
import numpy as np
import pytest
from helpers.examples import examples
from helpers.networks import EVEN, NETWORKS, SEEDS, TOLERANCE, UNEVEN, gluonnlp_model
from helpers.tiny import (
    network,
    outputs_of,
    random_alphas,
    random_inputs,
    random_parameters,
    relative_difference,
)
from hypothesis import given, strategies as st
from mxnet import autograd

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.parameters import H_GATES
from gluon_optbert.network.encoder import OptBERTEncoder
from gluon_optbert.network.gates import StreamLayerNorm
from gluon_optbert.network.inputs import INPUTS, TOKEN_INPUTS
from gluon_optbert.network.losses import PretrainingLoss
from gluon_optbert.network.model import build, named_parameters, read_parameters
from gluon_optbert.network.settings import NetworkSettings


@pytest.fixture
def pair(tmp_path):
    """Our network with random parameters, and GluonNLP's that has loaded them strictly."""
    ours = build(EVEN, random_parameters(EVEN))
    ours.save_parameters(str(tmp_path / 'ours.params'))
    theirs = gluonnlp_model()
    theirs.load_parameters(str(tmp_path / 'ours.params'))
    return ours, theirs


@pytest.mark.parametrize('lengths', [True, False], ids=['lengths', 'no lengths'])
def test_ungated_model_equals_gluonnlp(pair, lengths):
    ids, types, valid, positions = random_inputs(EVEN)
    inputs = [ids, types, valid if lengths else None, positions]
    ours, theirs = (outputs_of(model, inputs) for model in pair)
    assert relative_difference(ours, theirs) <= TOLERANCE
    ends = valid.asnumpy().astype(int)
    assert not lengths or all(not ours['encoded'][i, end:].any() for i, end in enumerate(ends))


def gradients(model, inputs):
    """Of a sum of all outputs with fixed random weights; by structural name."""
    loss = 0
    with autograd.record():
        for i, output in enumerate(model(*inputs)):
            weights = mx.nd.array(np.random.RandomState(i).standard_normal(output.shape))
            loss = loss + (output * weights).sum()
    loss.backward()
    return {
        name: parameter.grad().asnumpy()
        for name, parameter in model._collect_params_with_prefix().items()
        if parameter.grad_req != 'null'
    }


def gradient_difference(result, wanted):
    """The largest difference over the largest value of any gradient: some, such as that of a key's bias, are
    zero but for rounding."""
    assert result.keys() == wanted.keys()
    largest = max(np.abs(value).max() for value in wanted.values())
    return max(np.abs(result[name] - wanted[name]).max() for name in wanted) / largest


def test_gradients_equal_gluonnlp(pair):
    ours, theirs = (gradients(model, random_inputs(EVEN)) for model in pair)
    assert gradient_difference(ours, theirs) <= TOLERANCE
    assert all(np.abs(value).max() > 0 for value in ours.values())


def test_encoder_returns_what_gluonnlp_returns():
    options = {'output_all_encodings': True, 'output_attention': True}
    ours = OptBERTEncoder(EVEN, NetworkSettings(**options))
    theirs = gluonnlp_model(**options).encoder
    ours.initialize(mx.init.Normal(0.3))
    theirs.initialize()
    data, valid = mx.nd.random.normal(shape=(6, 3, 8)), mx.nd.array([6, 3, 1])
    theirs(data, None, valid)
    for name, parameter in theirs._collect_params_with_prefix().items():
        parameter.set_data(ours._collect_params_with_prefix()[name].data())
    (encoded, attention), (wanted, wanted_attention) = ours(data, None, valid), theirs(data, None, valid)
    # GluonNLP wraps each in a list
    wanted_attention = [array for arrays in wanted_attention for array in arrays]
    assert len(encoded) == len(wanted) and len(attention) == len(wanted_attention)
    for one, other in zip([*encoded, *attention], [*wanted, *wanted_attention]):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-4, atol=1e-5)


@given(NETWORKS, SEEDS, st.booleans())
@examples(10)
def test_hybridized_equals_eager(architecture, seed, gated):
    model = build(architecture, random_parameters(architecture, seed), gated=gated)
    if gated:
        model.gates.set(random_alphas(architecture, seed))
    inputs = random_inputs(architecture, seed=seed)
    hybridized = outputs_of(model, inputs)
    model.hybridize(False)
    assert relative_difference(outputs_of(model, inputs), hybridized) <= TOLERANCE


@pytest.mark.parametrize('gated', [False, True], ids=['ungated', 'gated'])
def test_trainable_network_computes_the_same(gated):
    inputs, result = random_inputs(UNEVEN), []
    for trainable in (True, False):
        model = build(UNEVEN, random_parameters(UNEVEN), gated=gated, trainable=trainable)
        result.append((outputs_of(model, inputs), gradients(model, inputs)))
    assert relative_difference(result[0][0], result[1][0]) <= TOLERANCE
    assert gradient_difference(result[0][1], result[1][1]) <= TOLERANCE


def test_padding_does_not_reach_the_outputs():
    ids, types, valid, positions = random_inputs(UNEVEN)
    model = build(UNEVEN, random_parameters(UNEVEN))
    before = outputs_of(model, [ids, types, valid, positions])
    padding = mx.nd.arange(ids.shape[1]).reshape((1, -1)) >= valid.reshape((-1, 1))
    after = outputs_of(model, [mx.nd.where(padding, 31 - ids, ids), types, valid, positions])
    assert padding.sum().asscalar() > 0
    assert all(np.array_equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize('trainable', [False, True])
def test_a_stream_without_a_unit_is_zero(trainable):
    """A draw of random gates may close them all."""
    norm = StreamLayerNorm(4, 1e-12, trainable=trainable)
    norm.initialize()
    data = mx.nd.array(np.random.RandomState(0).standard_normal((2, 3, 4)))
    assert np.array_equal(norm(data, mx.nd.zeros(4)).asnumpy(), np.zeros((2, 3, 4)))


def test_gates_take_an_empty_alpha_of_a_layer_without_filters_and_refuse_what_does_not_fit():
    gates, alphas = build(UNEVEN, gated=True).gates, random_alphas(UNEVEN)
    assert len(alphas['f1']) == 0
    gates.set(alphas)
    wrong = {**random_alphas(UNEVEN, 1), 'h': alphas['h'][:-1], 'q9': alphas['k1']}
    del wrong['k1']
    with pytest.raises(ValueError, match='h, k1, q9'):
        gates.set(wrong)
    assert all(np.array_equal(value, alphas[key]) for key, value in gates.values().items())


@pytest.mark.parametrize('gated', [False, True])
def test_a_network_goes_with_its_last_reference(gated):
    gc.disable()
    try:
        model = build(UNEVEN, random_parameters(UNEVEN), gated=gated)
        gradients(model, random_inputs(UNEVEN))
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize('head', [PRETRAINING, Head('regression')], ids=lambda head: head.kind)
def test_dropout_stands_where_bert_has_it(head):
    """Behind the embeddings, on the probabilities of attention, behind both blocks of a layer, and before the
    head of a task; UNEVEN has three layers, one of them without filters."""
    model = build(UNEVEN, head=head, dropout=0.1)
    outputs = model(*map(mx.sym.var, TOKEN_INPUTS if head.outputs else INPUTS))
    graph = json.loads(mx.sym.Group(outputs if isinstance(outputs, (list, tuple)) else [outputs]).tojson())
    dropped = sum(node['op'] == 'Dropout' for node in graph['nodes'])
    assert dropped == 1 + 3 + 3 + 2 + (head.outputs > 0)


def test_random_weights_follow_the_seed():
    one, again, other = (read_parameters(build(network(), seed=seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one['pooler.weight'], other['pooler.weight'])
    assert 0.01 < one['word_embed.0.weight'].std() < 0.03
    assert all((value == name.endswith('gamma')).all() for name, value in one.items() if value.ndim == 1)


def test_dropout_follows_mxnets_seed_and_rests_in_prediction():
    model = build(UNEVEN, random_parameters(UNEVEN), dropout=0.5)
    inputs = random_inputs(UNEVEN)
    plain = outputs_of(build(UNEVEN, random_parameters(UNEVEN)), inputs)
    assert relative_difference(outputs_of(model, inputs), plain) <= TOLERANCE
    result = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        with autograd.train_mode():
            result.append(outputs_of(model, inputs)['masked'])
    assert np.array_equal(result[0], result[1]) and not np.array_equal(result[0], result[2])


def scalar_loss(model, inputs):
    masked_ids, weights = mx.nd.array([[5, 6], [7, 8], [9, 10]]), mx.nd.array([[1, 1], [1, 0], [1, 1]])
    _, _, next_sentence, masked = model(*inputs)
    mlm, nsp = PretrainingLoss()(
        next_sentence, masked, masked_ids, weights, mx.nd.array([0, 1, 1]), mx.nd.array([1, 1, 1])
    )
    return mlm / 5 + nsp / 3


@pytest.mark.parametrize('h_gate', H_GATES)
@pytest.mark.parametrize(
    'architecture', [network(), network((2, 3, 4, 8), (1, 2, 2, 3), e=4)], ids=['plain', 'factorised']
)
def test_gradient_of_alpha_equals_a_finite_difference(architecture, h_gate):
    """Central differences of 1e-2 in float32: the loss is good to 1e-7 of about 5, the quotient to 1e-4 and
    the step's own error; the direction is random, so one number stands for the whole gradient."""
    inputs = random_inputs(architecture)
    parameters = {name: value * np.float32(0.5) for name, value in random_parameters(architecture).items()}
    model = build(architecture, parameters, gated=True, h_gate=h_gate)
    alphas = {key: np.abs(alpha) for key, alpha in random_alphas(architecture).items()}
    model.gates.set(alphas)
    with autograd.record():
        loss = scalar_loss(model, inputs)
    loss.backward()
    generator = np.random.RandomState(7)
    gradients = {key: parameter.grad().asnumpy() for key, parameter in model.gates.parameters.items()}
    for key, gradient in gradients.items():
        direction = np.sign(gradient) * generator.uniform(0.5, 1, gradient.shape)  # no cancelling
        values = []
        for step in (0.01, -0.01):
            model.gates.set({**alphas, key: (alphas[key] + step * direction).astype(np.float32)})
            values.append(float(scalar_loss(model, inputs).asscalar()))
        measured = (values[0] - values[1]) / 0.02
        assert measured == pytest.approx(float((gradient * direction).sum()), rel=0.02, abs=2e-4), key
        assert np.abs(gradient).max() > 0


@pytest.mark.parametrize('gated', [True, False], ids=['gates', 'MLM head'])
def test_gradients_do_not_depend_on_other_weights_being_frozen(gated):
    result = []
    for frozen in (False, True):
        model = build(UNEVEN, random_parameters(UNEVEN), gated=gated, trainable=not (gated and frozen))
        weights = named_parameters(model)
        heads = {name: parameter for name, parameter in weights.items() if name.startswith('decoder')}
        trained = model.gates.parameters if gated else heads
        for name, parameter in weights.items():
            parameter.grad_req = 'null' if frozen and name not in trained else 'write'
        with autograd.record():
            loss = scalar_loss(model, random_inputs(UNEVEN))
        loss.backward()
        assert all((one._grad is None) == (frozen and name not in trained) for name, one in weights.items())
        result.append({key: parameter.grad().asnumpy() for key, parameter in trained.items()})
    assert gradient_difference(*result) <= TOLERANCE
    assert all(np.abs(value).max() > 0 for value in result[0].values())


def test_loss_sums_what_its_weights_count():
    scores, labels = (
        mx.nd.array(np.random.RandomState(0).standard_normal((2, 2, 5))),
        mx.nd.array([[1, 2], [3, 4]]),
    )
    weights = mx.nd.array([[1, 0], [1, 1]])
    pairs, truth, counted = mx.nd.array([[1, 2], [3, 1]]), mx.nd.array([1, 1]), mx.nd.array([1, 0])
    *totals, by_instance = PretrainingLoss(accuracy=True)(pairs, scores, labels, weights, truth, counted)
    mlm, nsp, right, pairs_right = (float(value.asscalar()) for value in totals)
    log = scores.log_softmax(axis=-1).asnumpy()
    assert mlm == pytest.approx(-(log[0, 0, 1] + log[1, 0, 3] + log[1, 1, 4]), rel=1e-6)
    assert by_instance.asnumpy() == pytest.approx([-log[0, 0, 1], -log[1, 0, 3] - log[1, 1, 4]], rel=1e-6)
    assert nsp == pytest.approx(np.log(1 + np.exp(-1.0)), rel=1e-5)  # oneDNN's logarithm is good to 6e-6 here
    best = scores.asnumpy().argmax(-1)
    assert right == (best[0, 0] == 1) + (best[1, 0] == 3) + (best[1, 1] == 4) and pairs_right == 1
