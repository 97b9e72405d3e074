"""Repairing a cut: every layer of the cut network learns, by least squares, what the uncut layer computes.

Layer by layer from the input on, the cut network's own inputs meet the uncut network's outputs:

1. K, Q and V learn the uncut projections of the units that stay.
2. P learns what is missing: the uncut sum before the LayerNorm, minus the cut network's skip connection.
   Gamma and beta of the LayerNorm follow.
3. D learns the uncut filters that stay; then G and its LayerNorm as P and its own.
4. After the last layer, the transform of the MLM head and its LayerNorm follow, if there is one.

The pooler, the NSP head and the head of a task stay as the cut left them: a sequence has one [CLS], and they
would need more. Where layers are dropped, the last product before the gap, or the LayerNorm of the embedding,
learns what the uncut network computes just before the next layer that stayed.

Tokens go from layer to layer in files, so memory does not grow with them."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..architecture.architecture import Axis
from ..architecture.heads import PRETRAINING
from ..cutting.repairs import DenseRegression, ScaleRegression
from ..cutting.selection import Selection
from ..cutting.shrink import kept_along
from ..network.model import OptBERTModel, read_parameters
from ..network.running import build_open, context_of, embedded, flat, masks_of, reading, real_tokens
from ..network.saved_model import SavedModel
from ..text.batches import Batch
from ..training.distributed import Workers

TOKENS_PER_INPUT = 10  # of the widest product


def tokens_wanted(model: SavedModel) -> int:
    """How many tokens the reconstruction of a cut network reads: ten for each input of its widest product."""
    architecture = model.architecture
    widest = max(max(dims.a * dims.v, dims.f) for dims in architecture.layers)
    return TOKENS_PER_INPUT * max(architecture.h, widest)


Pair = Tuple[np.ndarray, np.ndarray]  # inputs and targets of some tokens, shapes (tokens, …)
Pairs = Callable[[int], Pair]  # of a batch, by its number


class _Tokens:
    """Values of every token, batch by batch, in files.

    Parameters
    ----------
    directory : Path
    batches : list of Batch
    """

    def __init__(self, directory: Path, batches: List[Batch]):
        self._directory, self._batches = directory, batches
        self._real = [real_tokens(batch) for batch in batches]

    def __len__(self) -> int:
        return len(self._batches)

    def write(self, name: str, i: int, values: np.ndarray) -> None:
        """Keep an array of batch i, shape (length * batch, units)."""
        np.save(self._directory / f'{name}-{i}.npy', values)

    def read(self, name: str, i: int) -> np.ndarray:
        """What was kept."""
        return np.load(self._directory / f'{name}-{i}.npy')

    def real(self, values: np.ndarray, i: int) -> np.ndarray:
        """The rows of batch i that are no padding."""
        return values[self._real[i]]

    def stream(self, name: str, i: int, model: OptBERTModel) -> mx.nd.NDArray:
        """What was kept, as a layer of the network reads it: shape (length, batch, units)."""
        values = self.read(name, i)
        shape = (*self._batches[i].input_ids.T.shape, -1)
        return mx.nd.array(values.reshape(shape), ctx=context_of(model))

    def masks(self, i: int, model: OptBERTModel) -> Dict[int, mx.nd.NDArray]:
        """What batch i adds to the scores of attention, by number of heads."""
        return masks_of(self._batches[i], model)

    def embedded(self, i: int, model: OptBERTModel) -> mx.nd.NDArray:
        """What enters the network's first layer for batch i."""
        return embedded(model, self._batches[i])


def _normalized(norm: gluon.nn.LayerNorm, sums: np.ndarray) -> np.ndarray:
    """What a LayerNorm makes of its input before gamma and beta, shape (tokens, units)."""
    centred = sums - sums.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + norm._epsilon)


def _applied(dense: gluon.nn.Dense, inputs: np.ndarray) -> np.ndarray:
    """The output of a dense layer, shape (tokens, outputs)."""
    return inputs @ dense.weight.data().asnumpy().T + dense.bias.data().asnumpy()


class _Repair:
    """The two networks, and the tokens on their way through both.

    Parameters
    ----------
    whole, cut : SavedModel
    selection : Selection
        The units of `whole` that stayed in `cut`.
    tokens : _Tokens
    workers : Workers
    """

    def __init__(
        self, whole: SavedModel, cut: SavedModel, selection: Selection, tokens: _Tokens, workers: Workers
    ):
        self._architecture, self._selection, self._tokens = whole.architecture, selection, tokens
        self._workers = workers
        self.whole, self.cut = (build_open(saved, workers.context()) for saved in (whole, cut))
        self._stream = self._kept(('h',))
        chosen = selection.layers
        self._layers = list(range(len(whole.architecture.layers)) if chosen is None else chosen)

    def _kept(self, axis: Axis) -> np.ndarray:
        """Where the units that stayed stand along a side of the uncut tensors."""
        return kept_along(axis, self._architecture, self._selection)

    def _total(self, array: np.ndarray) -> np.ndarray:
        return self._workers.total(array, name='reconstruction')

    def _learn(self, weight: gluon.Parameter, bias: gluon.Parameter, pairs: Pairs) -> None:
        """Replace a dense layer by what turns the inputs into the targets."""
        regression = DenseRegression(weight.shape[1], weight.shape[0])
        for i in range(len(self._tokens)):
            inputs, targets = pairs(i)
            regression.add(self._tokens.real(inputs, i), self._tokens.real(targets, i))
        solved = regression.solve(weight.data().asnumpy(), bias.data().asnumpy(), total=self._total)
        for parameter, value in zip((weight, bias), solved):
            parameter.set_data(mx.nd.array(value))

    def _normalize(self, norm: gluon.nn.LayerNorm, sums: str, targets: Callable[[int], np.ndarray]) -> None:
        """Replace gamma and beta by those that bring the normalized sums to the targets."""
        regression = ScaleRegression(norm.gamma.shape[0])
        for i in range(len(self._tokens)):
            normalized = _normalized(norm, self._tokens.read(sums, i))
            regression.add(self._tokens.real(normalized, i), self._tokens.real(targets(i), i))
        solved = regression.solve(norm.gamma.data().asnumpy(), norm.beta.data().asnumpy(), total=self._total)
        for parameter, value in zip((norm.gamma, norm.beta), solved):
            parameter.set_data(mx.nd.array(value))

    def _write_normalized(self, norm: gluon.nn.LayerNorm, sums: str, name: str) -> None:
        """Keep what the LayerNorm makes of sums that were kept."""
        gamma, beta = norm.gamma.data().asnumpy(), norm.beta.data().asnumpy()
        for i in range(len(self._tokens)):
            self._tokens.write(name, i, _normalized(norm, self._tokens.read(sums, i)) * gamma + beta)

    def embeddings(self) -> None:
        """Leave the streams of both networks as they enter the first layer that stayed."""
        encoder, tokens = self.cut.encoder, self._tokens
        for i in range(len(tokens)):
            stream = self._through(range(self._layers[0]), tokens.embedded(i, self.whole), i)
            tokens.write('whole', i, flat(stream))
            with reading({'norm': encoder.layer_norm}) as read:
                stream = tokens.embedded(i, self.cut)
            tokens.write('cut', i, flat(stream))
            tokens.write('sum', i, flat(read['norm.input']))
            tokens.write('embedding', i, flat(read['norm.output']))
        if encoder.embed_proj is None:
            self._normalize(encoder.layer_norm, 'sum', self._whole_stream)
            self._write_normalized(encoder.layer_norm, 'sum', 'cut')
            return
        self._learn(
            encoder.embed_proj.weight,
            encoder.embed_proj.bias,
            lambda i: (tokens.read('embedding', i), self._whole_stream(i)),
        )
        for i in range(len(tokens)):
            tokens.write('cut', i, _applied(encoder.embed_proj, tokens.read('embedding', i)))

    def _whole_stream(self, i: int) -> np.ndarray:
        """The units of the uncut stream that stayed."""
        return self._tokens.read('whole', i)[:, self._stream]

    def layer(self, j: int) -> None:
        """Repair layer j of the cut network; the streams of both go through it."""
        cell, first = self.cut.encoder.transformer_cells[j], self._layers[j]
        following = self._layers[j + 1 :]
        last = (following[0] if following else len(self._architecture.layers)) - 1
        self._run_whole(first, last)
        self._projections(cell.attention_cell, first)
        self._block_after_attention(cell)
        if cell.ffn is not None:
            self._intermediate_block(cell.ffn, first)
        for i in range(len(self._tokens)):
            self._tokens.write('whole', i, self._tokens.read('next', i))

    def _through(self, layers: range, stream: mx.nd.NDArray, i: int) -> mx.nd.NDArray:
        """What some layers of the uncut network make of the stream of batch i."""
        masks = self._tokens.masks(i, self.whole)
        for number in layers:
            heads = self._architecture.layers[number].a
            stream = self.whole.encoder.transformer_cells[number](stream, masks.get(heads))[0]
        return stream

    def _run_whole(self, first: int, last: int) -> None:
        """Keep what the uncut layers from `first` to `last` compute: ``attended`` and ``next``, and of the
        units that stayed, the sums before the LayerNorms that give them.
        """
        cells = self.whole.encoder.transformer_cells
        end = cells[last].layer_norm if cells[last].ffn is None else cells[last].ffn.layer_norm
        blocks = {'attended': cells[first].layer_norm, 'next': end}
        for i in range(len(self._tokens)):
            with reading(blocks) as read:
                self._through(range(first, last + 1), self._tokens.stream('whole', i, self.whole), i)
            for name in blocks:
                self._tokens.write(name, i, flat(read[f'{name}.output']))
                self._tokens.write(f'{name}-sum', i, flat(read[f'{name}.input'])[:, self._stream])

    def _projections(self, attention: gluon.Block, first: int) -> None:
        """Q, K and V learn the uncut projections of the units that stayed."""
        original = self.whole.encoder.transformer_cells[first].attention_cell
        whole_k, k = self._architecture.layers[first].k, len(self._kept((f'k{first}',)))
        for name, letter, scale in (
            ('query', 'k', np.sqrt(k / whole_k)),  # attention divides by the square root of k
            ('key', 'k', 1.0),
            ('value', 'v', 1.0),
        ):
            rows = self._kept((f'a{first}', f'{letter}{first}'))
            weight, bias = (
                getattr(original, f'{name}_{kind}').data().asnumpy()[rows] * np.float32(scale)
                for kind in ('weight', 'bias')
            )
            parameters = (getattr(attention, f'{name}_{kind}') for kind in ('weight', 'bias'))
            self._project(*parameters, 'whole', (weight, bias))

    def _project(
        self, weight: gluon.Parameter, bias: gluon.Parameter, source: str, original: Tuple[np.ndarray, ...]
    ) -> None:
        """Replace a dense layer by one that gives the outputs of an original, which reads the uncut stream
        `source`.
        """
        tokens = self._tokens
        self._learn(
            weight,
            bias,
            lambda i: (tokens.read('cut', i), tokens.read(source, i) @ original[0].T + original[1]),
        )

    def _block_after_attention(self, cell: gluon.Block) -> None:
        """P and the LayerNorm after it; the last of the layer where it has no intermediate block."""
        tokens, dims = self._tokens, cell._dims
        for i in range(len(tokens)):
            stream = tokens.stream('cut', i, self.cut)
            context = cell.attention_cell(stream, tokens.masks(i, self.cut).get(dims.a))[0]
            tokens.write('context', i, flat(context))
        self._output(cell.proj, cell.layer_norm, 'context', 'attended' if dims.f else 'next')

    def _intermediate_block(self, ffn: gluon.Block, first: int) -> None:
        """D, then G and the LayerNorm after it."""
        tokens, rows = self._tokens, self._kept((f'f{first}',))
        expand = self.whole.encoder.transformer_cells[first].ffn.ffn_1
        original = tuple(value.data().asnumpy()[rows] for value in (expand.weight, expand.bias))
        self._project(ffn.ffn_1.weight, ffn.ffn_1.bias, 'attended', original)
        for i in range(len(tokens)):
            inner = mx.nd.array(_applied(ffn.ffn_1, tokens.read('cut', i)))
            tokens.write('inner', i, mx.nd.LeakyReLU(inner, act_type='gelu').asnumpy())
        self._output(ffn.ffn_2, ffn.layer_norm, 'inner', 'next')

    def _output(self, dense: gluon.nn.Dense, norm: gluon.nn.LayerNorm, inputs: str, wanted: str) -> None:
        """What a block writes into the stream, and the LayerNorm after it; the stream moves on."""
        tokens = self._tokens
        self._learn(
            dense.weight,
            dense.bias,
            lambda i: (tokens.read(inputs, i), tokens.read(f'{wanted}-sum', i) - tokens.read('cut', i)),
        )
        for i in range(len(tokens)):
            tokens.write('sum', i, _applied(dense, tokens.read(inputs, i)) + tokens.read('cut', i))
        self._normalize(norm, 'sum', lambda i: tokens.read(wanted, i)[:, self._stream])
        self._write_normalized(norm, 'sum', 'cut')

    def mlm_head(self) -> None:
        """The transform of the MLM head and its LayerNorm."""
        tokens, units = self._tokens, slice(None) if self._architecture.e else self._stream
        transform, gelu, norm = (self.whole.decoder[i] for i in range(3))
        for i in range(len(tokens)):
            transformed = transform(tokens.stream('whole', i, self.whole))
            tokens.write('transformed', i, flat(transformed)[:, units])
            tokens.write('head', i, flat(norm(gelu(transformed)))[:, units])
        dense, norm = self.cut.decoder[0], self.cut.decoder[2]
        self._learn(
            dense.weight, dense.bias, lambda i: (tokens.read('cut', i), tokens.read('transformed', i))
        )
        for i in range(len(tokens)):
            tokens.write('sum', i, flat(gelu(dense(tokens.stream('cut', i, self.cut)))))
        self._normalize(norm, 'sum', lambda i: tokens.read('head', i))


def reconstruct(
    whole: SavedModel,
    cut: SavedModel,
    selection: Selection,
    batches: List[Batch],
    *,
    workers: Optional[Workers] = None,
) -> SavedModel:
    """Repair a cut network so that its layers compute what the uncut ones did, without a gradient step.

    Parameters
    ----------
    whole : SavedModel
        The network before the cut, without gates.
    cut : SavedModel
        What the cut left of it.
    selection : Selection
        The units of `whole` that stayed.
    batches : list of Batch
        This worker's share of the text. Ten tokens for every input of the widest product are enough
        (`tokens_wanted`).
    workers : Workers, optional
        The workers of this job; by default those that the environment names.

    Returns
    -------
    SavedModel
        Of the same architecture as `cut`.

    Raises
    ------
    ValueError
        If the selection does not lead from one network to the other.
    """
    if selection.architecture(whole.architecture) != cut.architecture:
        raise ValueError('reconstruct: the selection does not lead from the one network to the other')
    workers = workers or Workers()
    with tempfile.TemporaryDirectory(prefix='gluon_optbert-') as directory:
        repair = _Repair(whole, cut, selection, _Tokens(Path(directory), batches), workers)
        repair.embeddings()
        for j in range(len(cut.architecture.layers)):
            repair.layer(j)
        if cut.head == PRETRAINING:
            repair.mlm_head()
        return dataclasses.replace(cut, parameters=read_parameters(repair.cut))
