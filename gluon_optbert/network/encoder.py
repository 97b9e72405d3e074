"""The one encoder of the package: any widths in any layer, with gates or without."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Type

from gluonnlp.model.bert import BERTEncoder
from mxnet.gluon import HybridBlock, nn

from ..architecture.architecture import Architecture, LayerDims
from .attention import OptSelfAttentionCell, attention_masks
from .feed_forward import OptFeedForward
from .gates import LAYER_NORM_EPS, Gate, StreamLayerNorm, column_of_ones, gated_by
from .precision import Product, lowered, raised


def _ones(F, gate: Optional[Gate], units: int):
    """The values of a gate, or None where there is none."""
    return None if gate is None else gate(F.ones(shape=(units,)))


class OptBERTEncoderCell(HybridBlock):
    """One layer: attention and, unless f = 0, the intermediate block.

    Parameters
    ----------
    dims : LayerDims
    h : int
    gated : type of Gate, optional
        What gates a, k, v and f; none if not given.
    trainable : bool
        Whether there will be a backward pass.
    precision : str
        Of the matrix products with weights, one of `TRAINING_PRECISIONS`.

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
    """

    def __init__(
        self,
        dims: LayerDims,
        h: int,
        *,
        dropout: float = 0.0,
        gated: Optional[Type[Gate]] = None,
        trainable: bool = True,
        precision: str = 'float32',
        weight_initializer=None,
        prefix=None,
        params=None,
    ):
        super().__init__(prefix=prefix, params=params)
        self._dims = dims
        self._dropout = dropout
        self._precision = precision
        with self.name_scope():
            self.attention_cell = OptSelfAttentionCell(
                dims, h, dropout=dropout, precision=precision, weight_initializer=weight_initializer
            )
            self.proj = Product(
                h, dims.a * dims.v, precision=precision, weight_initializer=weight_initializer, prefix='proj_'
            )
            self.dropout_layer = nn.Dropout(dropout)
            self.layer_norm = StreamLayerNorm(h, trainable=trainable)
            self.ffn = (
                OptFeedForward(
                    dims.f,
                    h,
                    dropout=dropout,
                    trainable=trainable,
                    precision=precision,
                    weight_initializer=weight_initializer,
                )
                if dims.f
                else None
            )
            self._has_block = dims.f > 0
            self.gates: Dict[str, Gate] = {}
            if gated:
                for letter in 'akvf' if self._has_block else 'akv':
                    gate = gated(getattr(dims, letter), prefix=f'gate_{letter}_')
                    setattr(self, 'gate_' + letter, gate)
                    self.gates[letter] = gate

    def drop_block(self) -> None:
        """Leave the intermediate block out, before the first pass."""
        self._has_block = False
        self.gates.pop('f', None)
        for name in ('ffn', 'gate_f'):
            self._children.pop(name, None)

    def hybrid_forward(self, F, stream, mask=None, alpha_h=None, column=None):  # pylint: disable=arguments-differ
        alpha = {letter: _ones(F, gate, getattr(self._dims, letter)) for letter, gate in self.gates.items()}
        query_gate = context_gate = None
        if alpha:
            heads = F.reshape(
                F.square(alpha['a']), shape=(-1, 1)
            )  # gates K and Q, V and P: twice on either way
            query_gate = F.reshape(
                F.broadcast_mul(heads, F.reshape(F.square(alpha['k']), shape=(1, -1))), shape=(-1,)
            )
            context_gate = F.reshape(
                F.broadcast_mul(heads, F.reshape(F.square(alpha['v']), shape=(1, -1))), shape=(-1,)
            )
        context, attention = self.attention_cell(stream, mask, query_gate, context_gate, column)
        outputs = raised(F, self.proj(lowered(F, context, self._precision)), self._precision)
        if self._dropout:
            outputs = self.dropout_layer(outputs)
        attended = self.layer_norm(outputs + stream, alpha_h)
        stream = self.ffn(attended, alpha.get('f'), alpha_h, column) if self._has_block else attended
        return stream, attention, attended


class OptBERTEncoder(BERTEncoder):
    """GluonNLP's BERTEncoder for layers of any widths, with the prunable widths' gates if asked for.

    Ungated and at base widths it has GluonNLP's parameter names and computes GluonNLP's numbers.

    Parameters
    ----------
    architecture : Architecture
    dropout : float
        Of the embedding, the attention probabilities and the outputs of both blocks.
    gated : type of Gate, optional
        What multiplies the widths (optBERT, Table 5; `gluon_optbert.shrink` says where it stands).
    trainable : bool
        Whether there will be a backward pass; without, LayerNorm is MXNet's operator.
    precision : str
        Of the matrix products with weights, one of `TRAINING_PRECISIONS`; inputs, outputs and all else are
        float32.
    output_attention, output_all_encodings : bool
        As in GluonNLP.
    output_stream : bool
        Whether to give every state of the residual stream instead: as it enters the first layer, and for each
        layer after its attention block and after the whole layer.

    Inputs:
        - **inputs** : embedded tokens, shape (length, batch, embedding width)
        - **states** : unused, kept for GluonNLP's signature
        - **valid_length** : shape (batch,), or None
        - **alpha_h** : the gate of the stream where the caller has taken it already (`stream_gate`), shape
          (h,)

    Outputs:
        - **outputs** : shape (length, batch, h), or a list of them, one per layer, or with `output_stream` 1
          + 2 per layer
        - **additional_outputs** : list of attention probabilities, shape (batch, a, length, length), or empty
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        dropout: float = 0.0,
        gated: Optional[Type[Gate]] = None,
        trainable: bool = True,
        precision: str = 'float32',
        output_attention: bool = False,
        output_all_encodings: bool = False,
        output_stream: bool = False,
        weight_initializer=None,
        prefix=None,
        params=None,
    ):
        HybridBlock.__init__(self, prefix=prefix, params=params)  # GluonNLP's own makes equal layers
        self.architecture = architecture
        self._units = architecture.embedding_width
        self._max_length = architecture.max_length
        self._output_attention = output_attention
        self._output_all_encodings = output_all_encodings or output_stream
        self._output_stream = output_stream
        self._dropout = dropout
        self._layer_norm_eps = LAYER_NORM_EPS
        self._trainable = trainable
        self._precision = precision
        h, tied = architecture.h, architecture.e is None
        with self.name_scope():
            self.dropout_layer = nn.Dropout(dropout)
            self.layer_norm = StreamLayerNorm(self._units, trainable=trainable)
            self.position_weight = self.params.get(
                'position_weight', shape=(self._max_length, self._units), init=weight_initializer
            )
            self.embed_proj = (
                None
                if tied
                else Product(
                    h,
                    self._units,
                    precision=precision,
                    weight_initializer=weight_initializer,
                    prefix='embed_proj_',
                )
            )
            self.gate_h = gated(h, prefix='gate_h_') if gated else None
            self.transformer_cells = nn.HybridSequential()
            for i, dims in enumerate(architecture.layers):
                self.transformer_cells.add(
                    OptBERTEncoderCell(
                        dims,
                        h,
                        dropout=dropout,
                        gated=gated,
                        trainable=trainable,
                        precision=precision,
                        weight_initializer=weight_initializer,
                        prefix=f'transformer{i}_',
                    )
                )

    def __call__(self, inputs, states=None, valid_length=None, alpha_h=None):  # pylint: disable=arguments-differ
        return HybridBlock.__call__(self, inputs, states, valid_length, alpha_h)

    def gates(self) -> Dict[str, Gate]:
        """The gates by width key; empty without gates."""
        if self.gate_h is None:
            return {}
        found = {'h': self.gate_h}
        for i, cell in enumerate(self.transformer_cells):
            found.update({f'{letter}{i}': gate for letter, gate in cell.gates.items()})
        return found

    def drop_blocks(self, numbers) -> None:
        """Leave out the intermediate blocks of some layers, before the first pass."""
        for number in numbers:
            self.transformer_cells[number].drop_block()

    def keep_layers(self, kept) -> None:
        """Leave out every layer that is not among `kept` (increasing), before the first pass."""
        for number in range(len(self.architecture.layers)):
            if number not in kept:
                del self.transformer_cells._children[str(number)]
        self.architecture = dataclasses.replace(
            self.architecture, layers=tuple(self.architecture.layers[i] for i in kept)
        )

    def stream_gate(self, F):
        """The values of alpha_h, shape (h,), or None; taken once a pass and handed on."""
        return _ones(F, self.gate_h, self.architecture.h)

    def hybrid_forward(self, F, inputs, states=None, valid_length=None, alpha_h=None, position_weight=None):  # pylint: disable=arguments-differ
        steps = F.contrib.arange_like(inputs, axis=0)
        heads = [dims.a for dims in self.architecture.layers]
        masks = {} if valid_length is None else attention_masks(F, steps, valid_length, heads)
        gated = self.gate_h is not None
        if gated and alpha_h is None:
            alpha_h = self.stream_gate(F)
        column = column_of_ones(F, inputs) if gated and self._trainable else None

        position = F.Embedding(steps, position_weight, input_dim=self._max_length, output_dim=self._units)
        stream = F.broadcast_add(inputs, F.expand_dims(position, axis=1))
        if self._dropout:
            stream = self.dropout_layer(stream)
        if self.embed_proj is None:
            stream = self.layer_norm(stream, alpha_h)
        else:
            stream = self.embed_proj(lowered(F, self.layer_norm(stream), self._precision))
            stream = raised(F, stream, self._precision)
            stream = gated_by(F, stream, alpha_h, column, self.architecture.h) if gated else stream

        def without_padding(outputs):
            return (
                outputs
                if valid_length is None
                else F.SequenceMask(outputs, sequence_length=valid_length, use_sequence_length=True, axis=0)
            )

        encodings, attentions = [stream] if self._output_stream else [], []
        for dims, cell in zip(self.architecture.layers, self.transformer_cells):
            stream, attention, attended = cell(stream, masks.get(dims.a), alpha_h, column)
            encodings += [attended, stream] if self._output_stream else [stream]
            attentions.append(attention)
        additional = attentions if self._output_attention else []
        if self._output_all_encodings:
            return [without_padding(outputs) for outputs in encodings], additional
        return without_padding(stream), additional
