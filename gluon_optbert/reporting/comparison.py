"""Pruning runs of one base beside each other: what every way of pruning comes to, with its spread."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from ..runs.display import markdown_table
from ..runs.files import write_file
from ..runs.machine import commits_of
from ..runs.progress import score_text
from .figures import OKABE_ITO, STYLE, look, plain, save
from .networks import Run, read_run, score_name, weights_checksum
from .sections import read_json
from .speed import Spread
from .task_runs import read_recipe, settings_of, shares_of

FORMAT = 'gluon_optbert comparison of pruning runs'
POINTS, TABLE = 'points.json', 'table.md'
PICTURE, FLOPS_PICTURE = 'comparison', 'flops'
VERIFIED = 'verified.json'  # of a run: what tools/verify.py --output wrote
FLOPS, AFTER_CUT, FITTED, LOSS, ACCURACY, CUT, END, COSINE, PAIRS = (
    'FLOPs, %',
    'MLM loss after the cut',
    'MLM loss fitted',
    'MLM loss, nats',
    'MLM accuracy, %',
    'error after the cut',
    'error at the end',
    'cosine of embeddings',
    'pair similarity',
)
_LENGTH = 128  # tokens of the sequence whose FLOPs are counted
_CONTROL_LINES = '--', ':', '-.'
_CONTROL_COLOURS = '#333333', *OKABE_ITO[:4]  # the next one after every three lines


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that is compared.

    Parameters
    ----------
    way : str
        How it was made, as the user calls it.
    directory : Path
        Its model directory.
    parameters : int
        Of embeddings and encoder.
    values : mapping of str to float
        What was measured of it, by name.
    whole : int
        The parameters of the network that went into its run; 0 if it was not pruned.
    run : Path, optional
        The pruning run that it came out of.
    round, seed : int
        Of that run.
    commits : tuple of str
    base : str, optional
        The checksum of the network that went into its run, where the run has it.
    """

    way: str
    directory: Path
    parameters: int
    values: Mapping[str, float]
    whole: int = 0
    run: Optional[Path] = None
    round: int = 0
    seed: int = 0
    commits: Tuple[str, ...] = ()
    base: Optional[str] = None

    def to_dict(self) -> Dict[str, Any]:
        """JSON values."""
        values = dataclasses.asdict(self)
        return {**values, 'directory': str(self.directory), 'run': self.run and str(self.run)}


def named(text: str) -> Tuple[str, List[Path]]:
    """``NAME=DIRECTORY,DIRECTORY`` → the name and the directories; ValueError if there is none of either."""
    name, equal, places = text.rpartition('=')
    paths = [Path(place) for place in places.split(',') if place]
    if not equal or not name.strip() or not paths:
        raise ValueError(f'wanted NAME=DIRECTORY,DIRECTORY, found {text!r:.200}')
    return name.strip(), paths


def networks_of(way: str, paths: Sequence[Path]) -> List[Network]:
    """The networks of all rounds of some runs, which repeat each other or are of other sizes.

    A smaller network takes more steps in the same time, so runs of other sizes may differ in the steps of
    recovery.

    Raises
    ------
    ValueError, FileNotFoundError
        If a run cannot be read, or differs from the others in more than this and the seed.
    """
    networks: List[Network] = []
    recipes = [read_recipe(path) for path in paths]
    settings = [dict(settings_of(recipe)) for recipe in recipes]
    first: Dict[Tuple[float, ...], int] = {}  # of the runs of each size
    seen: Dict[Tuple[Tuple[float, ...], int], int] = {}
    for i, (path, own) in enumerate(zip(paths, settings)):
        alike = first.setdefault(shares_of(recipes[i]), i)
        for other, free in ((0, {'sizes', 'recovery_steps'}), (alike, {'sizes'})):
            names = {*own, *settings[other]} - free
            differing = sorted(name for name in names if own.get(name) != settings[other].get(name))
            if differing:
                raise ValueError(
                    f'{path} differs from {paths[other]} in {", ".join(differing)}; give it a name of its own'
                )
        same = seen.setdefault((shares_of(recipes[i]), int(recipes[i]['seed'])), i)
        if same != i:
            raise ValueError(
                f'{path} and {paths[same]} have the same sizes and seed; one of them is no repetition'
            )
        run = read_run(path, way)
        if run.metric is not None:
            raise ValueError(f'{path} was pruned for a task; tools/plot_tasks.py compares such runs')
        networks += _rounds(run, way)
    return networks


def _rounds(run: Run, way: str) -> List[Network]:
    """The networks that a run has made."""
    seed, commits = int(read_recipe(run.path)['seed']), tuple(commits_of(run.path))
    base = weights_checksum(run.path / 'round-0' / 'model')
    errors = _errors(run.path / VERIFIED)
    networks = []
    for row in run.rounds[1:]:
        place = run.path / f'round-{row["round"]}'
        values = _mlm(row['recovered'] or {})
        for name, field in ((AFTER_CUT, 'after_cut'), (FITTED, 'after_reconstruction')):
            if (row.get(field) or {}).get('mlm_loss') is not None:
                values[name] = float(row[field]['mlm_loss'])
        if 'flops' in row:  # not in runs of the first version
            values[FLOPS] = 100 * row['flops'] / run.rounds[0]['flops']
        values.update(errors.get(row['round'], {}))
        embeddings = place / 'embeddings.json'
        if embeddings.is_file():
            kept = read_json(embeddings)['recovered']
            values.update({COSINE: float(kept['cosine']), PAIRS: float(kept['pair_similarity'])})
        size = int(row['parameters'])
        whole, number = int(run.rounds[0]['parameters']), int(row['round'])
        networks.append(
            Network(way, place / 'model', size, values, whole, run.path, number, seed, commits, base)
        )
    return networks


def _mlm(measured: Mapping[str, Any]) -> Dict[str, float]:
    """Loss and accuracy of what a round or a progress has measured."""
    names = {LOSS: ('mlm_loss', 1), ACCURACY: ('mlm_accuracy', 100)}
    return {
        name: factor * float(measured[field])
        for name, (field, factor) in names.items()
        if measured.get(field) is not None
    }


def _errors(path: Path) -> Dict[int, Dict[str, float]]:
    """The relative error of the last layer's output, by round: before recovery, and after it."""
    if not path.is_file():
        return {}
    rounds: Dict[int, Dict[str, float]] = {}
    try:
        for row in read_json(path)['stages']:
            name = {'cut': CUT, 'reconstructed': CUT, 'recovered': END}.get(row['network'])
            if name:  # of the cut the last one counts: the reconstructed one, unless it was left out
                rounds.setdefault(int(row['round']), {})[name] = float(row['error'])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path}: not what verify.py writes ({error!s:.200})') from error
    return rounds


def controls_of(texts: Sequence[str]) -> List[Network]:
    """Networks that were not pruned, from ``NAME=MODEL``; those of one name repeat each other.

    Their FLOPs are those of a sequence of 128 tokens, relative to the largest of them.

    Raises
    ------
    ValueError, FileNotFoundError
        If a text has another form, a directory is no network, or one network is given twice.
    """
    places: List[Tuple[str, Path]] = []
    seen = set()
    for text in texts:
        way, paths = named(text)
        if len(paths) > 1:
            raise ValueError(f'{text!r:.200}: give every control as NAME=MODEL; a name may come again')
        checksum = weights_checksum(paths[0])
        if checksum is not None and checksum in seen:
            raise ValueError(f'{paths[0]}: these weights are given twice; one of them is no repetition')
        seen.add(checksum)
        places.append((way, paths[0]))
    architectures = [Architecture.read(path / 'architecture.json') for _, path in places]
    flops = [sum(count_flops(architecture, _LENGTH).values()) for architecture in architectures]
    return [
        Network(
            way,
            path,
            int(ParameterCost().cost(architecture)),
            {FLOPS: 100 * own / max(flops), **_last_measured(path)},
        )
        for (way, path), architecture, own in zip(places, architectures, flops)
    ]


def _last_measured(directory: Path) -> Dict[str, float]:
    """Loss and accuracy of the last evaluation of a model directory, as far as it says."""
    progress = directory / 'progress.json'
    return _mlm(read_json(progress)) if progress.is_file() else {}


def with_scores(networks: Sequence[Network], results: Sequence[Path]) -> List[Network]:
    """The networks with their scores after fine-tuning.

    Parameters
    ----------
    networks : sequence of Network
    results : sequence of Path
        Result files of fine-tuning, or directories with one. Each names its network by the checksum of its
        weights.

    Raises
    ------
    ValueError, FileNotFoundError
        If a file is no result, or of none of the networks.
    """
    known: Dict[Optional[str], List[int]] = {}  # several runs may have come to the same weights
    for i, network in enumerate(networks):
        known.setdefault(weights_checksum(network.directory), []).append(i)
    values = [dict(network.values) for network in networks]
    for path in results:
        file = path / 'result.json' if path.is_dir() else path
        result = read_json(file)
        try:
            metric, places = result['metric'], known.get(str(result['model_sha256']), [])
            name, score = f'{score_name(result["task"], metric)}, %', float(result['mean'][metric])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{file}: not a result of fine-tuning ({error!s:.200})') from error
        if not places:
            raise ValueError(f'{file}: fine-tuned from none of these networks')
        for place in places:
            if name in values[place]:
                raise ValueError(f'{file}: a second result of {networks[place].directory} for {name}')
            values[place][name] = score
    return [dataclasses.replace(network, values=own) for network, own in zip(networks, values)]


@dataclasses.dataclass(frozen=True)
class Rung:
    """The networks that repeat each other: one way, one size.

    Parameters
    ----------
    way : str
    share : float
        Of the parameters of the largest network, those that went into the runs included.
    networks : tuple of Network
    """

    way: str
    share: float
    networks: Tuple[Network, ...]

    def spread(self, name: str) -> Optional[Spread]:
        """Mean and deviation of a measurement; None if a network lacks it."""
        values = [network.values.get(name) for network in self.networks]
        known = [value for value in values if value is not None]
        return Spread.of(known) if known and len(known) == len(values) else None


def rungs_of(networks: Sequence[Network]) -> List[Rung]:
    """The networks by way and size, in the order of the ways, the largest first; sizes that differ by less
    than two in a hundred are one.
    """
    whole = max(max(network.parameters, network.whole) for network in networks)
    rungs: List[Rung] = []
    for network in networks:
        share = network.parameters / whole
        place = next(
            (
                i
                for i, rung in enumerate(rungs)
                if rung.way == network.way
                and abs(rung.share - share) < 0.02 * rung.share
                and not any(network.run and network.run == other.run for other in rung.networks)
            ),
            None,
        )
        if place is None:
            rungs.append(Rung(network.way, share, (network,)))
        else:
            rungs[place] = dataclasses.replace(rungs[place], networks=(*rungs[place].networks, network))
    order = list(dict.fromkeys(network.way for network in networks))
    return sorted(rungs, key=lambda rung: (order.index(rung.way), -rung.share))


def names_of(rungs: Sequence[Rung]) -> List[str]:
    """What was measured of some network: those of pre-training first, then scores."""
    first = [FLOPS, AFTER_CUT, FITTED, LOSS, ACCURACY, CUT, END, COSINE, PAIRS]
    found = dict.fromkeys(name for rung in rungs for network in rung.networks for name in network.values)
    return [name for name in first if name in found] + sorted(set(found) - set(first))


def table_of(rungs: Sequence[Rung]) -> str:
    """A row for each way and size, in Markdown."""
    names = names_of(rungs)
    rows = []
    for rung in rungs:
        size = sum(network.parameters for network in rung.networks) / len(rung.networks)
        cells = []
        for name in names:
            spread = rung.spread(name)
            digits = 1 if name.endswith('%') else 3
            cells.append(None if spread is None else score_text(spread.mean, spread.std, digits=digits))
        rows.append([plain(rung.way), f'{size / 1e6:.1f} M', f'{rung.share:.0%}', len(rung.networks), *cells])
    head = ['network', 'parameters', 'left', 'runs', *names]
    return markdown_table(head, rows, align='l' + 'r' * (len(head) - 1))


def draw(rungs: Sequence[Rung], *, against_flops: bool = False) -> Figure:
    """MLM loss and scores against the share of the parameters, or of the FLOPs, a line for each way.

    Networks that were not pruned are broken lines across it; if there are no others, each name is a point.
    """
    hidden = FLOPS, AFTER_CUT, FITTED, ACCURACY, CUT, END, COSINE, PAIRS
    points = _points(rungs)
    names = [
        name for name in names_of(rungs) if name not in hidden and any(rung.spread(name) for rung in points)
    ]
    figure = Figure(figsize=(4.4 * max(1, len(names)), 4.6))
    grid = figure.subplots(1, max(1, len(names)), squeeze=False)[0]
    shares = [rung.spread(FLOPS).mean if against_flops else 100 * rung.share for rung in rungs]
    for axes, name in zip(grid, names):
        _draw_panel(axes, rungs, shares, name)
        axes.set_title(f'{name} ({"lower" if name == LOSS else "higher"} is better)')
        axes.set_xlabel(f'{"FLOPs" if against_flops else "parameters"} left, %')
        axes.set_xlim(102, min(shares) - 5)
    handles: Dict[str, Any] = {}
    for axes in grid:
        handles.update(zip(*reversed(axes.get_legend_handles_labels())))
    columns = min(2, len(grid))  # two do not fit below a single panel
    figure.set_figheight(max(4.6, 3.2 + 0.23 * len(handles) / columns))
    figure.legend(list(handles.values()), list(handles), loc='outside lower center', ncol=columns)
    return figure


def _points(rungs: Sequence[Rung]) -> List[Rung]:
    """What a picture shows as points: the pruned networks, or all if none was pruned."""
    return [rung for rung in rungs if rung.networks[0].run is not None] or list(rungs)


def _draw_panel(axes: Axes, rungs: Sequence[Rung], shares: Sequence[float], name: str) -> None:
    """One measurement."""
    points = _points(rungs)
    ways = list(dict.fromkeys(rung.way for rung in points))
    controls = [rung for rung in rungs if rung not in points]
    for place, rung in enumerate(controls):
        spread, line = rung.spread(name), _CONTROL_LINES[place % len(_CONTROL_LINES)]
        colour = _CONTROL_COLOURS[place // len(_CONTROL_LINES) % len(_CONTROL_COLOURS)]
        if spread is not None:
            axes.axhline(spread.mean, color=colour, linestyle=line, linewidth=1.2, label=plain(rung.way))
    for place, way in enumerate(ways):
        style = look(place)
        pairs = [(share, rung.spread(name)) for rung, share in zip(rungs, shares) if rung.way == way]
        shown = [(share, spread) for share, spread in pairs if spread is not None]
        if not shown:
            continue
        axes.errorbar(
            [share for share, _ in shown],
            [spread.mean for _, spread in shown],
            yerr=[spread.std or 0.0 for _, spread in shown],
            linewidth=1.2,
            markersize=6,
            capsize=3,
            label=plain(way),
            **style,
        )


def write(networks: Sequence[Network], directory: Path) -> List[Path]:
    """Leave the points, the table, the picture by parameters, and where they are known, that by FLOPs."""
    rungs = rungs_of(networks)
    values = {'format': FORMAT, 'points': [network.to_dict() for network in networks]}
    notes = [
        'Parameters and FLOPs are those of embeddings and encoder. ± is the standard deviation over runs '
        'that differ in nothing but the seed. Loss and accuracy are of masked tokens of held-out text.'
    ]
    bases = {network.base for network in networks if network.base is not None}
    if len(bases) > 1:
        notes.append(f'The runs began with {len(bases)} different networks.')
    if {CUT, END} & set(names_of(rungs)):
        notes.append(
            'Errors are those of the output of the last layer, relative to the network before the cut, on '
            'the hidden units that stayed: before recovery (after fitting, where layers were fitted), and at '
            'the end.'
        )
    if PAIRS in names_of(rungs):
        notes.append(
            'An embedding is the mean over the tokens of a held-out instance. Their cosine is that with the '
            'embedding before pruning, on the hidden units that stayed, as a mean over the instances. Pair '
            'similarity is the rank correlation of the cosines of all pairs of instances with those of the '
            'network before pruning.'
        )
    write_file(directory / POINTS, (json.dumps(values, indent=1) + '\n').encode())
    write_file(directory / TABLE, ('\n\n'.join([table_of(rungs), *notes]) + '\n').encode())
    with matplotlib.rc_context(STYLE):
        pictures = save(draw(rungs), directory, PICTURE)
        if all(rung.spread(FLOPS) is not None for rung in rungs):
            pictures += save(draw(rungs, against_flops=True), directory, FLOPS_PICTURE)
    return [directory / POINTS, directory / TABLE, *pictures]
