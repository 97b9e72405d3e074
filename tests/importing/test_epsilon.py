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

from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.deployment.export import export
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_source
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel

EPS = 1e-5
PARAMETERS = {  # small enough that the epsilon is a percent of some variance
    name: value * np.float32(0.02 if 'embed' in name or 'position' in name else 0.5)
    for name, value in random_parameters(network()).items()
}


@pytest.mark.parametrize('form, eps', [('Hugging Face', 1e-3), ('TensorFlow', EPS)])
def test_imported_network_computes_what_transformers_computes(tmp_path, form, eps):
    write = {'Hugging Face': write_hugging_face, 'TensorFlow': write_google}[form]
    source = write(tmp_path / 'checkpoint', named(form, PARAMETERS), layer_norm_eps=eps)
    model = convert(read_source(str(source))).model
    by_hand = BertByHand(named('Hugging Face', PARAMETERS), {**CONFIG, 'layer_norm_eps': eps})
    inputs = random_inputs(network(), batch=1, length=6)
    ids, types, _, positions = (value.asnumpy().astype(int).reshape(-1) for value in inputs)
    wanted = {name: value[np.newaxis] for name, value in by_hand(ids, types, positions).items()}
    for options in ({'trainable': False}, {'trainable': True}, {'gated': True}):
        outputs = outputs_of(build(model.architecture, model.parameters, **options), inputs)
        # Sums of float32; with the epsilon of another checkpoint the difference is above 1e-4.
        assert relative_difference(outputs, wanted) < 2e-6, options


def test_cuts_and_exports_keep_the_epsilon(tmp_path):
    """`export` itself compares symbol and ONNX file with the network, and fails where they differ."""
    architecture = dataclasses.replace(network(), layer_norm_eps=EPS)
    selection = random_selection(architecture)
    _, smaller = shrink(PARAMETERS, architecture, random_alphas(architecture), selection)
    assert smaller != architecture and smaller.layer_norm_eps == EPS
    model = SavedModel(architecture, PARAMETERS, vocabulary())
    export(model, tmp_path / 'deploy', head='pretraining', onnx=True)
    nodes = onnx.load(str(tmp_path / 'deploy' / 'model.onnx')).graph.node
    norms = [node for node in nodes if node.op_type == 'LayerNormalization']
    found = [attribute for node in norms for attribute in node.attribute if attribute.name == 'epsilon']
    assert len(found) == len(norms) > 0
    assert {(one.type, one.f) for one in found} == {(onnx.AttributeProto.FLOAT, np.float32(EPS))}
