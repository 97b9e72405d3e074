"""The network of an export as an ONNX file, written node by node from the architecture.

MXNet's own exporter passes every number through a Python list, which takes minutes for BERT-base. It also
lists the weights among the inputs, and readers do not fold inputs. Here the weights are raw bytes, the ids
are int64, and the operators have the order that ONNX Runtime and OpenVINO can fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .. import __version__
from ..architecture.architecture import Architecture, LayerDims
from ..architecture.heads import Head
from ..network.attention import MASKED_SCORE
from ..network.running import INPUTS
from .inference import inputs_of, outputs_of

ONNX = 'model.onnx'
OPSET, IR_VERSION = 17, 8  # 17 has LayerNormalization; readers since 2022 support both


class _Graph:
    """The nodes and constants of a graph; most methods add nodes and return a tensor's name.

    Tensors are batch-major, (batch, length, units).
    """

    def __init__(self, architecture: Architecture, arrays: Mapping[str, np.ndarray]):
        self._architecture, self._arrays = architecture, arrays
        self.nodes: List[Any] = []
        self.initializers: Dict[str, Any] = {}

    def node(self, operator: str, *inputs: str, output: str = '', **attributes: Any) -> str:
        """Add a node with one output."""
        output = output or f'{operator}_{len(self.nodes)}'
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """A number or a short list of them, stored once."""
        array = np.array(value, dtype=kind)
        name = f'constant_{array.dtype}_' + '_'.join(map(str, array.reshape(-1).tolist())) + f'_{array.ndim}d'
        return self._stored(name, array)

    def integers(self, *values: int) -> str:
        """A list of integers."""
        return self.constant(values, np.int64)

    def parameter(self, name: str, *, transposed: bool = False) -> str:
        """A parameter of the network; the right factor of a product is stored transposed."""
        array = self._arrays[name]
        return self._stored(name, np.ascontiguousarray(array.T) if transposed else array)

    def _stored(self, name: str, array: np.ndarray) -> str:
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(array, name)
        return name

    def dense(self, data: str, name: str, output: str = '') -> str:
        """A matrix product over the last axis plus a bias."""
        product = self.node('MatMul', data, self.parameter(name + '.weight', transposed=True))
        return self.node('Add', product, self.parameter(name + '.bias'), output=output)

    def norm(self, data: str, name: str) -> str:
        """LayerNorm over the last axis."""
        return self.node(
            'LayerNormalization',
            data,
            self.parameter(name + '.gamma'),
            self.parameter(name + '.beta'),
            axis=-1,
            epsilon=self._architecture.layer_norm_eps,
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
        types = self.node('Gather', self.parameter('token_type_embed.0.weight'), 'token_types')
        stream = self.norm(self.node('Add', self.node('Add', words, types), positions), 'encoder.layer_norm')
        return stream if self._architecture.e is None else self.dense(stream, 'encoder.embed_proj')

    def valid(self) -> str:
        """Whether a token is not padding, shape (batch, length)."""
        length = self.node('Gather', self.node('Shape', 'input_ids'), self.constant(1, np.int64))
        steps = self.node('Range', self.constant(0, np.int64), length, self.constant(1, np.int64))
        return self.node('Less', steps, self.node('Unsqueeze', 'valid_length', self.integers(1)))

    def layer(self, stream: str, mask: str, dims: LayerDims, cell: str) -> str:
        """One layer; `mask` is added to the scores, shape (batch, 1, 1, length)."""

        def heads(name: str, width: int, axes: Sequence[int]) -> str:
            data = self.dense(stream, f'{cell}attention_cell.proj_{name}')
            return self.node(
                'Transpose', self.node('Reshape', data, self.integers(0, 0, dims.a, width)), perm=list(axes)
            )

        scores = self.node('MatMul', heads('query', dims.k, (0, 2, 1, 3)), heads('key', dims.k, (0, 2, 3, 1)))
        attention = self.node(
            'Softmax', self.node('Add', scores, mask), axis=-1
        )  # (batch, a, length, length)
        context = self.node(
            'Transpose',
            self.node('MatMul', attention, heads('value', dims.v, (0, 2, 1, 3))),
            perm=[0, 2, 1, 3],
        )
        context = self.node('Reshape', context, self.integers(0, 0, dims.a * dims.v))
        stream = self.norm(self.node('Add', self.dense(context, cell + 'proj'), stream), cell + 'layer_norm')
        if dims.f:
            inner = self.gelu(self.dense(stream, cell + 'ffn.ffn_1'))
            stream = self.norm(
                self.node('Add', self.dense(inner, cell + 'ffn.ffn_2'), stream), cell + 'ffn.layer_norm'
            )
        return stream

    def decode(self, encoded: str) -> None:
        """Scores over the vocabulary at the masked positions."""
        masked = self.node(
            'GatherND', encoded, self.node('Unsqueeze', 'masked_positions', self.integers(2)), batch_dims=1
        )
        inner = self.norm(self.gelu(self.dense(masked, 'decoder.0')), 'decoder.2')
        words = self.node('Transpose', self.parameter('word_embed.0.weight'), perm=[1, 0])
        self.node(
            'Add', self.node('MatMul', inner, words), self.parameter('decoder.3.bias'), output='masked_scores'
        )

    def outputs(self, stream: str, valid: str, kind: str, head: Head) -> None:
        """The heads on the encoder, and the named outputs."""
        padded = self.node('Unsqueeze', valid, self.integers(2))
        encoded = self.node('Where', padded, stream, self.constant(0), output='encoded')
        if kind == 'task' and not head.pooled:
            self.dense(encoded, 'task', 'scores')
            return
        first = self.node('Gather', encoded, self.constant(0, np.int64), axis=1)
        pooled = self.node('Tanh', self.dense(first, 'pooler'), output='pooled')
        if kind == 'task':
            self.dense(pooled, 'task', 'scores')
        if kind == 'pretraining':
            self.dense(pooled, 'classifier', 'next_sentence_scores')
            self.decode(encoded)


def onnx_model(
    architecture: Architecture, kind: str, head: Head, arrays: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """The network in ONNX, for any batch and length; ids are int64.

    Parameters
    ----------
    architecture : Architecture
    kind : str
        One of `inference.KINDS`.
    head : Head
    arrays : mapping of name to np.ndarray
        As `inference_parameters` gives them.
    """
    graph = _Graph(architecture, arrays)
    stream, valid = graph.embed(), graph.valid()
    mask = graph.node('Where', valid, graph.constant(0), graph.constant(MASKED_SCORE))
    mask = graph.node('Unsqueeze', mask, graph.integers(1, 2))
    for i, dims in enumerate(architecture.layers):
        stream = graph.layer(stream, mask, dims, f'encoder.transformer_cells.{i}.')
    graph.outputs(stream, valid, kind, head)
    sizes = {'h': architecture.h, 'vocab_size': architecture.vocab_size}

    def described(name: str, kind_of_number: int, shape: Sequence[Any]) -> Any:
        return helper.make_tensor_value_info(name, kind_of_number, [sizes.get(side, side) for side in shape])

    inputs = [described(name, TensorProto.INT64, INPUTS[name]) for name in inputs_of(kind)]
    outputs = [described(name, TensorProto.FLOAT, shape) for name, shape in outputs_of(kind, head).items()]
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


def run_onnx(path: Path, feed: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """The outputs of a file by name, from ONNX's slow reference implementation."""
    from onnx.reference import ReferenceEvaluator  # it imports every operator, so only a caller pays for it

    evaluator = ReferenceEvaluator(str(path))
    inputs = {name: np.asarray(feed[name], dtype=np.int64) for name in evaluator.input_names}
    return dict(zip(evaluator.output_names, evaluator.run(None, inputs)))
