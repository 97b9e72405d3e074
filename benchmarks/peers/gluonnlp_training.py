"""Training steps of GluonNLP's BERTModel, hybridized, with its BERTAdam: python gluonnlp_training.py
VOCAB_SIZE CONFIG

CONFIG is JSON for its BERTEncoder. The caller says how many threads there are, or leaves it to MXNet.
"""

import json
import os
import sys

import gluonnlp
import mxnet as mx
from gluonnlp_model import gluonnlp_model
from mxnet import autograd, gluon
from protocol import serve, training_inputs

vocab_size, config = int(sys.argv[1]), json.loads(sys.argv[2])
model = gluonnlp_model(config, vocab_size)
model.hybridize(static_alloc=True)
loss = gluon.loss.SoftmaxCELoss()
loss.hybridize(static_alloc=True)
trainer = gluon.Trainer(model.collect_params(), 'bertadam', {'learning_rate': 1e-5, 'wd': 0.01}, kvstore=None)


def run(inputs):
    """One step: forward, backward, update."""
    feed = {name: mx.nd.array(value, dtype='float32') for name, value in inputs.items()}
    with autograd.record():
        _, _, next_sentence, masked = model(
            feed['input_ids'], feed['token_types'], feed['valid_length'], feed['masked_positions']
        )
        total = (
            loss(masked, feed['masked_ids']).mean() + loss(next_sentence, feed['next_sentence_labels']).mean()
        )
    total.backward()
    trainer.step(1)
    mx.nd.waitall()
    return [total.asnumpy()]


versions = {'mxnet': mx.__version__, 'gluonnlp': gluonnlp.__version__}
serve(run, {**versions, 'omp_num_threads': os.environ.get('OMP_NUM_THREADS')}, vocab_size, training_inputs)
