"""A deployment directory in plain MXNet: python symbol.py DIRECTORY THREADS (OMP_NUM_THREADS is set by the
caller).
"""

import json
import sys
import warnings
from pathlib import Path

import mxnet as mx
from protocol import serve

directory = Path(sys.argv[1])
manifest = json.loads((directory / 'manifest.json').read_text(encoding='utf-8'))
architecture = json.loads((directory / 'architecture.json').read_text(encoding='utf-8'))
names = list(manifest['inputs'])
warnings.simplefilter('ignore')
block = mx.gluon.SymbolBlock.imports(
    str(directory / 'model-symbol.json'), names, str(directory / 'model-0000.params')
)
block.hybridize(static_alloc=True, static_shape=True)


def run(inputs):
    """Forward, down to NumPy."""
    outputs = block(*(mx.nd.array(inputs[name]) for name in names))
    return [output.asnumpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


serve(run, {'mxnet': mx.__version__}, architecture['vocab_size'])
