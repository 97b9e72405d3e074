"""This package's Predictor, with the engine that it chooses itself: python predictor.py DIRECTORY THREADS
VOCAB_SIZE

The tokenizer does not count: token ids are given.
"""

import sys

from protocol import serve

import gluon_optbert as opt

predictor = opt.Predictor(sys.argv[1], threads=int(sys.argv[2]))


def run(inputs):
    """Forward, down to NumPy."""
    return list(
        predictor.outputs(inputs['input_ids'], inputs['token_types'], inputs['valid_length']).values()
    )


serve(run, {'gluon_optbert': opt.__version__, 'engine': str(predictor.engine)}, int(sys.argv[3]))
