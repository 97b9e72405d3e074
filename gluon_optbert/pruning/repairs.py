"""Repairs of a cut, by what networks compute on text: heads are rotated before it, layers fitted after it.

`rotated` changes the basis of every head so that its units are ordered by strength; the network computes the
same. `reconstruct` replaces every layer of the cut network by one that computes, by least squares, what the
uncut layer does. Layer by layer from the input on, the cut network's own inputs meet the uncut network's
outputs:

1. K, Q and V learn the uncut projections of the units that stay.
2. P learns what is missing: the uncut sum before the LayerNorm, minus the cut network's skip connection.
   Gamma and beta of the LayerNorm follow.
3. D learns the uncut filters that stay; then G and its LayerNorm as P and its own.
4. After the last layer, the transform of the MLM head and its LayerNorm follow, if there is a trained one.

The pooler, the NSP head and the head of a task stay as the cut left them: a sequence has one [CLS], and they
would need more. Where layers are dropped, the last product before the gap, or the LayerNorm of the embedding,
learns what the uncut network computes just before the next layer that stayed.

Tokens go from layer to layer in files, so memory does not grow with them. `cutting.repairs` has the
mathematics."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..architecture.heads import PRETRAINING
from ..cutting.repairs import DenseRegression, ScaleRegression, balance_heads, rotate_heads
from ..cutting.selection import Selection
from ..cutting.shrink import kept_along
from ..network.model import read_parameters
from ..network.running import build_open, embedded, flat, masks_of, reading, real_tokens
from ..network.saved_model import SavedModel
from ..runs.display import tracked
from ..text.batches import Batch
from ..training.distributed import Workers

TOKENS_TO_ROTATE = 10  # for each hidden unit

Values = Callable[[int], np.ndarray]  # of the tokens of a batch, by its number: shape (length * batch, units)
Dense = Sequence[gluon.Parameter]  # a weight and a bias


def tokens_wanted(model: SavedModel, per_input: int) -> int:
    """Number of tokens that reconstructing a cut network reads: some for each input of its widest product."""
    architecture = model.architecture
    inputs = [max(dims.a * dims.v, dims.f) for dims in architecture.layers]
    return per_input * max([architecture.h, *inputs])


def head_moments(model: SavedModel, batches: Sequence[Batch], workers: Workers) -> dict[str, np.ndarray]:
    """Second moments of queries, keys and head outputs on this worker's share of the text, as `rotate_heads`
    wants them.
    """
    network = build_open(model, workers.context())
    sums: dict[str, np.ndarray] = {}
    for batch in tracked(batches, 'reading states', len(batches), quiet=not workers.first):
        masks, real = masks_of(batch, network), real_tokens(batch)
        stream = embedded(network, batch)
        for i, (dims, cell) in enumerate(zip(model.architecture.layers, network.encoder.transformer_cells)):
            attention = cell.attention_cell
            with reading({'attention': attention}) as read:
                after = cell(stream, masks.get(dims.a))[0]
            outputs = {'contexts': read['attention.output']}
            for name, one in (('queries', 'query'), ('keys', 'key')):
                weight, bias = (getattr(attention, f'{one}_{kind}').data() for kind in ('weight', 'bias'))
                size = {'num_hidden': dims.a * dims.k, 'flatten': False}
                outputs[name] = mx.nd.FullyConnected(stream, weight, bias, **size)
            for name, output in outputs.items():
                values = flat(output)[real].astype(np.float64)
                by_head = values.reshape(len(values), dims.a, -1).transpose(1, 0, 2)
                sums[f'{name}{i}'] = sums.get(f'{name}{i}', 0) + by_head.transpose(0, 2, 1) @ by_head
            stream = after
    return {name: workers.total(value, name=f'moments.{name}') for name, value in sums.items()}


def rotated(model: SavedModel, batches: Sequence[Batch], workers: Workers) -> SavedModel:
    """The same function with the units of every head ordered by strength; arguments as in `head_moments`."""
    moments = head_moments(model, batches, workers)
    return dataclasses.replace(model, parameters=rotate_heads(model.parameters, model.architecture, moments))


def _normalized(norm: gluon.nn.LayerNorm, sums: np.ndarray) -> np.ndarray:
    """Normalised input of a LayerNorm, before gamma and beta, shape (tokens, units)."""
    centred = sums - sums.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + norm._epsilon)


def _applied(dense: gluon.nn.Dense, inputs: np.ndarray) -> np.ndarray:
    """The output of a dense layer, shape (tokens, outputs)."""
    return inputs @ dense.weight.data().asnumpy().T + dense.bias.data().asnumpy()


class _Repair:
    """The two networks, and the tokens on their way through both.

    What is kept of every token, in files that are mapped into memory: ``whole`` and ``cut``, the streams of
    the two networks; and what the methods say.
    """

    def __init__(
        self,
        whole: SavedModel,
        cut: SavedModel,
        selection: Selection,
        batches: list[Batch],
        directory: Path,
        workers: Workers,
    ):
        self._architecture, self._batches, self._directory = whole.architecture, batches, directory
        self._ends, self._values = np.cumsum([batch.input_ids.size for batch in batches]), {}
        self._real, self._workers = [real_tokens(batch) for batch in batches], workers
        # every fourth 16 instances chooses the penalties of the fits, as neighbours may share their text
        self._held_out = [
            np.broadcast_to(batch.rows // 16 % 4 == 0, batch.input_ids.T.shape).reshape(-1)
            for batch in batches
        ]
        self.whole, self.cut = (build_open(saved, workers.context()) for saved in (whole, cut))
        self._kept = lambda *axis: kept_along(axis, whole.architecture, selection.kept)  # along uncut tensors
        self._stream = self._kept('h')
        layers = range(len(whole.architecture.layers))
        self._layers = list(layers if selection.layers is None else selection.layers)

    def _write(self, name: str, values: Values) -> None:
        """Keep values of all batches."""
        for i in range(len(self._batches)):
            self._keep(name, i, values(i))

    def _keep(self, name: str, i: int, values: np.ndarray) -> None:
        """Keep values of the tokens of batch i."""
        shape = int(self._ends[-1]), values.shape[1]
        if name not in self._values or self._values[name].shape != shape:
            with open(self._directory / name, 'wb') as file:  # later a full disk would be a signal
                os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
            self._values[name] = np.memmap(self._directory / name, np.float32, 'r+', shape=shape)
        self._read(name, i)[:] = values

    def _read(self, name: str, i: int) -> np.ndarray:
        end = self._ends[i]
        return np.asarray(self._values[name][end - self._batches[i].input_ids.size : end])

    def _as_stream(self, name: str, i: int) -> mx.nd.NDArray:
        """Values that were kept, as a layer of a network reads them: shape (length, batch, units)."""
        shape = (*self._batches[i].input_ids.T.shape, -1)
        return mx.nd.array(self._read(name, i).reshape(shape), ctx=self._workers.context())

    def _solve(self, regression, *parameters: gluon.Parameter) -> None:
        """Replace parameters by the solution of a regression."""
        before = (parameter.data().asnumpy() for parameter in parameters)
        total = self._workers.total
        solved = regression.solve(*before, total=lambda array: total(array, name='reconstruction'))
        for parameter, value in zip(parameters, solved):
            parameter.set_data(mx.nd.array(value))

    def _regression(self, outputs: int, inputs: int, name: str, targets: Values) -> DenseRegression:
        """The regression of targets on the inputs that were kept by a name, over the tokens that are no
        padding.
        """
        regression = DenseRegression(inputs, outputs)
        for i, (real, held_out) in enumerate(zip(self._real, self._held_out)):
            regression.add(self._read(name, i)[real], targets(i)[real], held_out[real])
        return regression

    def _fit(self, weight: gluon.Parameter, bias: gluon.Parameter, inputs: str, targets: Values) -> None:
        """Replace a dense layer by what turns inputs into targets."""
        self._solve(self._regression(*weight.shape, inputs, targets), weight, bias)

    def _fit_norm(self, norm: gluon.nn.LayerNorm, targets: Values) -> None:
        """Replace gamma and beta by those that bring the normalized ``sum`` to the targets, likewise."""
        regression = ScaleRegression(norm.gamma.shape[0])
        for i, real in enumerate(self._real):
            regression.add(_normalized(norm, self._read('sum', i))[real], targets(i)[real])
        self._solve(regression, norm.gamma, norm.beta)

    def _write_normalized(self, norm: gluon.nn.LayerNorm) -> None:
        """The cut stream moves on: it is what the LayerNorm makes of ``sum``."""
        gamma, beta = norm.gamma.data().asnumpy(), norm.beta.data().asnumpy()
        self._write('cut', lambda i: _normalized(norm, self._read('sum', i)) * gamma + beta)

    def _whole_stream(self, i: int) -> np.ndarray:
        """The units of the uncut stream that stayed."""
        return self._read('whole', i)[:, self._stream]

    def _through(self, layers: range, stream: mx.nd.NDArray, i: int) -> mx.nd.NDArray:
        """Outputs of some layers of the uncut network for batch i."""
        masks = masks_of(self._batches[i], self.whole)
        for number in layers:
            heads = self._architecture.layers[number].a
            stream = self.whole.encoder.transformer_cells[number](stream, masks.get(heads))[0]
        return stream

    def embeddings(self) -> None:
        """Leave the streams of both networks as they enter the first layer that stayed."""
        encoder = self.cut.encoder
        for i, batch in enumerate(self._batches):
            stream = self._through(range(self._layers[0]), embedded(self.whole, batch), i)
            with reading({'norm': encoder.layer_norm}) as read:
                cut = embedded(self.cut, batch)
            values = {'whole': stream, 'cut': cut, 'sum': read['norm.input'], 'normed': read['norm.output']}
            for name, value in values.items():
                self._keep(name, i, flat(value))
        if encoder.embed_proj is None:
            self._fit_norm(encoder.layer_norm, self._whole_stream)
            self._write_normalized(encoder.layer_norm)
        else:
            dense = encoder.embed_proj
            self._fit(dense.weight, dense.bias, 'normed', self._whole_stream)
            self._write('cut', lambda i: _applied(dense, self._read('normed', i)))

    def layer(self, j: int) -> None:
        """Repair layer j of the cut network; the streams of both go through it."""
        cell, first = self.cut.encoder.transformer_cells[j], self._layers[j]
        original = self.whole.encoder.transformer_cells[first]
        following = self._layers[j + 1 :]
        self._run_whole(first, (following[0] if following else len(self._architecture.layers)) - 1)

        whole_k, k = self._architecture.layers[first].k, len(self._kept(f'k{first}'))
        # attention divides by the square root of k
        scales = {'query': np.sqrt(k / whole_k), 'key': 1.0, 'value': 1.0}
        uncut = self._of_uncut('whole')
        for name, scale in scales.items():
            rows = self._kept(f'a{first}', f'{"v" if name == "value" else "k"}{first}')
            own, learnt = (
                [getattr(attention, f'{name}_{kind}') for kind in ('weight', 'bias')]
                for attention in (cell.attention_cell, original.attention_cell)
            )
            self._project(own, uncut, learnt, rows, scale)

        def context(i: int) -> np.ndarray:
            attention, masks = cell.attention_cell, masks_of(self._batches[i], self.cut)
            return flat(attention(self._as_stream('cut', i), masks.get(attention.dims.a))[0])

        self._write('inner', context)
        self._output(cell.proj, cell.layer_norm, 'next' if cell.ffn is None else 'attended')
        if cell.ffn is not None:
            expand, learnt = cell.ffn.ffn_1, original.ffn.ffn_1
            own, learnt = ([dense.weight, dense.bias] for dense in (expand, learnt))
            self._project(own, self._of_uncut('attended'), learnt, self._kept(f'f{first}'))
            self._write(
                'inner',
                lambda i: mx.nd.LeakyReLU(
                    mx.nd.array(_applied(expand, self._read('cut', i))), act_type='gelu'
                ).asnumpy(),
            )
            self._output(cell.ffn.ffn_2, cell.ffn.layer_norm, 'next')
        self._write('whole', lambda i: self._read('next', i))

    def _run_whole(self, first: int, last: int) -> None:
        """Keep what the uncut layers from `first` to `last` compute: ``attended`` and ``next``, and of the
        units that stayed, the sums before the LayerNorms that give them.
        """
        cells = self.whole.encoder.transformer_cells
        end = cells[last].layer_norm if cells[last].ffn is None else cells[last].ffn.layer_norm
        blocks = {'attended': cells[first].layer_norm, 'next': end}
        for i in range(len(self._batches)):
            with reading(blocks) as read:
                self._through(range(first, last + 1), self._as_stream('whole', i), i)
            for name in blocks:
                self._keep(name, i, flat(read[f'{name}.output']))
                self._keep(f'{name}-sum', i, flat(read[f'{name}.input'])[:, self._stream])

    def _of_uncut(self, source: str) -> DenseRegression:
        """The regression of the uncut stream `source` on the cut one."""
        widths = self._architecture.h, self.cut.encoder.architecture.h
        return self._regression(*widths, 'cut', lambda i: self._read(source, i))

    def _project(
        self, own: Dense, uncut: DenseRegression, learnt: Dense, rows: np.ndarray, scale: float = 1.0
    ) -> None:
        """Replace a weight and a bias by what gives, from the cut stream, some outputs of those that are
        learnt, which read the uncut stream.
        """
        weight, bias = (parameter.data().asnumpy()[rows] * np.float32(scale) for parameter in learnt)
        self._solve(uncut.through(weight, bias), *own)

    def _output(self, dense: gluon.nn.Dense, norm: gluon.nn.LayerNorm, wanted: str) -> None:
        """Output of a block into the stream, from ``inner``, and the LayerNorm after it; the stream moves
        on.
        """
        read = self._read
        self._fit(dense.weight, dense.bias, 'inner', lambda i: read(f'{wanted}-sum', i) - read('cut', i))
        self._write('sum', lambda i: _applied(dense, read('inner', i)) + read('cut', i))
        self._fit_norm(norm, lambda i: read(wanted, i)[:, self._stream])
        self._write_normalized(norm)

    def mlm_head(self) -> None:
        """The transform of the MLM head and its LayerNorm."""
        units = slice(None) if self._architecture.e else self._stream
        transform, gelu, norm = (self.whole.decoder[i] for i in range(3))
        self._write('transformed', lambda i: flat(transform(self._as_stream('whole', i))))
        self._write('head', lambda i: flat(norm(gelu(self._as_stream('transformed', i))))[:, units])
        dense, norm = self.cut.decoder[0], self.cut.decoder[2]
        self._fit(dense.weight, dense.bias, 'cut', lambda i: self._read('transformed', i)[:, units])
        self._write('sum', lambda i: flat(gelu(dense(self._as_stream('cut', i)))))
        self._fit_norm(norm, lambda i: self._read('head', i))


def reconstruct(
    whole: SavedModel, cut: SavedModel, selection: Selection, batches: list[Batch], *, workers: Workers
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
        This worker's share of the text, over all workers `tokens_wanted`.

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
    with tempfile.TemporaryDirectory(prefix='gluon_optbert-') as directory:
        repair = _Repair(whole, cut, selection, batches, Path(directory), workers)
        layers = (functools.partial(repair.layer, j) for j in range(len(cut.architecture.layers)))
        steps = [repair.embeddings, *layers]
        for step in tracked(steps, 'layers', len(steps), unit='layer', quiet=not workers.first):
            step()
        if cut.head == PRETRAINING and 'mlm' not in (whole.progress.untrained or ()):
            repair.mlm_head()
        # least squares raises the scale of P again
        fitted = balance_heads({**cut.parameters, **read_parameters(repair.cut)}, cut.architecture)
        return dataclasses.replace(cut, parameters=fitted)
