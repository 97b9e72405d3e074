"""Networks that are exported in several ways."""

import mxnet as mx

from gluon_optbert.architecture.heads import PRETRAINING, Head
from helpers.tiny import network

UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9))


ARCHITECTURES = {
    'even': network(),
    'uneven': UNEVEN,
    'factorised': network((2, 3, 5, 7), e=5),
    'rows of 4,096 bytes': network((2, 3, 512, 1024)),
}


CASES = {
    'encoder': ('encoder', PRETRAINING),
    'pretraining': ('pretraining', PRETRAINING),
    'classification': ('task', Head('classification', ('no', 'yes', 'maybe'))),
    'regression': ('task', Head('regression')),
    'question answering': ('task', Head('question_answering')),
}


def of_arrays(symbol, arrays, names):
    """A symbol with its parameters, as a block."""
    block = mx.gluon.SymbolBlock(symbol, [mx.sym.var(name, dtype='float32') for name in names])
    for name, parameter in block.collect_params().items():
        parameter._load_init(mx.nd.array(arrays[name]), mx.cpu())
    return block
