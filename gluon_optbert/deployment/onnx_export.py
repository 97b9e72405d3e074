"""The network of an export as an ONNX file, written node by node from the architecture.

MXNet's own exporter passes every number through a Python list, which takes minutes for BERT-base. It also
lists the weights among the inputs, and readers do not fold inputs. Here the weights are raw bytes, the ids
are int64, and the operators have the order that ONNX Runtime and OpenVINO can fuse.

The shapes between the operators are left out on purpose. With them, ONNX Runtime 1.31 joins each addition and
LayerNorm to its SkipLayerNormalization, which takes longer than the two. Its Attention is no faster than
the operators here, and needs equal widths of keys and values."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .. import __version__
from ..architecture.architecture import Architecture, LayerDims
from ..architecture.heads import Head
from ..network.encoder import MASKED_SCORE
from .description import MASKED_LM, TRANSFORMERS_OUTPUTS, onnx_inputs, onnx_outputs
from .engines import OnnxEngine

_QUANTISING_OPSET = 19  # the first whose QuantizeLinear ONNX itself can compute; it means the same as in 17
OPSET, IR_VERSION = 17, 8  # 17 has LayerNormalization; readers since 2022 support both


class Graph:
    """The nodes and constants of a graph; most methods add nodes and return a tensor's name.

    Tensors are batch-major, (batch, length, units). The arrays are those of `inference_parameters`, and the
    inputs and outputs have one of `description.NAMES`.
    """

    def __init__(self, architecture: Architecture, arrays: Mapping[str, np.ndarray], names: str):
        self.architecture, self.arrays, self.names = architecture, arrays, names
        self._gluon = names == 'gluon'
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}

    def node(
        self, operator: str, *inputs: str, output: str = '', more: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Add a node, and give the name of its output; the names of more outputs end in `more`."""
        output = output or f'{operator}_{len(self.nodes)}'
        outputs = [output, *(f'{output}_{name}' for name in more)]
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, name=output, **attributes))
        return output

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """A number or a short list of them, stored once."""
        array = np.array(value, dtype=kind)
        name = f'constant_{array.dtype}_' + '_'.join(map(str, array.reshape(-1).tolist())) + f'_{array.ndim}d'
        return self.stored(name, array)

    def integers(self, *values: int) -> str:
        """A list of integers."""
        return self.constant(values, np.int64)

    def parameter(self, name: str) -> str:
        """A parameter of the network."""
        return self.stored(name, self.arrays[name])

    def stored(self, name: str, array: np.ndarray) -> str:
        """An array, stored once under this name."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(array, name)
        return name

    def product(self, data: str, name: str) -> str:
        """A matrix product over the last axis; the weight is `name`.weight, and is stored transposed."""
        weight = np.ascontiguousarray(self.arrays[name + '.weight'].T)
        return self.node('MatMul', data, self.stored(name + '.weight', weight))

    def dense(self, data: str, name: str, output: str = '') -> str:
        """A matrix product over the last axis plus a bias."""
        return self.node('Add', self.product(data, name), self.parameter(name + '.bias'), output=output)

    def projected(self, data: str, name: str) -> str:
        """The queries, keys or values of all heads, shape (batch, length, heads * width)."""
        return self.dense(data, name)

    def norm(self, data: str, name: str, output: str = '') -> str:
        """LayerNorm over the last axis."""
        return self.node(
            'LayerNormalization',
            data,
            self.parameter(name + '.gamma'),
            self.parameter(name + '.beta'),
            output=output,
            axis=-1,
            epsilon=float(self.architecture.layer_norm_eps),
        )

    def gelu(self, data: str) -> str:
        """x (1 + erf(x / sqrt 2)) / 2."""
        erf = self.node('Erf', self.node('Div', data, self.constant(np.sqrt(2))))
        return self.node(
            'Mul', self.node('Mul', data, self.node('Add', erf, self.constant(1))), self.constant(0.5)
        )

    def embed(self) -> str:
        """The stream, shape (batch, length, h), from ids of shape (batch, length)."""
        length = self.node('Slice', self.node('Shape', 'input_ids'), self.integers(1), self.integers(2))
        positions = self.node(
            'Slice', self.parameter('encoder.position_weight'), self.integers(0), length, self.integers(0)
        )
        words = self.node('Gather', self.parameter('word_embed.0.weight'), 'input_ids')
        types = self.node(
            'Gather',
            self.parameter('token_type_embed.0.weight'),
            'token_types' if self._gluon else 'token_type_ids',
        )
        stream = self.norm(self.node('Add', self.node('Add', words, types), positions), 'encoder.layer_norm')
        return stream if self.architecture.e is None else self.dense(stream, 'encoder.embed_proj')

    @functools.cached_property
    def valid(self) -> str:
        """Whether a token comes before the padding, shape (batch, length)."""
        length = self.node('Gather', self.node('Shape', 'input_ids'), self.constant(1, np.int64))
        steps = self.node('Range', self.constant(0, np.int64), length, self.constant(1, np.int64))
        return self.node('Less', steps, self.node('Unsqueeze', 'valid_length', self.integers(1)))

    def mask(self) -> str:
        """Mask that is added to the scores of attention, shape (batch, 1, 1, length): 0, or a large negative
        number at padding.
        """
        if self._gluon:
            mask = self.node('Where', self.valid, self.constant(0), self.constant(MASKED_SCORE))
            return self.node('Unsqueeze', mask, self.integers(1, 2))
        mask = self.node('Unsqueeze', 'attention_mask', self.integers(1))
        mask = self.node('Cast', self.node('Unsqueeze', mask, self.integers(2)), to=TensorProto.FLOAT)
        return self.node('Mul', self.node('Sub', self.constant(1), mask), self.constant(MASKED_SCORE))

    def layer(self, stream: str, mask: str, dims: LayerDims, cell: str, output: str = '') -> str:
        """One layer; `mask` is added to the scores, shape (batch, 1, 1, length)."""

        def heads(name: str, width: int, axes: Sequence[int]) -> str:
            data = self.projected(stream, f'{cell}attention_cell.proj_{name}')
            return self.node(
                'Transpose', self.node('Reshape', data, self.integers(0, 0, dims.a, width)), perm=list(axes)
            )

        scores = self.node('MatMul', heads('query', dims.k, (0, 2, 1, 3)), heads('key', dims.k, (0, 2, 3, 1)))
        # (batch, a, length, length)
        attention = self.node('Softmax', self.node('Add', scores, mask), axis=-1)
        context = self.node(
            'Transpose',
            self.node('MatMul', attention, heads('value', dims.v, (0, 2, 1, 3))),
            perm=[0, 2, 1, 3],
        )
        context = self.node('Reshape', context, self.integers(0, 0, dims.a * dims.v))
        stream = self.node('Add', self.dense(context, cell + 'proj'), stream)
        if not dims.f:
            return self.norm(stream, cell + 'layer_norm', output)
        stream = self.norm(stream, cell + 'layer_norm')
        inner = self.gelu(self.dense(stream, cell + 'ffn.ffn_1'))
        stream = self.node('Add', self.dense(inner, cell + 'ffn.ffn_2'), stream)
        return self.norm(stream, cell + 'ffn.layer_norm', output)

    def decode(self, tokens: str, output: str) -> None:
        """Scores over the vocabulary for encoded tokens."""
        inner = self.norm(self.gelu(self.dense(tokens, 'decoder.0')), 'decoder.2')
        words = self.node('Transpose', self.parameter('word_embed.0.weight'), perm=[1, 0])
        product = self.node('MatMul', inner, words)
        self.node('Add', product, self.parameter('decoder.3.bias'), output=output)

    def heads(self, stream: str, kind: str, head: Head) -> None:
        """The heads on the encoder, and the outputs."""
        named = {name: name if self._gluon else theirs for name, theirs in TRANSFORMERS_OUTPUTS.items()}
        if self._gluon:
            padded = self.node('Unsqueeze', self.valid, self.integers(2))
            stream = self.node('Where', padded, stream, self.constant(0), output='encoded')
        if kind == MASKED_LM:
            self.decode(stream, 'logits')
        elif head.kind == 'question_answering' and not self._gluon:
            scores = self.dense(stream, 'task')
            for i, name in enumerate(('start_logits', 'end_logits')):
                self.node('Gather', scores, self.constant(i, np.int64), axis=2, output=name)
        elif kind == 'task':
            read = self.pooled(stream, 'pooled' if self._gluon else '') if head.pooled else stream
            self.dense(read, 'task', named['scores'])
        else:
            if stream != named['encoded']:  # there is no layer
                self.node('Identity', stream, output=named['encoded'])
            pooled = self.pooled(stream, named['pooled'])
            if kind == 'pretraining':
                self.dense(pooled, 'classifier', named['next_sentence_scores'])
                if self._gluon:
                    places = self.node('Unsqueeze', 'masked_positions', self.integers(2))
                    stream = self.node('GatherND', stream, places, batch_dims=1)
                self.decode(stream, named['masked_scores'])

    def pooled(self, encoded: str, output: str = '') -> str:
        """The pooled output, shape (batch, h)."""
        first = self.node('Gather', encoded, self.constant(0, np.int64), axis=1)
        return self.node('Tanh', self.dense(first, 'pooler'), output=output)


def onnx_model(graph: Graph, kind: str, head: Head) -> onnx.ModelProto:
    """The network in ONNX, for any batch and length; ids are int64.

    The graph has no nodes yet, and its class decides how products are written. The kind is one of
    `description.KINDS`, or `description.MASKED_LM`.
    """
    architecture, names = graph.architecture, graph.names
    shapes = onnx_outputs(kind, head, names)
    stream, mask = graph.embed(), graph.mask()
    last = len(architecture.layers) - 1
    for i, dims in enumerate(architecture.layers):
        output = 'last_hidden_state' if i == last and 'last_hidden_state' in shapes else ''
        stream = graph.layer(stream, mask, dims, f'encoder.transformer_cells.{i}.', output)
    graph.heads(stream, kind, head)
    sizes = {'h': architecture.h, 'vocab_size': architecture.vocab_size}

    def described(name: str, kind_of_number: int, shape: Sequence[Any]) -> Any:
        return helper.make_tensor_value_info(name, kind_of_number, [sizes.get(side, side) for side in shape])

    inputs = [described(name, TensorProto.INT64, shape) for name, shape in onnx_inputs(kind, names).items()]
    outputs = [described(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    whole = helper.make_graph(
        graph.nodes, 'gluon_optbert', inputs, outputs, list(graph.initializers.values())
    )
    return helper.make_model(
        whole,
        opset_imports=[helper.make_opsetid('', OPSET)],
        ir_version=IR_VERSION,
        producer_name='gluon_optbert',
        producer_version=__version__,
    )


def write_onnx(path: Path, model: onnx.ModelProto) -> None:
    """Check and write a model; raises onnx.checker.ValidationError if this module made an invalid one."""
    onnx.checker.check_model(model, full_check=True)
    Path(path).write_bytes(model.SerializeToString())


def run_onnx(path: str | Path, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a file by name, from ONNX's slow reference implementation."""
    from onnx.reference import ReferenceEvaluator  # it imports every operator, so only a caller pays for it

    model = onnx.load(str(path))
    if any(node.op_type == 'QuantizeLinear' for node in model.graph.node):
        model.opset_import[0].version = _QUANTISING_OPSET
    evaluator = ReferenceEvaluator(model)
    inputs = {name: np.asarray(feed[name], dtype=np.int64) for name in evaluator.input_names}
    return dict(zip(evaluator.output_names, evaluator.run(None, inputs)))


class Reference(OnnxEngine):
    """The same as an engine, to compare with, and for a few texts where no other is installed."""

    name, version = 'onnx', onnx.__version__

    def load(self, path: str) -> None:
        self._path = path

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return run_onnx(self._path, feed)
