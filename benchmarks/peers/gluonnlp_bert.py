"""GluonNLP's BERTModel, hybridized: python gluonnlp_bert.py WEIGHTS.npz THREADS VOCAB_SIZE CONFIG

WEIGHTS has GluonNLP's names, CONFIG is JSON for its BERTEncoder; OMP_NUM_THREADS is set by the caller.
"""

import json
import sys

import gluonnlp
import mxnet as mx
import numpy as np
from gluonnlp_model import gluonnlp_model
from protocol import serve

config, vocab_size = json.loads(sys.argv[4]), int(sys.argv[3])
model = gluonnlp_model(config, vocab_size, use_classifier=False, use_decoder=False)
with np.load(sys.argv[1]) as arrays:
    for name, parameter in model._collect_params_with_prefix().items():
        parameter.set_data(mx.nd.array(arrays[name]))
model.hybridize(static_alloc=True, static_shape=True)


def run(inputs):
    """Forward, down to NumPy."""
    names = ('input_ids', 'token_types', 'valid_length')
    return [
        output.asnumpy() for output in model(*(mx.nd.array(inputs[name], dtype='float32') for name in names))
    ]


serve(run, {'mxnet': mx.__version__, 'gluonnlp': gluonnlp.__version__}, vocab_size)
