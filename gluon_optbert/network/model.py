"""The network around the encoder: embeddings, pooler, and the heads of pre-training or of a task (optBERT,
Figure 1)."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel
from mxnet.gluon import nn

from ..architecture.architecture import Architecture
from ..architecture.parameters import GATE, INITIAL_STD, TIED, Parameters, check_parameters
from .encoder import OptBERTEncoder
from .gates import Gates, StreamLayerNorm, Tensor, column_of_ones, spread
from .settings import NetworkSettings


def gather_masked(F, encoded: Tensor, masked_positions: Tensor) -> Tensor:
    """The encoded tokens at the masked positions, shape (batch, masked, h).

    Parameters
    ----------
    encoded : Tensor, shape (length, batch, h)
    masked_positions : Tensor, shape (batch, masked)
    """
    rows = F.broadcast_add(
        F.zeros_like(masked_positions), F.expand_dims(F.contrib.arange_like(masked_positions, axis=0), axis=1)
    )
    places = F.stack(F.reshape(masked_positions, shape=(-1,)), F.reshape(rows, shape=(-1,)), axis=0)
    return F.reshape_like(
        F.gather_nd(encoded, places), masked_positions, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2
    )


def first_tokens(F, encoded: Tensor) -> Tensor:
    """The encoded first token of every sequence, [CLS]: (length, batch, h) to (batch, h)."""
    return F.reshape(F.slice_axis(encoded, axis=0, begin=0, end=1), shape=(-3, 0))


class VocabularyScores(nn.Dense):
    """The last layer of the MLM decoder.

    MXNet 1.9.1 with oneDNN leaves the gradient of a bias at zero if its weight needs none. A bias that is
    trained while the weight is frozen is therefore added by a product of its own. The first pass fixes which
    of the two it is.

    Inputs:
        - **data** : shape (batch, masked, width)

    Outputs:
        - **scores** : shape (batch, masked, units)
    """

    def _alias(self):
        return 'dense'  # in the names of exported parameters

    def hybrid_forward(self, F, x, weight, bias=None):
        if self.weight.grad_req != 'null' or self.bias.grad_req == 'null':
            return super().hybrid_forward(F, x, weight, bias)
        scores = F.FullyConnected(x, weight, no_bias=True, num_hidden=self._units, flatten=False)
        return scores + spread(F, bias, column_of_ones(F, x), self._units)


class OptBERTModel(BERTModel):
    """GluonNLP's BERTModel around an `OptBERTEncoder`: embeddings, pooler, MLM decoder and NSP classifier.

    Inputs and outputs are GluonNLP's. With the head of a task the only output is its scores, shape (batch,
    outputs), or (batch, length, 2) for question answering; with ``output_all_encodings`` the states of all
    layers come before it. With ``output_relations`` the queries, keys and values of the last layer, shape
    (batch, length, a * k or a * v), come behind the states. With gates, alpha_h also multiplies the pooled
    units that the NSP head or a task's head reads, and the LayerNorm of the MLM head.

    Attributes
    ----------
    architecture : Architecture
    head : Head
        The heads of pre-training, or that of a task.
    precision : str
        Of the encoder's matrix products.
    """

    def __init__(
        self,
        architecture: Architecture,
        settings: NetworkSettings = NetworkSettings(),
        prefix=None,
        params=None,
    ):
        self.architecture, self._settings = architecture, settings
        self.head = head = settings.head
        self.precision = settings.precision
        super().__init__(
            OptBERTEncoder(architecture, settings, prefix=None if prefix is None else prefix + 'encoder_'),
            architecture.vocab_size,
            architecture.token_types,
            architecture.h,
            architecture.embedding_width,
            use_pooler=head.pooled if head.outputs else settings.use_pooler,
            use_decoder=settings.use_decoder and not head.outputs,
            use_classifier=settings.use_classifier and not head.outputs,
            prefix=prefix,
            params=params,
        )
        with self.name_scope():
            self.task = None
            if head.outputs:
                self.task = nn.Dense(head.outputs, in_units=architecture.h, flatten=False, prefix='task_')
            self.task_dropout = nn.Dropout(settings.dropout)

    @property
    def gates(self) -> Gates:
        """The gates of the network; none if it was built without."""
        return Gates({key: gate.alpha for key, gate in self.encoder.gates().items()})

    # These three state their input widths. Without them initialisation is deferred, and the first step would
    # draw random numbers.
    def _get_classifier(self, prefix):
        with self.name_scope():
            return nn.Dense(2, in_units=self._units, prefix=prefix)

    def _get_pooler(self, units, prefix):
        with self.name_scope():
            return nn.Dense(units, in_units=units, flatten=False, activation='tanh', prefix=prefix)

    def _get_decoder(self, units, vocab_size, embed, prefix):
        width, eps = self.architecture.embedding_width, self.architecture.layer_norm_eps
        with self.name_scope():
            decoder = nn.HybridSequential(prefix=prefix)
            decoder.add(nn.Dense(width, in_units=units, flatten=False))
            decoder.add(nn.GELU())
            decoder.add(StreamLayerNorm(width, eps, trainable=self._settings.trainable))
            decoder.add(
                VocabularyScores(vocab_size, in_units=width, flatten=False, params=embed.collect_params())
            )
        return decoder

    def hybrid_forward(self, F, inputs, token_types, valid_length=None, masked_positions=None):
        every_layer = self._settings.output_all_encodings
        embedding = self.word_embed(inputs) + self.token_type_embed(token_types)
        alpha_h = self.encoder.stream_gate(F)
        encoded, attention, *relations = self.encoder(
            F.transpose(embedding, axes=(1, 0, 2)), valid_length=valid_length, alpha_h=alpha_h
        )
        alpha_h, _ = self._settings.places(alpha_h)  # the heads read the stream
        states = encoded if every_layer else [encoded]  # (length, batch, h) each
        encodings = [F.transpose(state, axes=(1, 0, 2)) for state in states]
        outputs = [encodings if every_layer else encodings[0]]
        outputs += [[F.transpose(one, axes=(1, 0, 2)) for one in projected] for projected in relations]
        if attention and self.task is None:
            outputs.append(attention)

        if self._use_pooler:
            pooled = gated = self.pooler(first_tokens(F, states[-1]))  # (batch, h)
            if alpha_h is not None:
                gated = F.broadcast_mul(pooled, F.reshape(alpha_h, shape=(1, -1)))
        if self.task is not None:
            if not self.head.pooled:
                scores = self.task(encodings[-1])
            else:
                scores = self.task(self.task_dropout(gated) if self._settings.dropout else gated)
            return (*outputs, scores) if every_layer else scores
        if self._use_pooler:
            outputs.append(pooled)
            if self._use_classifier:
                outputs.append(self.classifier(gated))
        if self._use_decoder:
            transform, gelu, norm, scores = self.decoder
            masked = transform(gather_masked(F, states[-1], masked_positions))  # (batch, masked, e or h)
            gate = alpha_h if self.architecture.e is None else None
            outputs.append(scores(norm(gelu(masked), gate)))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]


def named_parameters(model: OptBERTModel) -> dict[str, mx.gluon.Parameter]:
    """The parameters of a network by their structural names, without gates and tied names."""
    return {
        name: parameter
        for name, parameter in model._collect_params_with_prefix().items()
        if not name.endswith(GATE) and name != TIED
    }


def read_parameters(model: OptBERTModel) -> dict[str, np.ndarray]:
    """The weights of a network as arrays, without gates, by the names of `network_shapes`."""
    return {name: parameter.data().asnumpy() for name, parameter in named_parameters(model).items()}


def build(
    architecture: Architecture,
    parameters: Parameters | None = None,
    settings: NetworkSettings = NetworkSettings(),
    *,
    seed: int = 0,
    initial_std: float = INITIAL_STD,
    ctx: mx.Context | None = None,
    **changes: Any,
) -> OptBERTModel:
    """A hybridized network with the parameters of the caller, or with random ones; ValueError if they do not
    fit the architecture.

    Parameters
    ----------
    parameters : mapping of name to np.ndarray, optional
        All of them, as `network_shapes` lists them.
    seed : int
        Of the random initial weights.
    initial_std : float
        Their standard deviation.
    ctx : mx.Context, optional
        Where the network lives; the CPU unless given.
    **changes
        Fields of `NetworkSettings` that replace those of `settings`.
    """
    ctx = ctx or mx.cpu()
    settings = dataclasses.replace(settings, **changes)
    model = OptBERTModel(architecture, settings)
    if parameters is None:
        mx.random.seed(seed)
        np.random.seed(seed)  # MXNet's initializers draw from it
        model.initialize(mx.init.Normal(initial_std), ctx=ctx)
    else:
        check_parameters(parameters, architecture, settings.head)
        own = model.collect_params()
        for name, one in named_parameters(model).items():  # one at a time, lest all are in memory twice
            array = mx.nd.array(parameters[name], dtype=one.dtype)
            own.load_dict({one.name: array}, ctx, allow_missing=True)
        for gate in model.gates.parameters.values():
            gate.initialize(ctx=ctx)
    model.hybridize(static_alloc=True)
    model.apply(_let_go)
    return model


def _let_go(block: mx.gluon.Block) -> None:
    """Have a block go with its last reference. Its name scope refers to it, so its arrays would stay until
    Python looks for cycles: gigabytes, where one network is built after the other.
    """
    block._scope._block = weakref.proxy(block)
