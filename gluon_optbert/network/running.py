"""Running a network layer by layer, and reading what goes into and comes out of its blocks.

A hybridized network does not say what its blocks compute. Here every block runs for itself, and Gluon's hooks
read its inputs and outputs."""

from __future__ import annotations

import collections
import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..architecture.architecture import Architecture
from ..runs.display import tracked
from ..text.batches import Batch
from ..text.tokenizer import SPECIAL_TOKENS, vocabulary_of
from .encoder import attention_masks
from .inputs import INPUTS
from .model import OptBERTModel, build, read_parameters
from .saved_model import SavedModel


def random_model(architecture: Architecture) -> SavedModel:
    """A network with random weights that are the same every time, and made-up words."""
    words = (f'word{i}' for i in range(architecture.vocab_size - len(SPECIAL_TOKENS)))
    parameters = read_parameters(build(architecture, trainable=False))
    return SavedModel(architecture, parameters, vocabulary_of([*SPECIAL_TOKENS, *words]))


def random_feed(
    architecture: Architecture, *, batch: int, length: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random inputs of a shape, with padding in every second row."""
    generator = np.random.RandomState(seed)
    valid = np.full(batch, length)
    valid[1::2] = min(length, max(2, length // 2))
    return {
        'input_ids': generator.randint(0, architecture.vocab_size, (batch, length)),
        'token_types': generator.randint(0, architecture.token_types, (batch, length)),
        'valid_length': valid,
        'masked_positions': generator.randint(0, min(2, length), (batch, 3)),
    }


def feed_of(
    batch: Any, names: Iterable[str], *, rows: slice = slice(None), ctx: mx.Context | None = None
) -> dict[str, mx.nd.NDArray]:
    """Some rows of a batch as float32 arrays on a device, by name.

    Parameters
    ----------
    batch : dataclass or mapping of name to np.ndarray
        A `text.batches.Batch`, a `tasks.features.TaskBatch`, or what `random_feed` gives.
    names : iterable of str
        Which of its arrays, in the order of the result.
    rows : slice
        All unless given.
    ctx : mx.Context, optional
        The CPU unless given.
    """
    arrays = {name: batch[name] if isinstance(batch, Mapping) else getattr(batch, name) for name in names}
    return {name: mx.nd.array(array[rows], ctx=ctx, dtype='float32') for name, array in arrays.items()}


def run(block: Any, batch: Any, names: Iterable[str]) -> list[np.ndarray]:
    """The outputs of a block for a batch; `batch` and `names` as in `feed_of`, in the block's order."""
    outputs = block(*feed_of(batch, names).values())
    return [output.asnumpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


# what a network of pre-training and its loss read of a batch
PRETRAINING_FIELDS = (*INPUTS, 'masked_ids', 'masked_weights', 'next_sentence_labels', 'instance_weights')


def pretraining_losses(
    model: Any, loss: Any, batch: Any, *, rows: slice = slice(None), ctx: mx.Context | None = None
) -> Sequence[mx.nd.NDArray]:
    """The losses of pre-training of the outputs of a network, with the heads of pre-training, for some rows
    of a batch; `batch`, `rows` and `ctx` as in `feed_of`.
    """
    feed = feed_of(batch, PRETRAINING_FIELDS, rows=rows, ctx=ctx)
    outputs = model(*(feed[name] for name in INPUTS))
    labels = (feed[name] for name in PRETRAINING_FIELDS[len(INPUTS) :])
    return loss(outputs[-2], outputs[-1], *labels)


def pass_times(
    blocks: Mapping[str, Any],
    feeds: Mapping[str, Mapping[str, np.ndarray]],
    names: Sequence[str],
    *,
    repeats: int = 15,
) -> dict[str, np.ndarray]:
    """The milliseconds of every timed forward pass of each block, by the keys that blocks and feeds share,
    with the named inputs in their order; taken as `times_in_turn`.
    """
    inputs = {key: list(feed_of(feed, names).values()) for key, feed in feeds.items()}

    def one_pass(key: str) -> None:
        outputs = blocks[key](*inputs[key])
        for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            output.wait_to_read()

    return times_in_turn({key: functools.partial(one_pass, key) for key in blocks}, repeats=repeats)


def times_in_turn(passes: Mapping[str, Callable[[], Any]], *, repeats: int = 15) -> dict[str, np.ndarray]:
    """The milliseconds of every timed call of each function.

    They are timed in turn. A call that does not count comes before each timed one and fills the caches, which
    hold the weights of the network before; the first one builds the graph.
    """
    times: dict[str, list[float]] = {key: [] for key in passes}
    for attempt in tracked(range(repeats + 1), 'timing', repeats + 1, unit='pass'):
        for key, one_pass in passes.items():
            one_pass()
            began = time.perf_counter()
            one_pass()
            times[key] += [time.perf_counter() - began] if attempt else []
    return {key: 1e3 * np.array(values) for key, values in times.items()}


def build_open(saved: SavedModel, ctx: mx.Context | None = None) -> OptBERTModel:
    """A network without dropout whose blocks run for themselves, so that `reading` can read them; on the CPU
    unless told.
    """
    model = build(saved.architecture, saved.parameters, ctx=ctx, trainable=False, head=saved.head)
    model.hybridize(False)
    return model


@contextlib.contextmanager
def reading(blocks: Mapping[str, gluon.Block]) -> Iterator[dict[str, mx.nd.NDArray]]:
    """The first input and the first output of some blocks, in a dict that every pass fills: ``<name>.input``
    and ``<name>.output``.
    """
    values: dict[str, mx.nd.NDArray] = {}

    def hook(name: str):
        def read(_block, inputs, output):
            values[f'{name}.input'] = inputs[0]
            values[f'{name}.output'] = output[0] if isinstance(output, (list, tuple)) else output

        return read

    handles = [block.register_forward_hook(hook(name)) for name, block in blocks.items()]
    try:
        yield values
    finally:
        for handle in handles:
            handle.detach()


def context_of(model: OptBERTModel) -> mx.Context:
    """The device of a network."""
    return model.encoder.position_weight.list_ctx()[0]


def masks_of(batch: Batch, model: OptBERTModel) -> dict[int, mx.nd.NDArray]:
    """The summands of the scores of attention, by number of heads; see `attention_masks`."""
    ctx = context_of(model)
    steps = mx.nd.arange(batch.input_ids.shape[1], ctx=ctx)
    valid = mx.nd.array(batch.valid_length, dtype='float32', ctx=ctx)
    return attention_masks(mx.nd, steps, valid, [dims.a for dims in model.architecture.layers])


def embedded(model: OptBERTModel, batch: Batch) -> mx.nd.NDArray:
    """The input of the first layer, shape (length, batch, h)."""
    ctx = context_of(model)
    ids, types = feed_of(batch, ('input_ids', 'token_types'), ctx=ctx).values()
    inputs = mx.nd.transpose(model.word_embed(ids) + model.token_type_embed(types), axes=(1, 0, 2))
    return model.encoder.embed(inputs)


def real_tokens(batch: Batch) -> np.ndarray:
    """Mask of the tokens that are not padding, shape (length * batch,) in the order of the stream."""
    places = np.arange(batch.input_ids.shape[1])[:, np.newaxis]
    return ((places < batch.valid_length) & (batch.instance_weights > 0)).reshape(-1)


def flat(array: mx.nd.NDArray) -> np.ndarray:
    """(length, batch, units) as (length * batch, units)."""
    return array.reshape((-3, 0)).asnumpy()


def states_of(model: OptBERTModel, batch: Batch) -> Iterator[mx.nd.NDArray]:
    """Every state of the stream, shape (length, batch, h): at the input of the first layer, then behind the
    attention block and at the output of each layer.
    """
    stream, masks = embedded(model, batch), masks_of(batch, model)
    yield stream
    for dims, cell in zip(model.architecture.layers, model.encoder.transformer_cells):
        stream, _, attended, _ = cell(stream, masks.get(dims.a))
        yield attended
        yield stream


def last_states(model: OptBERTModel, batch: Batch) -> np.ndarray:
    """The output of the last layer for every token that is no padding, shape (tokens, h)."""
    (stream,) = collections.deque(states_of(model, batch), maxlen=1)  # one state at a time
    return flat(stream)[real_tokens(batch)]


def squared_errors(
    whole: SavedModel, smaller: SavedModel, kept: np.ndarray, batches: Iterable[Batch]
) -> np.ndarray:
    """The distance of the last layer of a smaller network from that of a whole one, over all tokens.

    Parameters
    ----------
    kept : np.ndarray of int, shape (h of `smaller`,)
        Its hidden units among those of `whole`.

    Returns
    -------
    np.ndarray, shape (2,)
        The sum of the squared differences, and that of the squared states of `whole`. The root of their ratio
        is the relative error.
    """
    networks = [build_open(saved) for saved in (whole, smaller)]
    squares = np.zeros(2)
    for batch in batches:
        wanted, states = (last_states(network, batch).astype(np.float64) for network in networks)
        wanted = wanted[:, kept]
        squares += [((states - wanted) ** 2).sum(), (wanted**2).sum()]
    return squares


def layer_norm_scales(whole: SavedModel, kept: np.ndarray, batches: Iterable[Batch]) -> dict[str, float]:
    """The factors by which the LayerNorms of the stream scale up the hidden units that stay, once the others
    are cut.

    A LayerNorm divides by the standard deviation of its input over the units. If a few units carry most of
    the variance, cutting them scales up all others.

    Parameters
    ----------
    kept : np.ndarray of int, shape (units,)
        The hidden units that stay.

    Returns
    -------
    dict of str to float
        The deviation over all units divided by that over the units that stay, on the states of the whole
        network; both are root mean squares over the tokens. By LayerNorm: ``embedding`` unless its width is
        not h, and by layer from 1 on ``attention 1``, ``layer 1``. A layer without an intermediate block has
        only the first.
    """
    model = build_open(whole)
    blocks = {} if whole.architecture.e is not None else {'embedding': model.encoder.layer_norm}
    for number, cell in enumerate(model.encoder.transformer_cells, 1):
        blocks[f'attention {number}'] = cell.layer_norm
        if cell.ffn is not None:
            blocks[f'layer {number}'] = cell.ffn.layer_norm
    variances = {name: np.zeros(2) for name in blocks}
    for batch in batches:
        with reading(blocks) as read:
            last_states(model, batch)
        for name, sums in variances.items():
            inputs = flat(read[f'{name}.input'])[real_tokens(batch)].astype(np.float64)
            sums += [inputs.var(axis=1).sum(), inputs[:, kept].var(axis=1).sum()]
    return {name: float(np.sqrt(before / after)) for name, (before, after) in variances.items()}
