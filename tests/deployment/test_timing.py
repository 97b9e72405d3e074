"""Times of exports are those of the networks that are named."""

import mxnet as mx
import numpy as np
from helpers.tiny import network

from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.deployment.inference import inference_table
from gluon_optbert.deployment.timing import KIND, random_export, time_exports


def test_random_export_is_the_network_of_an_export():
    architecture = network()
    block = random_export(architecture)
    shapes = {name: parameter.shape for name, parameter in block.collect_params().items()}
    table = inference_table(architecture, KIND, PRETRAINING)
    assert shapes == {name: spec.shape for name, spec in table.items()}
    encoded, pooled = block(*(mx.nd.array(values) for values in (np.ones((2, 5)), np.zeros((2, 5)), [5, 3])))
    assert encoded.shape == (2, 5, architecture.h) and np.isfinite(pooled.asnumpy()).all()


def test_a_network_of_more_work_takes_longer():
    small = network((2, 4, 4, 8), h=8, max_length=64)
    large = network(*[(8, 64, 64, 2048)] * 4, h=256, max_length=64)
    times = time_exports({'small': small, 'large': large}, length=64, repeats=5)
    assert all(len(values) == 5 for values in times.values())
    assert 0 < times['small'].min() < times['large'].min()
