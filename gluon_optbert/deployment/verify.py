"""The check of a pruning run: the gated network with truncated alpha, the shrunk one and its export agree.

A network with a trimmed vocabulary is checked by `trim_check`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from ..architecture.cost import ParameterCost
from ..architecture.heads import Head
from ..architecture.parameters import Alphas, parameters_left
from ..cutting.selection import Selection, keep_all, read_alphas, read_selection, truncate
from ..cutting.shrink import fold, shrink
from ..network.inputs import TOKEN_INPUTS
from ..network.losses import PretrainingLoss
from ..network.model import OptBERTModel
from ..network.running import layer_norm_scales, pretraining_losses, squared_errors
from ..network.saved_model import SavedModel, read_model
from ..runs.display import markdown_table, tracked
from ..runs.limits import read_npz
from ..runs.programs import named
from ..runs.progress import CUT
from ..runs.recipe import Recipe, option, read_yaml
from ..text.batches import Batch, evaluation_batches
from ..text.shards import Shards
from ..text.tokenizer import vocabulary_hash
from .description import inputs_of, whole_kind
from .export import TOLERANCE, NotEqual, export, most_of, network_of, output_differences, rounding_of
from .mxnet_network import import_symbol
from .trim_check import check_trimmed, is_trimmed

SAMPLE = 'inputs.npz'  # in the directory of a run for a task: the inputs of some held-out instances
LEFT_OUT = 'reconstructed, left out'  # a fit of the layers that recovery did not start from


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
        """Fields that go with another directory."""
        trimmed = is_trimmed(self.run)
        flags = ('shards', 'output') if trimmed else ('model', 'text')
        kind = 'a run directory' if trimmed else 'a model with a trimmed vocabulary'
        return [f'--{name} goes with {kind}' for name in flags if getattr(self, name)]


def _batches(recipe: VerifyRecipe, before: SavedModel) -> list[Any]:
    """Held-out batches of the recipe's shards, or of those that the run was trained on; of a run for a task,
    those that it has left.
    """
    size, limit, sample = recipe.batch_size, recipe.batches * recipe.batch_size, recipe.run / SAMPLE
    if recipe.shards is not None or not sample.is_file():
        directory = recipe.shards or read_yaml(recipe.run / 'recipe.yaml').get('shards')
        if directory is None:
            raise FileNotFoundError(f'{sample}: no such file; restore it, or give --shards')
        try:
            shards = Shards.open(
                Path(directory), split='heldout', vocabulary_hash=vocabulary_hash(before.vocabulary)
            )
        except FileNotFoundError as error:
            raise FileNotFoundError(f'{error}; if they have moved, give --shards') from error
        _check_count(recipe, shards.instances, directory)
        return list(evaluation_batches(shards, batch_size=size, limit=limit))
    arrays = read_npz(sample)
    missing = [name for name in TOKEN_INPUTS if name not in arrays]
    if missing:
        raise ValueError(f'{sample}: has no {" and no ".join(missing)}')
    values = {name: arrays[name][:limit] for name in TOKEN_INPUTS}
    count = len(values['input_ids'])
    _check_count(recipe, count, sample)
    values['instance_weights'] = np.ones(count, np.float32)
    values['masked_positions'] = np.zeros((count, 1), np.float32)
    return [
        types.SimpleNamespace(**{name: value[start : start + size] for name, value in values.items()})
        for start in range(0, count, size)
    ]


def _check_count(recipe: VerifyRecipe, found: int, source: object) -> None:
    """Raise ValueError if the batches that a user asks for are more than there are instances for."""
    stated = not (recipe.is_default('batches') and recipe.is_default('batch_size'))
    if stated and found <= (recipe.batches - 1) * recipe.batch_size:
        raise ValueError(
            f'{source}: {found} held-out instances, too few for --batches {recipe.batches} of --batch-size '
            f'{recipe.batch_size}; take fewer'
        )


# Differences between two networks


def _network(saved: SavedModel, alphas: Alphas | None = None, h_gate: str = 'stream') -> OptBERTModel:
    """A network, with gates if there are some."""
    if alphas is None:
        return network_of(saved, whole_kind(saved.head))
    network = network_of(saved, whole_kind(saved.head), gated=True, h_gate=h_gate)
    _set_gates(network, alphas)
    return network


def _set_gates(network: OptBERTModel, alphas: Alphas) -> None:
    network.gates.set({key: alphas[key] for key in network.gates.parameters})


def _difference(
    one: Any, other: Any, batches: Sequence[Any], head: Head, kept_h: np.ndarray | None = None
) -> float:
    """The largest relative difference of any output between two blocks with a head; `other` has the units
    `kept_h` of the hidden units of `one`, or all of them.
    """
    kept = {} if kept_h is None else dict.fromkeys(('encoded', 'pooled'), kept_h)
    return max(output_differences(one, other, batches, whole_kind(head), head, kept=kept).values())


def _without_dropped(
    saved: SavedModel, alphas: Alphas, selection: Selection
) -> tuple[SavedModel, dict[str, np.ndarray]]:
    """A model without the layers and intermediate blocks that a selection drops, and the gates of the rest;
    all other widths stay whole, and the layers that stay are numbered anew.
    """
    emptied = {key: 0 for key, units in selection.kept.items() if key[0] == 'f' and not len(units)}
    architecture = saved.architecture.with_widths(emptied)
    kept = range(len(architecture.layers)) if selection.layers is None else selection.layers
    staying = parameters_left(architecture, kept, saved.head)
    architecture = dataclasses.replace(architecture, layers=tuple(architecture.layers[i] for i in kept))
    parameters = {name: saved.parameters[spec.name] for name, spec in staying.items()}
    left = dataclasses.replace(saved, architecture=architecture, parameters=parameters)
    return left, {
        key: alphas[key if key == 'h' else f'{key[0]}{kept[int(key[1:])]}']
        for key, width in architecture.widths().items()
        if width
    }


def _export_difference(network: OptBERTModel, shrunk: SavedModel, batches: Sequence[Any]) -> float:
    """The largest relative difference between a network and its export, whose heads may be random."""
    kind = whole_kind(shrunk.head)
    shrunk = dataclasses.replace(shrunk, progress=dataclasses.replace(shrunk.progress, untrained=None))
    with tempfile.TemporaryDirectory() as place:
        export(shrunk, Path(place) / 'export', head=kind)
        exported = import_symbol(Path(place) / 'export', inputs_of(kind))
        return _difference(network, exported, batches, shrunk.head)


# Rounds


def _rounds(recipe: VerifyRecipe) -> list[int]:
    """The rounds whose cut is done."""
    return list(itertools.takewhile(lambda i: _place(recipe, i, 'shrunk').is_dir(), itertools.count(1)))


def _place(recipe: VerifyRecipe, number: int, name: str) -> Path:
    return recipe.run / f'round-{number}' / name


def _row(recipe: VerifyRecipe, number: int) -> dict[str, Any]:
    """The largest differences of a round."""
    previous, turned = read_model(_place(recipe, number - 1, 'model')), _place(recipe, number, 'rotated')
    before = read_model(turned) if turned.is_dir() else previous
    alphas, h_gate = read_alphas(_place(recipe, number, 'alphas.npz'))
    selection = read_selection(_place(recipe, number, 'selection.json'))
    batches, head = _batches(recipe, before), before.head
    row: dict[str, Any] = {'round': number}
    rounding: dict[str, float] = {}

    def note(name: str, difference: float, saved: SavedModel) -> None:
        row[name] = difference
        if difference > TOLERANCE:
            rounding[name] = rounding_of(saved, whole_kind(head), batches)

    if turned.is_dir():
        note('rotation', _difference(_network(previous), _network(before), batches, head), before)
    if h_gate != 'stream':  # a gate at zero would leave its unit in the stream
        parameters = fold(before.parameters, before.architecture, alphas, head=head, h_gate=h_gate)
        folded = dataclasses.replace(before, parameters=parameters)
        networks = _network(before, alphas, h_gate), _network(folded)
        note('fold', _difference(*networks, batches, head), folded)
        before, alphas = folded, {key: np.ones_like(alpha) for key, alpha in alphas.items()}
    gated = _network(before, alphas)

    def cut_difference(selection: Selection, cut: OptBERTModel) -> float:
        """Between the gated network, with zeros for the alpha of units that go, and the one that is cut."""
        wide, gates = _without_dropped(before, truncate(alphas, selection), selection)
        network = gated if wide.architecture == before.architecture else _network(wide, gates)
        _set_gates(network, gates)
        return _difference(network, cut, batches, head, selection.kept['h'])

    whole = keep_all(before.architecture, ParameterCost()).kept
    for letter in 'hakvf':
        kept = {key: selection.kept[key] if key[0] == letter else units for key, units in whole.items()}
        alone = Selection(kept, selection.cost, selection.target)
        parameters, architecture = shrink(before.parameters, before.architecture, alphas, alone, head=head)
        left = dataclasses.replace(before, architecture=architecture, parameters=parameters)
        note(letter, cut_difference(alone, _network(left)), left)
    shrunk = read_model(_place(recipe, number, 'shrunk'))
    network = _network(shrunk)
    note('all', cut_difference(selection, network), shrunk)
    note('export', _export_difference(network, shrunk, batches), shrunk)
    return {**row, 'rounding': rounding} if rounding else row


def _measured(row: Mapping[str, Any]) -> dict[str, float]:
    """The differences of a row of `verify`."""
    return {name: value for name, value in row.items() if name not in ('round', 'rounding')}


def verify(recipe: VerifyRecipe) -> list[dict[str, Any]]:
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
        return [check_trimmed(recipe).differences]
    rounds = _rounds(recipe)
    if not rounds:
        if not recipe.run.is_dir():
            raise FileNotFoundError(f'{recipe.run}: no such directory')
        if (recipe.run / 'model.params').is_file():
            raise ValueError(f'{recipe.run} is a model directory; give the run that it came out of')
        raise FileNotFoundError(f'{recipe.run}: no finished round to verify; it has no round-1/shrunk')
    rows = [_row(recipe, number) for number in tracked(rounds, 'verifying', len(rounds), unit='round')]
    if not all(
        value <= most_of(row.get('rounding', {}).get(name, 0.0))
        for row in rows
        for name, value in _measured(row).items()
    ):
        raise NotEqual(
            f'{recipe.run}: a difference is above {TOLERANCE:.0e} of the largest activation, and more than '
            f'rounding\n{table(rows)}'
        )
    return rows


def _mlm_loss(saved: SavedModel, batches: Sequence[Any]) -> dict[str, float]:
    """The MLM loss of a network in nats per masked token, as a field of a row; none if nothing is masked, or
    if its MLM head is random.
    """
    if not isinstance(batches[0], Batch) or 'mlm' in (saved.progress.untrained or ()):
        return {}
    network, loss = _network(saved), PretrainingLoss()
    mlm = sum(float(pretraining_losses(network, loss, batch)[0].asscalar()) for batch in batches)
    return {'mlm_loss': mlm / sum(float(batch.masked_weights.sum()) for batch in batches)}


def stages(recipe: VerifyRecipe) -> list[dict[str, Any]]:
    """Distance of every stage of a run's rounds from the network before the cut, on held-out batches; errors
    are those of `verify`, but for NotEqual.

    Returns
    -------
    list of dict
        ``round``, ``network`` (before, cut, reconstructed or `LEFT_OUT`, recovered), ``error``: the relative
        error of the last layer's output on the hidden units that stayed; and of a run of pre-training
        ``mlm_loss``, in nats per masked token. Where hidden units were cut, the row of the network before it
        has ``layer_norm_scales``: `network.running.layer_norm_scales`. Rows of networks before the cut have
        ``tokenizer`` where text is not read as by an imported checkpoint's own.
    """
    rows = []
    rounds = _rounds(recipe)
    for number in tracked(rounds, 'comparing networks', len(rounds), unit='round'):
        before = read_model(_place(recipe, number - 1, 'model'))
        kept = read_selection(_place(recipe, number, 'selection.json')).kept['h']
        batches = _batches(recipe, before)
        row = {'round': number, 'network': 'before', 'error': 0.0, **_mlm_loss(before, batches)}
        if 1 < len(kept) < before.architecture.h:  # a single unit has no deviation
            row['layer_norm_scales'] = layer_norm_scales(before, kept, batches)
        if before.vocabulary.as_is:
            row['tokenizer'] = before.vocabulary.as_is
        rows.append(row)
        places = {name: _place(recipe, number, name) for name in ('shrunk', 'reconstructed', 'model')}
        saved = {name: read_model(place) for name, place in places.items() if place.is_dir()}
        left_out = 'model' in saved and saved['model'].progress.started_from == CUT
        fitted = LEFT_OUT if left_out else 'reconstructed'
        names = {'shrunk': 'cut', 'reconstructed': fitted, 'model': 'recovered'}
        for name, network in saved.items():
            difference, size = squared_errors(before, network, kept, batches)
            error = math.sqrt(difference / size)
            row = {'round': number, 'network': names[name], 'error': error, **_mlm_loss(network, batches)}
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of `verify` as Markdown."""
    names = list(_measured(rows[0]))
    return markdown_table(
        ['round', *(f'{name} alone' if len(name) == 1 else name for name in names)],
        [[row['round'], *(f'{row[name]:.1e}' for name in names)] for row in rows],
    )


def described_rounding(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each difference of `verify` that is above the tolerance and is rounding."""
    return [
        f'round {row["round"]}: the difference of {name}, {row[name]:.1e}, is rounding: with its hidden '
        f'units in reverse order the network differs from itself by {rounding:.1e}'
        for row in rows
        for name, rounding in row.get('rounding', {}).items()
    ]


def stages_table(rows: list[dict[str, Any]]) -> str:
    """The rows of `stages` as Markdown."""
    names = {'error': 'error of the last layer', 'mlm_loss': 'MLM loss'}
    shown = [name for name in names if all(name in row for row in rows)]
    cells = [[row['round'], row['network'], *(f'{row[name]:.3f}' for name in shown)] for row in rows]
    return markdown_table(['round', 'network', *(names[name] for name in shown)], cells)


def described_stages(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each round of `stages` that cut hidden units: which LayerNorm this changes most; and one
    on a tokenizer that was imported as it is.
    """
    tokenizers = dict.fromkeys(row['tokenizer'] for row in rows if 'tokenizer' in row)
    sentences = [f'text is not read as by the tokenizer of the checkpoint: {found}' for found in tokenizers]
    for row in rows:
        if 'layer_norm_scales' in row:
            place, scale = max(row['layer_norm_scales'].items(), key=lambda pair: abs(math.log(pair[1])))
            sentences.append(
                f'round {row["round"]}: the cut of h changes the scale of LayerNorms by a factor of up to '
                f'{scale:.2f} ({place})'
            )
    return sentences
