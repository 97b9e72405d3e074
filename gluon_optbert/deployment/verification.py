"""The check of a pruning run: the gated network with truncated alpha, the shrunk one and its export agree.

A network with a trimmed vocabulary is checked by `trim_check`."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
from pydantic import PositiveInt

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import Alphas, parameters_left
from ..cutting.selection import Selection, keep_all, read_alphas, read_selection, truncate
from ..cutting.shrink import fold, reordered, shrink
from ..network.inputs import INPUTS, OUTPUTS, TOKEN_INPUTS
from ..network.losses import PretrainingLoss
from ..network.model import build
from ..network.running import layer_norm_scales, pretraining_losses, run, squared_errors
from ..network.saved_model import SavedModel, read_model
from ..runs.display import counting, markdown_table
from ..runs.programs import named
from ..runs.progress import CUT
from ..runs.recipe import Recipe, option, read_yaml
from ..text.batches import Batch, evaluation_batches
from ..text.shards import Shards
from ..text.tokenizer import vocabulary_hash
from .directory import import_symbol
from .export import TOLERANCE, NotEqual, export
from .onnx_files import output_difference
from .trim_check import TrimCheck, check_trimmed, is_trimmed

SAMPLE = 'inputs.npz'  # in the directory of a run for a task: the inputs of some held-out instances
LEFT_OUT = 'reconstructed, left out'  # a fit of the layers that recovery did not start from
ROUNDING = 2  # a gated network rounds more than the cut one, since it sums over more units
MOST_ROUNDING = 1e-3  # what is above this is never taken for rounding


class VerifyRecipe(Recipe):
    """A check of a pruning run, or of a network with a trimmed vocabulary."""

    run: Path = option(
        f'run directory that {named("optbert-prune")} made, or model directory that '
        f'{named("optbert-trim-vocabulary")} made'
    )
    shards: Path | None = option('shards with the held-out batches; by default those of the run', None)
    batches: PositiveInt = option('number of held-out batches to compare on', 2)
    batch_size: PositiveInt = option('instances in each of these batches', 8)
    model: Path | None = option(
        'model directory with the whole vocabulary of a trimmed one; by default where it was then', None
    )
    text: tuple[Path, ...] = option(
        'text to compare a trimmed vocabulary on; by default that which it was trimmed to', (), metavar='PATH'
    )
    output: Path | None = option('JSON file to write, with the differences and errors of every round', None)

    def problems(self) -> list[str]:
        """What goes with another directory."""
        trimmed = is_trimmed(self.run)
        flags = ('shards', 'output') if trimmed else ('model', 'text')
        kind = 'a run directory' if trimmed else 'a model with a trimmed vocabulary'
        return [f'--{name} goes with {kind}' for name in flags if getattr(self, name)]


@dataclasses.dataclass(frozen=True)
class SampleBatch:
    """Inputs without labels, shapes as in `Batch`."""

    input_ids: np.ndarray
    token_types: np.ndarray
    valid_length: np.ndarray

    @property
    def instance_weights(self) -> np.ndarray:
        """One for each instance."""
        return np.ones(len(self.valid_length), np.float32)

    @property
    def masked_positions(self) -> np.ndarray:
        """The first token of each instance."""
        return np.zeros((len(self.valid_length), 1), np.float32)


def _outputs(block: Any, batch: Any, head: Head) -> List[np.ndarray]:
    """What a network with a head computes of a batch."""
    names = list(INPUTS) if head == PRETRAINING else list(TOKEN_INPUTS)
    return run(block, {name: getattr(batch, name) for name in names}, names)


def _sample(path: Path, recipe: VerifyRecipe) -> List[SampleBatch]:
    """The batches that a run for a task has left."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            values = [arrays[name][: recipe.batches * recipe.batch_size] for name in TOKEN_INPUTS]
    except Exception as error:  # whatever zip and npy parsers raise on bytes that are neither
        raise ValueError(f'{path}: not readable as inputs ({error})') from error
    starts = range(0, len(values[0]), recipe.batch_size)
    return [SampleBatch(*(value[i : i + recipe.batch_size] for value in values)) for i in starts]


def _batches(recipe: VerifyRecipe, before: SavedModel) -> List[Any]:
    """Held-out batches of the recipe's shards, or of those that the run was trained on; of a run for a task,
    those that it has left.
    """
    if recipe.shards is None and (recipe.run / SAMPLE).is_file():
        return _sample(recipe.run / SAMPLE, recipe)
    directory = recipe.shards or Path(read_yaml(recipe.run / 'recipe.yaml')['shards'])
    shards = Shards.open(directory, split='heldout', vocabulary_hash=vocabulary_hash(before.vocabulary))
    limit = recipe.batches * recipe.batch_size
    return list(evaluation_batches(shards, batch_size=recipe.batch_size, limit=limit))


def _differences(
    one: Any, other: Any, batches: Sequence[Any], kept_h: np.ndarray, head: Head = PRETRAINING
) -> float:
    """The largest relative difference of any output between two networks.

    Parameters
    ----------
    one, other : callable
        Blocks; `other` has the units `kept_h` of the hidden units of `one`.
    head : Head
        Of both.
    """
    worst = 0.0
    names = OUTPUTS if head == PRETRAINING else ('scores',)
    for batch in batches:
        for name, wanted, output in zip(names, *(_outputs(block, batch, head) for block in (one, other))):
            if name in ('encoded', 'pooled'):
                wanted = np.take(wanted, kept_h, axis=-1)
            worst = max(worst, output_difference(name, output, wanted))
    return worst


def without_dropped(
    saved: SavedModel, alphas: Alphas, selection: Selection
) -> Tuple[Architecture, Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """A model without the layers and intermediate blocks that a selection drops; all other widths stay whole.

    Returns
    -------
    architecture : Architecture
    parameters : dict of name to np.ndarray
        By the names of `architecture`, in which the layers that stay are numbered anew.
    alphas : dict of width key to np.ndarray
        The same of the gates.
    """
    emptied = {key: 0 for key, units in selection.kept.items() if key[0] == 'f' and not len(units)}
    architecture = saved.architecture.with_widths(emptied)
    kept = range(len(architecture.layers)) if selection.layers is None else selection.layers
    staying = parameters_left(architecture, kept, saved.head)
    architecture = dataclasses.replace(architecture, layers=tuple(architecture.layers[i] for i in kept))
    return (
        architecture,
        {name: saved.parameters[spec.name] for name, spec in staying.items()},
        {
            key: alphas[key if key == 'h' else f'{key[0]}{kept[int(key[1:])]}']
            for key, width in architecture.widths().items()
            if width
        },
    )


def _shrunk(before: SavedModel, alphas: Alphas, selection: Selection) -> SavedModel:
    """What a cut leaves of a network."""
    parameters, architecture = shrink(
        before.parameters, before.architecture, alphas, selection, head=before.head
    )
    return dataclasses.replace(before, architecture=architecture, parameters=parameters)


def rounding_of(saved: SavedModel, batches: Sequence[Any]) -> float:
    """The largest relative difference of any output if the hidden units come in reverse order.

    That leaves the function as it is, and the sums run in another order.
    """
    order = np.arange(saved.architecture.h)[::-1]
    parameters = reordered(saved.parameters, saved.architecture, order, head=saved.head)
    networks = [
        build(saved.architecture, values, trainable=False, head=saved.head)
        for values in (saved.parameters, parameters)
    ]
    return _differences(*networks, batches, order, saved.head)


def gated_against_shrunk(
    before: SavedModel, alphas: Alphas, selection: Selection, batches: Sequence[Batch], shrunk: SavedModel
) -> float:
    """The largest relative difference between the gated network, with zeros for the alpha of units that go,
    and the shrunk one.

    Parameters
    ----------
    before : SavedModel
        What was pruned.
    batches : sequence of Batch
        What both networks read.
    shrunk : SavedModel
        What came out.
    """
    wide, weights, gates = without_dropped(before, truncate(alphas, selection), selection)
    gated = build(wide, weights, gated=True, trainable=False, head=before.head)
    gated.gates.set(gates)
    network = build(shrunk.architecture, shrunk.parameters, trainable=False, head=before.head)
    return _differences(gated, network, batches, selection.kept['h'], before.head)


def _folded(before: SavedModel, alphas: Alphas, h_gate: str) -> Tuple[SavedModel, Alphas]:
    """A network with its gates in its weights, and gates of one that are left."""
    parameters = fold(before.parameters, before.architecture, alphas, head=before.head, h_gate=h_gate)
    return dataclasses.replace(before, parameters=parameters), {
        key: np.ones_like(alpha) for key, alpha in alphas.items()
    }


def _fold_difference(
    before: SavedModel, alphas: Alphas, folded: SavedModel, h_gate: str, batches: Sequence[Any]
) -> float:
    """The largest relative difference between a gated network and the one with its gates in its weights."""
    settings = {'trainable': False, 'head': before.head}
    gated = build(before.architecture, before.parameters, gated=True, h_gate=h_gate, **settings)
    gated.gates.set({key: alphas[key] for key in gated.gates.parameters})
    network = build(folded.architecture, folded.parameters, **settings)
    return _differences(gated, network, batches, np.arange(before.architecture.h), before.head)


def _only(letter: str, selection: Selection, everything: Selection) -> Selection:
    kept = {
        key: selection.kept[key] if key[0] == letter else indices for key, indices in everything.kept.items()
    }
    return Selection(kept, selection.cost, selection.target)


def _export_difference(shrunk: SavedModel, batches: Sequence[Batch]) -> float:
    """The largest relative difference between a network and its export, whose heads may be random."""
    head = shrunk.head
    shrunk = dataclasses.replace(shrunk, progress=dataclasses.replace(shrunk.progress, untrained=None))
    names = list(INPUTS) if head == PRETRAINING else list(TOKEN_INPUTS)
    with tempfile.TemporaryDirectory() as place:
        export(shrunk, Path(place) / 'export', head='pretraining' if head == PRETRAINING else None)
        network = build(shrunk.architecture, shrunk.parameters, trainable=False, head=head)
        exported = import_symbol(Path(place) / 'export', names)
        return _differences(network, exported, batches, np.arange(shrunk.architecture.h), head)


def _rotation_difference(previous: SavedModel, turned: SavedModel, batches: Sequence[Batch]) -> float:
    """The largest relative difference between a network and itself with rotated heads."""
    networks = [
        build(saved.architecture, saved.parameters, trainable=False, head=saved.head)
        for saved in (previous, turned)
    ]
    return _differences(*networks, batches, np.arange(previous.architecture.h), previous.head)


def _mlm_loss(saved: SavedModel, batches: Sequence[Any]) -> Dict[str, float]:
    """The MLM loss of a network in nats per masked token, as a field of a row; none if nothing is masked, or
    if its heads are random.
    """
    if not isinstance(batches[0], Batch) or saved.progress.untrained:
        return {}
    network, loss = build(saved.architecture, saved.parameters, trainable=False), PretrainingLoss()
    mlm = sum(float(pretraining_losses(network, loss, batch)[0].asscalar()) for batch in batches)
    return {'mlm_loss': mlm / sum(float(batch.masked_weights.sum()) for batch in batches)}


def _round(recipe: VerifyRecipe, number: int, name: str) -> Path:
    return recipe.run / f'round-{number}' / name


def _rounds(recipe: VerifyRecipe) -> List[int]:
    """The rounds whose cut is done."""
    return list(
        itertools.takewhile(lambda number: _round(recipe, number, 'shrunk').is_dir(), itertools.count(1))
    )


def _row(recipe: VerifyRecipe, number: int) -> Dict[str, Any]:
    """The largest differences of a round."""
    previous, turned = read_model(_round(recipe, number - 1, 'model')), _round(recipe, number, 'rotated')
    before = read_model(turned) if turned.is_dir() else previous
    alphas, h_gate = read_alphas(_round(recipe, number, 'alphas.npz'))
    selection = read_selection(_round(recipe, number, 'selection.json'))
    shrunk = read_model(_round(recipe, number, 'shrunk'))
    batches = _batches(recipe, before)
    everything = keep_all(before.architecture, ParameterCost())
    row: Dict[str, Any] = {'round': number}
    rounding: Dict[str, float] = {}

    def note(name: str, difference: float, saved: SavedModel) -> None:
        row[name] = difference
        if difference > TOLERANCE:
            rounding[name] = rounding_of(saved, batches)

    if turned.is_dir():
        note('rotation', _rotation_difference(previous, before, batches), before)
    if h_gate != 'stream':  # a gate at zero would leave its unit in the stream
        folded, ones = _folded(before, alphas, h_gate)
        note('fold', _fold_difference(before, alphas, folded, h_gate, batches), folded)
        before, alphas = folded, ones
    for letter in 'hakvf':
        alone = _only(letter, selection, everything)
        left = _shrunk(before, alphas, alone)
        note(letter, gated_against_shrunk(before, alphas, alone, batches, left), left)
    note('all', gated_against_shrunk(before, alphas, selection, batches, shrunk), shrunk)
    row['export'] = _export_difference(shrunk, batches)
    return {**row, 'rounding': rounding} if rounding else row


def _measured(row: Mapping[str, Any]) -> Dict[str, float]:
    """The differences of a row of `verify`."""
    return {name: value for name, value in row.items() if name not in ('round', 'rounding')}


def _is_equal(row: Mapping[str, Any]) -> bool:
    """Whether no difference of a row is larger than rounding explains."""
    limits = {
        name: max(TOLERANCE, min(ROUNDING * value, MOST_ROUNDING))
        for name, value in row.get('rounding', {}).items()
    }
    return all(value <= limits.get(name, TOLERANCE) for name, value in _measured(row).items())


def stages(recipe: VerifyRecipe) -> List[Dict[str, Any]]:
    """How far every stage of a run's rounds is from the network before the cut, on held-out batches.

    Returns
    -------
    list of dict
        ``round``, ``network`` (before, cut, reconstructed or `LEFT_OUT`, recovered), ``error``: the relative
        error of the last layer's output on the hidden units that stayed; and of a run of pre-training
        ``mlm_loss``, in nats per masked token. Where hidden units were cut, the row of the network before it
        has ``layer_norm_scales``: `network.layerwise.layer_norm_scales`.

    Raises
    ------
    FileNotFoundError, ValueError
        If the run directory is incomplete or was changed.
    """
    rows = []
    for number in _rounds(recipe):
        directory = recipe.run / f'round-{number}'
        before = read_model(_round(recipe, number - 1, 'model'))
        kept, batches = read_selection(directory / 'selection.json').kept['h'], _batches(recipe, before)
        row = {'round': number, 'network': 'before', 'error': 0.0, **_mlm_loss(before, batches)}
        if 1 < len(kept) < before.architecture.h:  # a single unit has no deviation
            row['layer_norm_scales'] = layer_norm_scales(before, kept, batches)
        rows.append(row)
        model = directory / 'model'
        left_out = model.is_dir() and read_model(model).progress.started_from == CUT
        fitted = LEFT_OUT if left_out else 'reconstructed'
        for name, folder in (('cut', 'shrunk'), (fitted, 'reconstructed'), ('recovered', 'model')):
            if (directory / folder).is_dir():
                saved = read_model(directory / folder)
                difference, size = squared_errors(before, saved, kept, batches)
                error = {'error': math.sqrt(difference / size)}
                rows.append({'round': number, 'network': name, **error, **_mlm_loss(saved, batches)})
    return rows


def verify(recipe: VerifyRecipe) -> List[Dict[str, Any]]:
    """Check every finished round of a run on held-out batches, or a trimmed vocabulary on text.

    Returns
    -------
    list of dict
        For a trimmed vocabulary one, with the largest relative difference of every output. Else one per round
        with the largest relative differences: of ``h a k v f`` alone and ``all`` together between gated and
        shrunk network, of ``export`` between the shrunk network and its export, and where heads were rotated
        of ``rotation`` between the networks before it and after it. With the h gate ``table5``, of ``fold``
        between the gated network and the one with its gates in its weights; the other comparisons then have
        zeros and ones as gates, in the stream of that one. Where a difference is above `TOLERANCE`,
        ``rounding`` has what `rounding_of` finds for the second network, by the name of the difference.

    Raises
    ------
    NotEqual
        If one is larger than `TOLERANCE` and than twice the rounding; the message has the whole table.
    FileNotFoundError, ValueError
        If the run directory is incomplete or was changed.
    """
    if is_trimmed(recipe.run):
        return [check_trimmed_of(recipe).differences]
    rounds = _rounds(recipe)
    if not rounds:
        if not recipe.run.is_dir():
            raise FileNotFoundError(f'{recipe.run}: no such directory')
        if (recipe.run / 'model.params').is_file():
            raise ValueError(f'{recipe.run} is a model directory; give the run that it came out of')
        raise FileNotFoundError(f'{recipe.run}: no finished round to verify; it has no round-1/shrunk')
    rows = []
    with counting('verifying', len(rounds), unit='round', seconds=0) as count:
        for number in rounds:
            rows.append(_row(recipe, number))
            count()
    if not all(map(_is_equal, rows)):
        raise NotEqual(
            f'{recipe.run}: a difference is above {TOLERANCE:.0e} of the largest activation, and more than '
            f'rounding\n{table(rows)}'
        )
    return rows


def check_trimmed_of(recipe: VerifyRecipe) -> TrimCheck:
    """`trim_check.check_trimmed` with the settings of a recipe."""
    return check_trimmed(
        recipe.run, model=recipe.model, text=recipe.text, batches=recipe.batches, batch_size=recipe.batch_size
    )


def table(rows: List[Dict[str, Any]]) -> str:
    """The rows of `verify` as Markdown."""
    names = list(_measured(rows[0]))
    return markdown_table(
        ['round', *(f'{name} alone' if len(name) == 1 else name for name in names)],
        [[row['round'], *(f'{row[name]:.1e}' for name in names)] for row in rows],
    )


def described_rounding(rows: List[Dict[str, Any]]) -> List[str]:
    """A sentence for each difference of `verify` that is above the tolerance and is rounding."""
    return [
        f'round {row["round"]}: the difference of {name}, {row[name]:.1e}, is rounding: with its hidden '
        f'units in reverse order the network differs from itself by {rounding:.1e}'
        for row in rows
        for name, rounding in row.get('rounding', {}).items()
    ]


def stages_table(rows: List[Dict[str, Any]]) -> str:
    """The rows of `stages` as Markdown."""
    names = {'error': 'error of the last layer', 'mlm_loss': 'MLM loss'}
    shown = [name for name in names if all(name in row for row in rows)]
    cells = [[row['round'], row['network'], *(f'{row[name]:.3f}' for name in shown)] for row in rows]
    return markdown_table(['round', 'network', *(names[name] for name in shown)], cells)


def described_scales(rows: List[Dict[str, Any]]) -> List[str]:
    """A sentence for each round of `stages` that cut hidden units: which LayerNorm this changes most."""
    sentences = []
    for row in rows:
        if 'layer_norm_scales' in row:
            place, scale = max(row['layer_norm_scales'].items(), key=lambda pair: abs(math.log(pair[1])))
            sentences.append(
                f'round {row["round"]}: the cut of h changes the scale of LayerNorms by a factor of up to '
                f'{scale:.2f} ({place})'
            )
    return sentences
