"""The one encoder of the package: layers of any widths, with gates or without."""

from __future__ import annotations

from collections.abc import Iterable

import mxnet as mx
from gluonnlp.model.bert import BERTEncoder, DotProductSelfAttentionCell
from mxnet.gluon import HybridBlock, nn

from ..architecture.architecture import Architecture, LayerDims
from .gates import Gate, StreamLayerNorm, Tensor, column_of_ones, gated_by
from .settings import NetworkSettings, Product, lowered, product, raised

MASKED_SCORE = -1e4  # added to the scores of padding: their softmax is exactly zero, and float16 holds it


def padding(F, steps: Tensor, valid_length: Tensor) -> Tensor:
    """Mark the padding of sequences: 1 there and 0 elsewhere, shape (batch, length).

    Parameters
    ----------
    steps : Tensor, shape (length,)
        The positions 0, 1, ….
    valid_length : Tensor, shape (batch,)
    """
    return F.broadcast_greater_equal(F.reshape(steps, shape=(1, -1)), F.reshape(valid_length, shape=(-1, 1)))


def attention_masks(F, steps: Tensor, valid_length: Tensor, heads: Iterable[int]) -> dict[int, Tensor]:
    """The summands of the scores of attention, shape (batch * a, length, length), by number of heads a.

    `steps` and `valid_length` are those of `padding`.

    The mask has no gradient: neither the comparison nor the positions pass one on.
    """
    scores = F.reshape(padding(F, steps, valid_length) * MASKED_SCORE, shape=(0, 1, 1, -1))
    scores = F.broadcast_add(scores, F.reshape(F.zeros_like(steps), shape=(1, 1, -1, 1)))
    return {
        a: F.reshape(F.broadcast_axis(scores, axis=1, size=a), shape=(-3, 0, 0)) for a in sorted(set(heads))
    }


def split_heads(F, data: Tensor, a: int, width: int) -> Tensor:
    """(length, batch, a * width) to (batch * a, length, width)."""
    data = F.reshape(data, shape=(0, 0, a, width))
    return F.reshape(F.transpose(data, axes=(1, 2, 0, 3)), shape=(-3, 0, 0))


def join_heads(F, data: Tensor, a: int) -> Tensor:
    """(batch * a, length, width) to (length, batch, a * width)."""
    data = F.reshape(data, shape=(-4, -1, a, 0, 0))  # (batch, a, length, width)
    return F.reshape(F.transpose(data, axes=(2, 0, 1, 3)), shape=(0, 0, -3))


class OptSelfAttentionCell(DotProductSelfAttentionCell):
    """Multi-head self attention whose heads have keys of width k and values of width v (optBERT, section 4).

    A score is added at padding, and the softmax is a plain one. GluonNLP's softmax with lengths gives the
    same numbers, but MXNet computes it in a scalar loop.

    Inputs:
        - **stream** : shape (length, batch, h)
        - **mask** : added to the scores, shape (batch * a, length, length), or None
        - **query_gate** : what queries are multiplied by, shape (a * k,), or None
        - **context_gate** : what head outputs are multiplied by, shape (a * v,), or None
        - **column** : ones, shape (length, batch, 1), where gates are trained

    Outputs:
        - **context** : shape (length, batch, a * v)
        - **attention** : probabilities, shape (batch, a, length, length)
        - **projected** : list of queries, keys and values, shapes (length, batch, a * k or a * v)
    """

    def __init__(self, dims: LayerDims, h: int, settings: NetworkSettings, prefix=None, params=None):
        HybridBlock.__init__(self, prefix=prefix, params=params)  # GluonNLP's own makes square projections
        self.dims, self._settings = dims, settings
        with self.name_scope():
            for name, width in (('query', dims.k), ('key', dims.k), ('value', dims.v)):
                rows = dims.a * width
                setattr(self, f'{name}_weight', self.params.get(f'{name}_weight', shape=(rows, h)))
                setattr(self, f'{name}_bias', self.params.get(f'{name}_bias', shape=(rows,), init='zeros'))
            self.dropout_layer = nn.Dropout(settings.dropout)

    def hybrid_forward(
        self,
        F,
        stream,
        mask=None,
        query_gate=None,
        context_gate=None,
        column=None,
        query_weight=None,
        query_bias=None,
        key_weight=None,
        key_bias=None,
        value_weight=None,
        value_bias=None,
    ):
        dims, precision = self.dims, self._settings.precision
        scale = dims.k**-0.5
        narrow = lowered(F, stream, precision)

        def project(weight, bias, width):
            projected = product(F, narrow, weight, bias, units=dims.a * width, precision=precision)
            return raised(F, projected, precision)

        projected = [
            project(query_weight, query_bias, dims.k),
            project(key_weight, key_bias, dims.k),
            project(value_weight, value_bias, dims.v),
        ]
        query, key, value = projected
        if query_gate is None:
            query = query * scale
        else:
            query = gated_by(F, query, query_gate * scale, column, dims.a * dims.k)
        query = split_heads(F, query, dims.a, dims.k)
        key, value = split_heads(F, key, dims.a, dims.k), split_heads(F, value, dims.a, dims.v)

        scores = F.batch_dot(query, key, transpose_b=True)  # (batch * a, length, length)
        if mask is not None:
            scores = scores + mask
        attention = F.softmax(scores, axis=-1)
        dropped = self.dropout_layer(attention) if self._settings.dropout else attention
        context = join_heads(F, F.batch_dot(dropped, value), dims.a)
        context = gated_by(F, context, context_gate, column, dims.a * dims.v)
        return context, F.reshape(attention, shape=(-4, -1, dims.a, 0, 0)), projected


class OptFeedForward(HybridBlock):
    """The intermediate block: D, GELU, G, skip connection, LayerNorm. Names are those of GluonNLP's
    PositionwiseFFN.

    Inputs:
        - **stream** : shape (length, batch, h)
        - **alpha_f** : shape (f,), or None
        - **alpha_h** : shape (h,), or None
        - **column** : ones, shape (length, batch, 1), where gates are trained

    Outputs:
        - **stream** : shape (length, batch, h)
    """

    def __init__(self, f: int, h: int, eps: float, settings: NetworkSettings, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._f, self._h, self._settings = f, h, settings
        with self.name_scope():
            self.ffn_1 = Product(f, h, precision=settings.precision, prefix='ffn_1_')
            self.ffn_2 = Product(h, f, precision=settings.precision, prefix='ffn_2_')
            self.dropout_layer = nn.Dropout(settings.dropout)
            self.layer_norm = StreamLayerNorm(h, eps, trainable=settings.trainable)

    def hybrid_forward(self, F, stream, alpha_f=None, alpha_h=None, column=None):
        settings, precision = self._settings, self._settings.precision
        in_stream, in_block = settings.places(alpha_h)
        read = gated_by(F, stream, in_block, column, self._h)
        inner = self.ffn_1(lowered(F, read, precision))
        if alpha_f is None:
            inner = F.LeakyReLU(inner, act_type='gelu')  # in the precision of both products
        else:
            inner = gated_by(F, raised(F, inner, precision), alpha_f, column, self._f)
            inner = gated_by(F, F.LeakyReLU(inner, act_type='gelu'), alpha_f, column, self._f)
            inner = lowered(F, inner, precision)
        outputs = gated_by(F, raised(F, self.ffn_2(inner), precision), in_block, column, self._h)
        outputs = self.dropout_layer(outputs) if settings.dropout else outputs
        return self.layer_norm(outputs + stream, in_stream)


def _head_gates(F, alpha: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The factors of the queries and of the head outputs, shapes (a * k,) and (a * v,).

    Every gate is squared: alpha_a and alpha_k stand in Q and in K, alpha_a and alpha_v in V and in P.
    """
    heads = F.reshape(F.square(alpha['a']), shape=(-1, 1))
    keys, values = (
        F.broadcast_mul(heads, F.reshape(F.square(alpha[letter]), shape=(1, -1))) for letter in 'kv'
    )
    return F.reshape(keys, shape=(-1,)), F.reshape(values, shape=(-1,))


def without_padding(F, stream: Tensor, valid_length: Tensor) -> Tensor:
    """The stream with zeros at padding, shape (length, batch, h)."""
    return F.SequenceMask(stream, sequence_length=valid_length, use_sequence_length=True, axis=0)


class OptBERTEncoderCell(HybridBlock):
    """One layer: attention and, unless f = 0, the intermediate block.

    Inputs:
        - **stream** : shape (length, batch, h)
        - **mask** : shape (batch * a, length, length), or None
        - **alpha_h** : the gate of the stream, shape (h,), or None
        - **column** : ones, shape (length, batch, 1), where gates are trained

    Outputs:
        - **stream** : shape (length, batch, h)
        - **attention** : shape (batch, a, length, length)
        - **attended** : the stream between the two blocks, shape (length, batch, h); the first output itself
          where f = 0
        - **projected** : list of queries, keys and values, shapes (length, batch, a * k or a * v)
    """

    def __init__(
        self, dims: LayerDims, h: int, eps: float, settings: NetworkSettings, prefix=None, params=None
    ):
        super().__init__(prefix=prefix, params=params)
        self._h, self._settings = h, settings
        self.gates: dict[str, Gate] = {}
        with self.name_scope():
            self.attention_cell = OptSelfAttentionCell(dims, h, settings)
            self.proj = Product(h, dims.a * dims.v, precision=settings.precision, prefix='proj_')
            self.dropout_layer = nn.Dropout(settings.dropout)
            self.layer_norm = StreamLayerNorm(h, eps, trainable=settings.trainable)
            self.ffn = OptFeedForward(dims.f, h, eps, settings) if dims.f else None
            if settings.gate:
                for letter in 'akvf' if dims.f else 'akv':
                    gate = settings.gate(getattr(dims, letter), prefix=f'gate_{letter}_')
                    setattr(self, 'gate_' + letter, gate)
                    self.gates[letter] = gate

    def hybrid_forward(self, F, stream, mask=None, alpha_h=None, column=None):
        alpha = {letter: gate.factors(F) for letter, gate in self.gates.items()}
        query_gate, context_gate = _head_gates(F, alpha) if alpha else (None, None)
        settings, precision = self._settings, self._settings.precision
        in_stream, in_block = settings.places(alpha_h)
        read = gated_by(F, stream, in_block, column, self._h)
        context, attention, projected = self.attention_cell(read, mask, query_gate, context_gate, column)
        outputs = raised(F, self.proj(lowered(F, context, precision)), precision)
        outputs = gated_by(F, outputs, in_block, column, self._h)
        outputs = self.dropout_layer(outputs) if settings.dropout else outputs
        attended = self.layer_norm(outputs + stream, in_stream)
        if self.ffn is None:
            return attended, attention, attended, projected
        return self.ffn(attended, alpha.get('f'), alpha_h, column), attention, attended, projected


class OptBERTEncoder(BERTEncoder):
    """GluonNLP's BERTEncoder with layers of any widths, and gates where the settings want them.

    Without gates and at base widths it has GluonNLP's parameter names and computes GluonNLP's numbers.

    Inputs:
        - **inputs** : embedded tokens, shape (length, batch, embedding width)
        - **states** : unused; GluonNLP's signature has it
        - **valid_length** : shape (batch,), or None
        - **alpha_h** : the gate of the stream, shape (h,), if the caller has it from `stream_gate`

    Outputs:
        - **outputs** : shape (length, batch, h); a list of one per layer with `output_all_encodings`
        - **additional_outputs** : list of attention probabilities, shape (batch, a, length, length), or empty
        - **relations** : with `output_relations`, the queries, keys and values of the last layer, shapes
          (length, batch, a * k or a * v)
    """

    def __init__(
        self,
        architecture: Architecture,
        settings: NetworkSettings = NetworkSettings(),
        prefix=None,
        params=None,
    ):
        HybridBlock.__init__(self, prefix=prefix, params=params)  # GluonNLP's own makes equal layers
        self.architecture = architecture
        self._settings = settings
        h, width, eps = architecture.h, architecture.embedding_width, architecture.layer_norm_eps
        with self.name_scope():
            self.dropout_layer = nn.Dropout(settings.dropout)
            self.layer_norm = StreamLayerNorm(width, eps, trainable=settings.trainable)
            self.position_weight = self.params.get('position_weight', shape=(architecture.max_length, width))
            self.embed_proj = None
            if architecture.e is not None:
                self.embed_proj = Product(h, width, precision=settings.precision, prefix='embed_proj_')
            self.gate_h = settings.gate(h, prefix='gate_h_') if settings.gate else None
            self.transformer_cells = nn.HybridSequential()
            for i, dims in enumerate(architecture.layers):
                self.transformer_cells.add(
                    OptBERTEncoderCell(dims, h, eps, settings, prefix=f'transformer{i}_')
                )

    def __call__(self, inputs, states=None, valid_length=None, alpha_h=None):
        return HybridBlock.__call__(self, inputs, states, valid_length, alpha_h)

    def gates(self) -> dict[str, Gate]:
        """The gates by width key; empty without gates."""
        if self.gate_h is None:
            return {}
        gates = {'h': self.gate_h}
        for i, cell in enumerate(self.transformer_cells):
            gates.update({f'{letter}{i}': gate for letter, gate in cell.gates.items()})
        return gates

    def stream_gate(self, F) -> Tensor | None:
        """The values of alpha_h, shape (h,), or None; a pass takes them once and hands them on."""
        return None if self.gate_h is None else self.gate_h.factors(F)

    def hybrid_forward(self, F, inputs, states=None, valid_length=None, alpha_h=None, position_weight=None):
        settings, layers = self._settings, self.architecture.layers
        steps = F.contrib.arange_like(inputs, axis=0)
        masks = {}
        if valid_length is not None:
            masks = attention_masks(F, steps, valid_length, [dims.a for dims in layers])
        if alpha_h is None:
            alpha_h = self.stream_gate(F)
        column = column_of_ones(F, inputs) if settings.gate and settings.trainable else None

        in_stream, _ = settings.places(alpha_h)
        stream = self._embedded(F, inputs, steps, position_weight, in_stream, column)
        encodings, attentions = [], []
        for dims, cell in zip(layers, self.transformer_cells):
            stream, attention, _, projected = cell(stream, masks.get(dims.a), alpha_h, column)
            encodings.append(stream)
            attentions.append(attention)
        outputs = [
            state if valid_length is None else without_padding(F, state, valid_length)
            for state in (encodings if settings.output_all_encodings else [stream])
        ]
        relations = [projected] if settings.output_relations else []
        attentions = attentions if settings.output_attention else []
        return (outputs if settings.output_all_encodings else outputs[0], attentions, *relations)

    def embed(self, inputs: mx.nd.NDArray) -> mx.nd.NDArray:
        """The input of the first layer of a network without gates, shape (length, batch, h), outside of a
        pass; from embedded tokens with their types, shape (length, batch, embedding width).
        """
        steps = mx.nd.arange(inputs.shape[0], ctx=inputs.context)
        return self._embedded(mx.nd, inputs, steps, self.position_weight.data(inputs.context), None, None)

    def _embedded(self, F, inputs, steps, position_weight, alpha_h, column):
        """Tokens and positions as they enter the first layer, shape (length, batch, h)."""
        width, precision = self.architecture.embedding_width, self._settings.precision
        position = F.Embedding(
            steps, position_weight, input_dim=self.architecture.max_length, output_dim=width
        )
        stream = F.broadcast_add(inputs, F.expand_dims(position, axis=1))
        if self._settings.dropout:
            stream = self.dropout_layer(stream)
        if self.embed_proj is None:
            return self.layer_norm(stream, alpha_h)
        stream = raised(F, self.embed_proj(lowered(F, self.layer_norm(stream), precision)), precision)
        return gated_by(F, stream, alpha_h, column, self.architecture.h)
