"""The network of an export: a symbol, and the arrays that it reads.

It computes what `OptBERTModel` computes, with fewer operators. It has no dropout and no gates, the weights of
the queries contain the attention's scale, and the token ids are transposed instead of the embeddings.
Parameters keep the names of `parameter_table`."""

from __future__ import annotations

import dataclasses
from typing import Dict, Mapping, Optional

import mxnet as mx
import numpy as np

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.heads import Head
from ..architecture.parameters import Parameters, ParameterSpec, parameter_table
from ..network.encoder import attention_masks, join_heads, split_heads, without_padding
from ..network.model import first_tokens, gather_masked
from ..runs.mxnet_arrays import BFLOAT16
from .description import inputs_of

F = mx.sym
_LINE = 16  # numbers of a cache line; over other widths oneDNN's product loses up to a fifth of its speed
_SLOW_WIDTH = 1024  # numbers in 4,096 bytes


def computed(architecture: Architecture, precision: str) -> Architecture:
    """The widths that an export computes with: in float32 f is rounded up to a fast width, with zeros."""

    def fast(f: int) -> int:
        f = -(-f // _LINE) * _LINE
        return f + _LINE if f and f % _SLOW_WIDTH == 0 else f

    if precision != 'float32':
        return architecture
    layers = tuple(dataclasses.replace(dims, f=fast(dims.f)) for dims in architecture.layers)
    return dataclasses.replace(architecture, layers=layers)


def inference_table(
    architecture: Architecture, kind: str, head: Head, precision: str = 'float32'
) -> Dict[str, ParameterSpec]:
    """Every parameter that an export of this kind reads, with the widths of `computed`."""
    unused = ('mlm', 'nsp') if kind == 'encoder' else ()
    return {
        name: spec
        for name, spec in parameter_table(computed(architecture, precision), head).items()
        if spec.part not in unused
    }


def inference_parameters(
    parameters: Parameters, architecture: Architecture, kind: str, head: Head
) -> Dict[str, np.ndarray]:
    """The arrays that an export reads; those of the queries contain the attention's scale, 1/sqrt(k)."""
    arrays = {}
    for name, spec in inference_table(architecture, kind, head).items():
        value = np.asarray(parameters[name], dtype=np.float32)
        if spec.attention_scale:
            value = value * np.float32(architecture.layers[spec.layer].k ** -0.5)
        arrays[name] = value
    return arrays


def widened(arrays: Mapping[str, np.ndarray], table: Mapping[str, ParameterSpec]) -> Dict[str, np.ndarray]:
    """The arrays in the larger shapes of a table, padded with zeros."""
    return {
        name: np.pad(value, [(0, wanted - side) for wanted, side in zip(table[name].shape, value.shape)])
        for name, value in arrays.items()
    }


class _Network:
    """The parts of the symbol of one architecture; its tensors are time-major, (length, batch, units)."""

    def __init__(self, architecture: Architecture, precision: str):
        self._architecture = architecture
        self._bfloat16, self._float32 = precision == 'bfloat16', precision == 'float32'
        self._variables: Dict[str, mx.sym.Symbol] = {}

    def _var(self, name: str) -> mx.sym.Symbol:
        if name not in self._variables:
            self._variables[name] = F.var(name)
        return self._variables[name]

    def _low(self, data):
        return F.amp_cast(data, dtype=BFLOAT16) if self._bfloat16 else data

    def _high(self, data):
        return F.amp_cast(data, dtype='float32') if self._bfloat16 else data

    def dense(self, data, name: str, units: int, width: Optional[int] = None):
        """A matrix product over the last axis plus a bias.

        oneDNN's float32 product loses a third of its speed if rows are a multiple of 4,096 bytes long; `dot`
        does not. The encoder's products therefore give their input `width`."""
        if self._float32 and width and width % _SLOW_WIDTH == 0:
            product = F.dot(data, self._var(name + '.weight'), transpose_b=True, name=name)
            return F.broadcast_add(product, F.reshape(self._var(name + '.bias'), shape=(1, 1, -1)))
        return F.FullyConnected(
            data,
            self._var(name + '.weight'),
            self._var(name + '.bias'),
            num_hidden=units,
            flatten=False,
            name=name,
        )

    def norm(self, data, name: str):
        """LayerNorm over the last axis."""
        return F.LayerNorm(
            data,
            self._var(name + '.gamma'),
            self._var(name + '.beta'),
            axis=-1,
            eps=self._architecture.layer_norm_eps,
            name=name,
        )

    def _embedding(self, ids, name: str, rows: int):
        return F.Embedding(
            ids, self._var(name), input_dim=rows, output_dim=self._architecture.embedding_width
        )

    def embed(self, inputs: Mapping[str, mx.sym.Symbol]):
        """The stream from ids of shape (batch, length), and the positions 0, 1, …, shape (length,)."""
        widths = self._architecture
        tokens = F.transpose(inputs['input_ids'])
        steps = F.contrib.arange_like(tokens, axis=0)
        stream = self._embedding(tokens, 'word_embed.0.weight', widths.vocab_size) + self._embedding(
            F.transpose(inputs['token_types']), 'token_type_embed.0.weight', widths.token_types
        )
        positions = self._embedding(steps, 'encoder.position_weight', widths.max_length)
        stream = self.norm(F.broadcast_add(stream, F.expand_dims(positions, axis=1)), 'encoder.layer_norm')
        if widths.e is not None:
            stream = self._high(self.dense(self._low(stream), 'encoder.embed_proj', widths.h, widths.e))
        return stream, steps

    def layer(self, stream, mask, dims: LayerDims, cell: str):
        """One layer; the names of its parameters begin with `cell`."""
        h, narrow = self._architecture.h, self._low(stream)

        def heads(name: str, width: int):
            """(length, batch, h) to (batch * a, length, width)."""
            data = self._high(self.dense(narrow, f'{cell}attention_cell.proj_{name}', dims.a * width, h))
            return split_heads(F, data, dims.a, width)

        scores = F.batch_dot(heads('query', dims.k), heads('key', dims.k), transpose_b=True)
        context = F.batch_dot(F.softmax(scores + mask, axis=-1), heads('value', dims.v))
        context = self._low(join_heads(F, context, dims.a))
        stream = self.norm(
            self._high(self.dense(context, cell + 'proj', h, dims.a * dims.v)) + stream, cell + 'layer_norm'
        )
        if dims.f:
            inner = F.LeakyReLU(self.dense(self._low(stream), cell + 'ffn.ffn_1', dims.f, h), act_type='gelu')
            stream = self.norm(
                self._high(self.dense(inner, cell + 'ffn.ffn_2', h, dims.f)) + stream, cell + 'ffn.layer_norm'
            )
        return stream

    def decode(self, encoded, positions):
        """Scores over the vocabulary at the masked positions, shape (batch, masked, vocab_size)."""
        masked = gather_masked(F, encoded, positions)
        inner = F.LeakyReLU(
            self.dense(masked, 'decoder.0', self._architecture.embedding_width), act_type='gelu'
        )
        return F.FullyConnected(
            self.norm(inner, 'decoder.2'),
            self._var('word_embed.0.weight'),
            self._var('decoder.3.bias'),
            num_hidden=self._architecture.vocab_size,
            flatten=False,
            name='decoder.3',
        )


def inference_symbol(
    architecture: Architecture, kind: str, head: Head, *, precision: str = 'float32'
) -> mx.sym.Symbol:
    """The network of an export; the same arguments give the same nodes with the same names.

    Parameters
    ----------
    architecture : Architecture
    kind : str
        One of `KINDS`. ``encoder`` gives the encoded tokens and the pooled output, ``pretraining`` the scores
        of pre-training as well, ``task`` the scores of `head`.
    head : Head
    precision : str
        ``float32``; ``bfloat16`` for the encoder's matrix products, all else stays float32; ``int8`` for a
        float32 network of operators that can be quantised.
    """
    with mx.name.NameManager():  # counts operators from zero
        inputs = {name: F.var(name, dtype='float32') for name in inputs_of(kind)}
        architecture = computed(architecture, precision)
        network = _Network(architecture, precision)
        stream, steps = network.embed(inputs)
        heads = [dims.a for dims in architecture.layers]
        masks = attention_masks(F, steps, inputs['valid_length'], heads)
        for i, dims in enumerate(architecture.layers):
            stream = network.layer(stream, masks[dims.a], dims, f'encoder.transformer_cells.{i}.')
        encoded = without_padding(F, stream, inputs['valid_length'])
        if kind == 'task' and not head.pooled:
            return network.dense(F.transpose(encoded, axes=(1, 0, 2)), 'task', head.outputs)
        pooled = F.tanh(network.dense(first_tokens(F, encoded), 'pooler', architecture.h))
        if kind == 'task':
            return network.dense(pooled, 'task', head.outputs)
        outputs = [F.transpose(encoded, axes=(1, 0, 2)), pooled]
        if kind == 'pretraining':
            outputs += [
                network.dense(pooled, 'classifier', 2),
                network.decode(encoded, inputs['masked_positions']),
            ]
        return F.Group(outputs)
