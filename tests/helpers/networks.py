"""Architectures and networks whose widths are even or not, and GluonNLP's own BERT beside them."""

import numpy as np
from gluonnlp.model.bert import BERTEncoder, BERTModel
from hypothesis import strategies as st

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.named import uniform
from gluon_optbert.text.batches import _batch
from gluon_optbert.text.shards import record_dtype
from helpers.tiny import network

# Relative to the largest value of an output: what two layers leave of float32's 1e-7 when sums are taken in
# another order.
TOLERANCE = 1e-5


EVEN = uniform(layers=2, h=8, a=2, vocab_size=32, max_length=16)
UNEVEN = network((3, 2, 5, 7), (1, 4, 1, 0), (2, 1, 3, 16), h=6)
HEADS = [
    PRETRAINING,
    Head('classification', ('no', 'yes', 'maybe'), 'MNLI'),
    Head('regression', task='STS-B'),
    Head('question_answering'),
]


WIDTH = st.integers(1, 9)
LAYERS = st.lists(st.builds(LayerDims, a=WIDTH, k=WIDTH, v=WIDTH, f=st.integers(0, 9)), max_size=4)
ARCHITECTURES = st.builds(
    Architecture,
    h=WIDTH,
    layers=LAYERS.map(tuple),
    vocab_size=WIDTH,
    e=st.none() | WIDTH,
    max_length=WIDTH,
    token_types=WIDTH,
    layer_norm_eps=st.just(1e-12) | st.floats(0, 1, exclude_max=True),
)

NETWORKS = st.builds(
    Architecture,
    h=st.integers(2, 9),
    e=st.none() | st.integers(2, 6),
    vocab_size=st.just(11),
    max_length=st.just(8),
    layers=st.lists(
        st.builds(
            LayerDims, a=st.integers(1, 3), k=st.integers(1, 4), v=st.integers(1, 4), f=st.integers(0, 6)
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


SEEDS = st.integers(0, 2**31 - 10)


def random_batches(architecture, count, *, size=96, seed=0):
    """Batches of eight random tokens; every second sequence is half padding."""
    generator = np.random.RandomState(seed)
    batches = []
    for index in range(count):
        records = np.zeros(size, record_dtype(8, 1, architecture.vocab_size))
        records['input_ids'] = generator.randint(0, architecture.vocab_size, (size, 8))
        records['segment_ids'] = generator.randint(0, 2, (size, 8))
        records['valid_lengths'] = 8
        records['valid_lengths'][1::2] = 4
        batches.append(_batch(records, size=size, rank=0, workers=1, index=index))
    return batches


def gluonnlp_model(architecture=EVEN, **options):
    """GluonNLP's own BERTModel of the same widths."""
    layer = architecture.layers[0]
    encoder = BERTEncoder(
        units=architecture.h,
        hidden_size=layer.f,
        num_layers=len(architecture.layers),
        num_heads=layer.a,
        max_length=architecture.max_length,
        dropout=0.0,
        **options,
    )
    return BERTModel(
        encoder,
        vocab_size=architecture.vocab_size,
        token_type_vocab_size=2,
        units=architecture.h,
        embed_size=architecture.h,
    )
