"""The LayerNorm epsilon of a checkpoint: it stays with the network, whatever is made of it."""

import dataclasses

import numpy as np
import onnx
import pytest
from helpers.checkpoints import CONFIG, named, write_google, write_hugging_face
from helpers.tiny import (
    network,
    outputs_of,
    random_alphas,
    random_inputs,
    random_parameters,
    random_selection,
    relative_difference,
    vocabulary,
)
from helpers.transformers_by_hand import BertByHand

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.mxnet_network import import_symbol
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_source
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel

EPS = 1e-5
PARAMETERS = {  # small enough that the epsilon is a percent of some variance
    name: value * np.float32(0.02 if 'embed' in name or 'position' in name else 0.5)
    for name, value in random_parameters(network()).items()
}


def saved(eps=EPS):
    architecture = Architecture.from_dict({**network().to_dict(), 'layer_norm_eps': eps})
    return SavedModel(architecture, PARAMETERS, vocabulary())


def written(form, directory, eps):
    """A checkpoint of the parameters in a form that states its epsilon."""
    write = {'Hugging Face': write_hugging_face, 'TensorFlow': write_google}[form]
    return write(directory, named(form, PARAMETERS), layer_norm_eps=eps)


@pytest.mark.parametrize('eps', [1e-12, 1e-5, 1e-3])
@pytest.mark.parametrize('form', ['Hugging Face', 'TensorFlow'])
def test_imported_network_computes_what_transformers_computes(tmp_path, form, eps):
    model = convert(read_source(str(written(form, tmp_path / 'checkpoint', eps)))).model
    by_hand = BertByHand(named('Hugging Face', PARAMETERS), {**CONFIG, 'layer_norm_eps': eps})
    inputs = random_inputs(network(), batch=1, length=6)
    ids, types, _, positions = (value.asnumpy().astype(int).reshape(-1) for value in inputs)
    wanted = {name: value[np.newaxis] for name, value in by_hand(ids, types, positions).items()}
    for options in ({'trainable': False}, {'trainable': True}, {'gated': True}):
        outputs = outputs_of(build(model.architecture, model.parameters, **options), inputs)
        # Sums of float32; with the epsilon of another checkpoint the difference is above 1e-4.
        assert relative_difference(outputs, wanted) < 2e-6, options


def test_epsilon_stays_with_a_cut_network():
    model = saved()
    alphas, selection = random_alphas(model.architecture), random_selection(model.architecture)
    _, smaller = shrink(model.parameters, model.architecture, alphas, selection)
    assert smaller != model.architecture and smaller.layer_norm_eps == EPS


def epsilons_of(deployment):
    """Those of the LayerNorms of an ONNX file, which has to hold them as floats."""
    nodes = onnx.load(str(deployment / 'model.onnx')).graph.node
    norms = [node for node in nodes if node.op_type == 'LayerNormalization']
    found = [attribute for node in norms for attribute in node.attribute if attribute.name == 'epsilon']
    assert len(found) == len(norms) > 0
    assert {attribute.type for attribute in found} == {onnx.AttributeProto.FLOAT}
    return {attribute.f for attribute in found}


@pytest.mark.parametrize('eps', [EPS, 0])
def test_exports_compute_with_the_epsilon(tmp_path, eps):
    """`export` itself compares symbol and ONNX file with the network, and fails where they differ."""
    model = dataclasses.replace(saved(), architecture=dataclasses.replace(network(), layer_norm_eps=eps))
    export(model, tmp_path / 'deploy', head='pretraining', onnx=True)
    inputs = random_inputs(network())
    exported = outputs_of(import_symbol(tmp_path / 'deploy', list(INPUTS)), inputs)
    assert relative_difference(exported, outputs_of(build(model.architecture, PARAMETERS), inputs)) < 2e-6
    assert epsilons_of(tmp_path / 'deploy') == {np.float32(eps)}


def test_epsilon_of_bert_is_not_written_and_files_without_one_have_it():
    values = network().to_dict()
    assert 'layer_norm_eps' not in values
    assert Architecture.from_dict(values).layer_norm_eps == 1e-12
    assert saved().architecture.to_dict()['layer_norm_eps'] == EPS


@pytest.mark.parametrize('eps', [-1e-5, 1.0, float('nan'), '1e-5'])
def test_what_is_no_epsilon_is_refused(eps):
    with pytest.raises(ValueError, match='layer_norm_eps must be a number from 0 to below 1'):
        Architecture.from_dict({**network().to_dict(), 'layer_norm_eps': eps})
