"""GluonNLP's own BERTModel."""

import mxnet as mx
from gluonnlp.model.bert import BERTEncoder, BERTModel


def gluonnlp_model(config, vocab_size, **more):
    """A network with random weights, of what its BERTEncoder is told; `more` is for BERTModel."""
    width = config['units']
    encoder = BERTEncoder(**config)
    model = BERTModel(
        encoder, vocab_size=vocab_size, token_type_vocab_size=2, units=width, embed_size=width, **more
    )
    model.initialize(mx.init.Normal(0.02))
    return model
