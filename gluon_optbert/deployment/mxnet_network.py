"""The network of an export for MXNet: a symbol, and the arrays that it reads.

It computes what `OptBERTModel` computes, with fewer operators. It has no dropout and no gates, the weights of
the queries contain the attention's scale, and the token ids are transposed instead of the embeddings.
Parameters keep the names of `parameter_table`.

An attacker can write checksums, too. Therefore the symbol of a directory must be identical to the one that
this module makes for the architecture, and the parameters must have its names, shapes and types. Only then
does MXNet read them."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import mxnet as mx
import numpy as np

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import INITIAL_STD, ParameterSpec, parameter_table
from ..network.encoder import attention_masks, join_heads, split_heads, without_padding
from ..network.model import first_tokens, gather_masked
from ..network.running import pass_times, random_feed
from ..network.saved_model import SavedModel
from ..network.settings import prepare_bfloat16
from ..runs.mxnet_arrays import BFLOAT16, write_arrays
from ..text.tokenizer import write_vocabulary
from .description import DENSE, PARAMETERS, SYMBOL, Deployment, inputs_of

F = mx.sym
_ARGUMENT = 'arg:'  # how MXNet begins the name of a parameter in the file of an export
_LINE = 16  # numbers of a cache line; over other widths oneDNN's product loses up to a fifth of its speed
_SLOW_WIDTH = 1024  # numbers in 4,096 bytes


# What it computes


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
) -> dict[str, ParameterSpec]:
    """Every parameter that an export of this kind reads, with the widths of `computed`."""
    unused = ('mlm', 'nsp', 'dense') if kind == 'encoder' else ('dense',)
    table = parameter_table(computed(architecture, precision), head)
    return {name: spec for name, spec in table.items() if spec.part not in unused}


def inference_parameters(saved: SavedModel, kind: str) -> dict[str, np.ndarray]:
    """The arrays that an export reads; those of the queries contain the attention's scale, 1/sqrt(k)."""
    arrays = {}
    for name, spec in inference_table(saved.architecture, kind, saved.head).items():
        value = np.asarray(saved.parameters[name], dtype=np.float32)
        if spec.attention_scale:
            value = value * np.float32(saved.architecture.layers[spec.layer].k ** -0.5)
        arrays[name] = value
    return arrays


class _Network:
    """The parts of the symbol of one architecture; its tensors are time-major, (length, batch, units)."""

    def __init__(self, architecture: Architecture, precision: str):
        self._architecture = architecture
        self._bfloat16, self._float32 = precision == 'bfloat16', precision == 'float32'
        self._var = functools.cache(F.var)

    def _low(self, data):
        return F.amp_cast(data, dtype=BFLOAT16) if self._bfloat16 else data

    def _high(self, data):
        return F.amp_cast(data, dtype='float32') if self._bfloat16 else data

    def dense(self, data, name: str, units: int, width: int | None = None):
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

    The kind ``encoder`` gives the encoded tokens and the pooled output, ``pretraining`` the scores of
    pre-training as well, ``task`` the scores of `head`. The precision is ``float32``; ``bfloat16`` for the
    encoder's matrix products, all else stays float32; or ``plain`` for float32 with the network's own widths
    and one operator for every product, which int8 is measured on.
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


# The files


def write_deployment(staged: Path, deployment: Deployment, arrays: Mapping[str, np.ndarray]) -> None:
    """Write all files but ONNX and the manifest into a staged directory; the arrays, those of
    `inference_parameters`, are padded with zeros to the widths of `computed`.
    """
    described = deployment.architecture, deployment.kind, deployment.head
    symbol = inference_symbol(*described, precision=deployment.precision)
    table, stored = inference_table(*described, deployment.precision), {}
    for name in filter(table.__contains__, symbol.list_inputs()):
        spec, value = table[name], arrays[name]
        array = mx.nd.array(np.pad(value, [(0, side - own) for side, own in zip(spec.shape, value.shape)]))
        low = deployment.precision == 'bfloat16' and spec.low_precision
        stored[_ARGUMENT + name] = mx.nd.amp_cast(array, dtype=BFLOAT16) if low else array
    text = symbol.tojson(remove_amp_cast=False)  # MXNet drops casts to bfloat16 unless told
    (staged / SYMBOL).write_text(text, encoding='utf-8')
    write_arrays(staged / PARAMETERS, stored)
    (staged / 'architecture.json').write_text(deployment.architecture.to_json(), encoding='utf-8')
    write_vocabulary(deployment.vocabulary, staged / 'vocab.txt')
    if deployment.dense:
        dense = {}
        for i, (weight, bias) in enumerate(deployment.dense):
            dense |= {f'dense.{i}.weight': weight, f'dense.{i}.bias': bias}
        write_arrays(staged / DENSE, dense)


def import_symbol(directory: Path, names: Sequence[str]) -> mx.gluon.SymbolBlock:
    """The exported network, loaded by MXNet alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Cannot decide type')  # of the inputs; they are float32
        return mx.gluon.SymbolBlock.imports(str(directory / SYMBOL), list(names), str(directory / PARAMETERS))


def load_network(directory: Path, deployment: Deployment) -> mx.gluon.SymbolBlock:
    """The network of a deployment directory, hybridized; ValueError if this processor has no bfloat16 and the
    network needs it. Its files are those that the manifest vouches for, and trusted like a program.
    """
    if deployment.precision == 'bfloat16':
        prepare_bfloat16()
    block = import_symbol(directory, deployment.inputs)
    block.hybridize(static_alloc=True)  # not static_shape: lengths vary
    return block


def time_exports(
    architectures: Mapping, *, batch: int = 1, length: int = 128, repeats: int = 15
) -> dict[object, np.ndarray]:
    """The milliseconds of every timed forward pass of every network's float32 encoder, the networks taken in
    turn; their weights are random, for time does not depend on them.
    """
    inputs, blocks, feeds = inputs_of('encoder'), {}, {}
    for key, architecture in architectures.items():
        table = inference_table(architecture, 'encoder', PRETRAINING)
        symbol = inference_symbol(architecture, 'encoder', PRETRAINING)
        blocks[key] = mx.gluon.SymbolBlock(symbol, [F.var(name, dtype='float32') for name in inputs])
        for name, parameter in blocks[key].collect_params().items():
            parameter.shape = table[name].shape
            parameter.initialize(mx.init.Normal(INITIAL_STD))
        blocks[key].hybridize(static_alloc=True, static_shape=True)
        feeds[key] = random_feed(architecture, batch=batch, length=length)
    return pass_times(blocks, feeds, inputs, repeats=repeats)
