"""Compare what two networks have learnt: linear CKA and linear probes, behind attention blocks and behind
layers.

Two networks of the same widths with random weights are measured as well. Even these distinguish tokens, so
only similarity and accuracy above theirs were learnt."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field, PositiveInt

from gluon_optbert import __version__
from gluon_optbert.analysis.probing import ProbeResult, ProbeTask, probe, sentence_task, word_tasks
from gluon_optbert.analysis.sample import BEHIND, Sample, network_of, random_network, read_sample
from gluon_optbert.analysis.similarity import Similarity, compare
from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.cutting.shrink import without_gates
from gluon_optbert.network.model import OptBERTModel
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.pruning.trimming import trim
from gluon_optbert.reporting.figures import MARKERS, OKABE_ITO, STYLE, drawn, plain
from gluon_optbert.reporting.networks import labels_of
from gluon_optbert.reporting.page import Chapter, element, joined, note, page, picture, table, values
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.files import new_directory, refuse_existing, sha256, write_json
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.progress import NOTE, score_text
from gluon_optbert.runs.recipe import Recipe, Seed, option, save, to_dict

EXAMPLE = (
    'python tools/compare_models.py models/small runs/pruned/round-4/model --data shards --output comparison'
)
KINDS = {'attention': 'behind the attention blocks', 'layers': 'behind the layers'}
RANDOM = ', random weights'  # what follows the name of a network
LEAST_POSITIONS = 3  # [CLS] and the two [SEP] of a pair


class CompareRecipe(Recipe):
    """Networks to compare, and the text for it."""

    models: tuple[Path, ...] = option(
        'two model directories; give one twice to compare its layers with each other. If one has a part of '
        "the other's vocabulary, both read the text in the tokens of this part"
    )
    data: Path = option(
        'a directory of shards, whose held-out instances have [MASK] tokens; a text file with one sequence '
        'per line; a .tsv file whose header is that of a GLUE task, or names one or two sentences and a '
        'label; with --task, a file of the task, or the directory of all tasks for its training file'
    )
    output: Path = option('directory to write')
    instances: Annotated[int, Field(ge=2)] = option(
        'largest number of sequences; they need many more tokens than a layer has units', 512
    )
    length: Annotated[int, Field(ge=8)] = option(
        'largest number of tokens of a sequence; longer ones are cut', 128
    )
    batch_size: PositiveInt = option('sequences in a batch', 16)
    probes: bool = option('whether to train probes', True)
    words: Annotated[int, Field(ge=100)] = option('largest number of words of a probing task', 4000)
    task: str | None = option(
        'task whose labels are probed: SST-2, MNLI … or a JSON file as for finetune/run_glue.py', None
    )
    seed: Seed = option('random seed of lines, words, control labels and random weights', 0)

    def problems(self) -> list[str]:
        """Problems: fields out of range."""
        return [] if len(self.models) == 2 else [f'wanted two models, found {len(self.models)}']


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All that was measured.

    Parameters
    ----------
    labels : tuple of str
        Of the two networks.
    sample : Sample
    similarities : dict of name to Similarity
        Of the first with the second, and with a network of the second's widths and random weights.
    tasks : dict of name to ProbeTask
        None where the text does not allow one.
    probes : dict of network to dict of task to ProbeResult
    """

    labels: tuple[str, ...]
    sample: Sample
    similarities: Mapping[str, Similarity]
    tasks: Mapping[str, ProbeTask | None]
    probes: Mapping[str, Mapping[str, ProbeResult]]

    @property
    def tokens(self) -> int:
        """Number of tokens that were looked at."""
        return next(iter(self.similarities.values())).tokens


def measure(
    recipe: CompareRecipe, models: Sequence[SavedModel], labels: Sequence[str], sample: Sample
) -> Comparison:
    """CKA and probes of both networks and of random ones."""
    networks: dict[str, OptBERTModel] = {}
    for number, (label, model) in enumerate(zip(labels, models)):
        networks[label] = network_of(model)
        networks[f'{label}{RANDOM}'] = random_network(networks[label].architecture, recipe.seed + number)
    size = {'batch_size': recipe.batch_size}
    similarities = {
        name: compare(networks[labels[0]], networks[name], sample, **size)
        for name in (labels[1], f'{labels[1]}{RANDOM}')
    }
    tasks: dict[str, ProbeTask | None] = {}
    if recipe.probes:
        tasks.update(word_tasks(sample, words=recipe.words, seed=recipe.seed))
        if sample.labels:
            tasks['label'] = sentence_task(sample, seed=recipe.seed)
    possible = {name: task for name, task in tasks.items() if task is not None}
    probes = {name: probe(network, sample, possible, **size) for name, network in networks.items()}
    return Comparison(tuple(labels), sample, similarities, tasks, probes)


def first_layer(place: str) -> int:
    """The number of the first state behind a place: layer 0 is the embedding, and has no attention."""
    return int(place == 'attention')


def draw_similarity(
    similarities: Mapping[str, np.ndarray], first: str, *, embedding: bool, title: str
) -> Figure:
    """Heat maps of CKA, from 0 to 1 in all of them: rows are layers of the first network, columns those of
    the others.

    The names are as `plain` gives them, and there is room for them.
    """
    rows, columns = next(iter(similarities.values())).shape
    width = max(2.6, 0.46 * columns, 0.075 * max(map(len, similarities)))
    height = max(2.9, 1.3 + 0.4 * rows, 1.3 + 0.08 * len(first))
    figure = Figure(figsize=(1.8 + len(similarities) * width, height))
    grid = figure.subplots(1, len(similarities), squeeze=False)[0]
    names = [
        ['emb.' if embedding and i == 0 else str(i + (not embedding)) for i in range(count)]
        for count in (rows, columns)
    ]
    for axes, (other, matrix) in zip(grid, similarities.items()):
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap='viridis', origin='lower', aspect='auto')
        axes.grid(False)
        axes.set_title(other, fontsize=9)
        axes.set(
            xticks=range(columns),
            xticklabels=names[1],
            yticks=range(rows),
            yticklabels=names[0],
            xlabel='layer',
        )
        if max(matrix.shape) <= 13:
            for (row, column), value in np.ndenumerate(matrix):
                axes.text(
                    column,
                    row,
                    '–' if np.isnan(value) else f'{value:.2f}',
                    ha='center',
                    va='center',
                    fontsize=7,
                    color='black' if value > 0.6 else 'white',
                )
    grid[0].set_ylabel(f'layer of {first}')
    figure.colorbar(image, ax=grid, label='linear CKA', shrink=0.9)
    figure.suptitle(title, x=0.01, ha='left', fontsize=11)
    return figure


def draw_probes(comparison: Comparison, name: str) -> Figure:
    """Accuracy by layer for one task, behind attention and behind layers: solid; on random weights: dotted;
    on the control task: dashed.
    """
    task = comparison.tasks[name]
    figure = Figure(figsize=(10.4, 4.6))
    panels = figure.subplots(1, len(BEHIND), sharex=True, sharey=True)
    for axes, place, where in zip(panels, BEHIND, KINDS.values()):
        for i, results in enumerate(comparison.probes.values()):
            _draw_probe(axes, plain(comparison.labels[i // 2]), results[name].behind(place), place, i)
        axes.axhline(
            task.majority, color='#555555', linewidth=1, linestyle='-.', label='always the commonest label'
        )
        axes.set_title(where, fontsize=9)
        axes.set_xlabel('layer' if place == 'attention' else 'layer; 0 is the embedding')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel('accuracy')
    figure.suptitle(
        f'Linear probes: {plain(name)} ({", ".join(map(plain, task.classes))})',
        x=0.01,
        ha='left',
        fontsize=11,
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncol=2, fontsize=8)
    return figure


def _draw_probe(axes: Axes, network: str, result: ProbeResult, place: str, number: int) -> None:
    """Draw the accuracies of a network behind a place; every second `number` is that of random weights."""
    chance, colour = number % 2 == 1, OKABE_ITO[number // 2]
    layers = range(first_layer(place), first_layer(place) + len(result.accuracy))
    axes.plot(
        layers,
        result.accuracy,
        color=colour,
        linestyle=':' if chance else '-',
        marker=MARKERS[number // 2],
        markerfacecolor='white' if chance else colour,
        label=network + (RANDOM if chance else ''),
    )
    if result.control and not chance:
        axes.plot(
            layers,
            result.control,
            color=colour,
            linestyle='--',
            linewidth=1,
            label=f'{network}, control task',
        )


def figures_of(comparison: Comparison) -> dict[str, Figure]:
    """Every figure by the name of its file."""
    figures = {}
    first, second = map(plain, comparison.labels)
    for kind, where in KINDS.items():
        matrices = [getattr(similarity, kind) for similarity in comparison.similarities.values()]
        figures[f'cka_{kind}'] = draw_similarity(
            dict(zip((second, second + RANDOM), matrices)),
            first,
            embedding=kind == 'layers',
            title=f'Linear CKA of the states {where}, {first} with',
        )
    for name, task in comparison.tasks.items():
        if task is not None:
            figures['probe_' + name.replace(' ', '_')] = draw_probes(comparison, name)
    return figures


def probe_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Results of every probe, layer by layer; the embedding is layer 0."""
    rows = []
    for network, results in comparison.probes.items():
        for (task, whole), place in itertools.product(results.items(), BEHIND):
            result = whole.behind(place)
            for i, accuracy in enumerate(result.accuracy):
                rows.append(
                    {
                        'task': task,
                        'network': network,
                        'layer': first_layer(place) + i,
                        'behind': place,
                        'accuracy': accuracy,
                        'control_accuracy': result.control[i] if result.control else None,
                        'selectivity': result.selectivity[i] if result.control else None,
                    }
                )
    return rows


def probe_table(comparison: Comparison, task: str) -> Markup:
    """Accuracies and selectivities of one task on held-out sequences, a column for each layer."""
    probes = {network: results[task] for network, results in comparison.probes.items()}
    deepest = max(len(result.behind('layer').accuracy) for result in probes.values())
    majority = 100 * comparison.tasks[task].majority
    rows = [['majority class', None, 'accuracy', *[score_text(majority)] * deepest]]
    for place, (network, whole) in itertools.product(BEHIND, probes.items()):
        result, before = whole.behind(place), [None] * first_layer(place)
        accuracies = [score_text(100 * value, majority=majority) for value in result.accuracy]
        rows.append([network, place, 'accuracy', *before, *accuracies])
        if result.selectivity:
            selectivities = [f'{100 * value:.1f}' for value in result.selectivity]
            rows.append([network, place, 'selectivity', *before, *selectivities])
    heads = ['network', 'behind', 'percent', 'embedding', *(f'layer {i}' for i in range(1, deepest))]
    return joined(table(heads, [row + [None] * (len(heads) - len(row)) for row in rows]), note(f'{NOTE}.'))


def numbers(comparison: Comparison, recipe: CompareRecipe) -> dict[str, Any]:
    """All of it as JSON values; a similarity that is not defined is null."""

    def cells(matrix: np.ndarray) -> list[list[float | None]]:
        return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]

    return {
        'recipe': to_dict(recipe),
        'model_sha256': [sha256(path / 'model.params') for path in recipe.models],
        **origin_here(),
        'sequences': len(comparison.sample),
        'tokens': comparison.tokens,
        'cka': {
            name: {kind: cells(getattr(similarity, kind)) for kind in KINDS}
            for name, similarity in comparison.similarities.items()
        },
        'tasks': {
            name: None
            if task is None
            else {
                'classes': list(task.classes),
                'train': int((~task.test).sum()),
                'test': int(task.test.sum()),
                'majority': task.majority,
            }
            for name, task in comparison.tasks.items()
        },
        'probes': probe_rows(comparison),
    }


def summary(comparison: Comparison, models: Sequence[SavedModel]) -> Markup:
    """The two networks, and the text."""
    rows = [
        [
            label,
            ParameterCost().cost(model.architecture) / 1e6,
            model.architecture.h,
            len(model.architecture.layers),
            sum(not layer.f for layer in model.architecture.layers),
        ]
        for label, model in zip(comparison.labels, models)
    ]
    widest = max(model.architecture.h for model in models)
    said = f'{len(comparison.sample):,} sequences, {comparison.tokens:,} tokens.'
    if comparison.tokens < 10 * widest:
        said += f' That is less than ten times the {widest} units: the similarities are too high.'
    heads = ['network', 'parameters, M', 'h', 'layers', 'without intermediate block']
    return joined(table(heads, rows), element('p', said))


def chapters_of(
    comparison: Comparison, models: Sequence[SavedModel], recipe: CompareRecipe, pictures: Mapping[str, bytes]
) -> list[Chapter]:
    """The page, part by part, with pictures in SVG."""
    charts = {name: picture(content, 'svg', name) for name, content in pictures.items()}
    meaning = (
        '1 means the same but for a rotation and a scale. Networks of random weights know one token from '
        'another, so they are not at 0; what was learnt in common is what exceeds them. The states are those '
        'of the residual stream, over all tokens. A layer without an intermediate block ends where its '
        'attention block does.'
    )
    sections = [
        ('Networks', summary(comparison, models)),
        ('Similarity', joined(note(meaning), *(charts[f'cka_{kind}'] for kind in KINDS))),
    ]
    for name, task in comparison.tasks.items():
        if task is None:
            sections.append((f'Probes: {name}', element('p', 'The text has not enough of two labels.')))
            continue
        facts = (
            f'{(~task.test).sum():,} places to learn from, {task.test.sum():,} in other sequences to measure '
            f'on; the commonest label has {task.majority:.1%} of these.'
        )
        chart = charts['probe_' + name.replace(' ', '_')]
        shown = joined(element('p', facts), chart, probe_table(comparison, name))
        sections.append((f'Probes: {name}', shown))
    return [Chapter('Comparison', (*sections, ('Recipe', values(to_dict(recipe)))))]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table with a header."""
    with open(path, 'w', encoding='utf-8', errors='replace', newline='') as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


def write(comparison: Comparison, models: Sequence[SavedModel], recipe: CompareRecipe) -> None:
    """The directory of a comparison, whole or not at all."""
    with matplotlib.rc_context(STYLE), new_directory(recipe.output) as staged:
        vectors = {}
        for name, figure in figures_of(comparison).items():
            (staged / f'{name}.png').write_bytes(drawn(figure, name, 'png'))
            vectors[name] = drawn(figure, name, 'svg')
            (staged / f'{name}.svg').write_bytes(vectors[name])
        for kind in KINDS:
            shift = first_layer(kind)
            rows = [
                {'second': name, 'layer_of_first': i + shift, 'layer_of_second': j + shift, 'cka': value}
                for name, similarity in comparison.similarities.items()
                for (i, j), value in np.ndenumerate(getattr(similarity, kind))
            ]
            write_csv(staged / f'cka_{kind}.csv', rows)
        found = numbers(comparison, recipe)
        if found['probes']:
            write_csv(staged / 'probes.csv', found['probes'])
        write_json(staged / 'comparison.json', found)
        save(recipe, staged / 'recipe.yaml')
        content = page(
            f'{comparison.labels[0]} and {comparison.labels[1]}',
            chapters_of(comparison, models, recipe, vectors),
            note=f'Made by gluon_optbert {__version__}.',
        )
        (staged / 'report.html').write_bytes(content.encode('utf-8'))


def sharing(models: Sequence[SavedModel], paths: Sequence[Path]) -> list[SavedModel]:
    """The models with the smallest of their vocabularies, so that they read the same tokens.

    Raises
    ------
    ValueError
        If it is not a part of the others.
    """
    smallest = min((model.vocabulary for model in models), key=len)
    shared = []
    for model in models:
        try:
            same = model.vocabulary == smallest
            shared.append(model if same else trim(without_gates(model), smallest))
        except ValueError as error:
            raise ValueError(
                f'{" and ".join(map(str, paths))} have different vocabularies ({error}); compare networks of '
                'the same, or of a vocabulary and a part of it'
            ) from error
    return shared


def refuse_too_small(models: Sequence[SavedModel], paths: Sequence[Path]) -> None:
    """Raise ValueError for a network that has no layers, or too few positions for any sequence."""
    for model, path in zip(models, paths):
        if not model.architecture.layers:
            raise ValueError(f'{path}: a network without layers; compare networks of at least one')
        positions = model.architecture.max_length
        if positions < LEAST_POSITIONS:
            raise ValueError(
                f'{path}: {positions} positions are too few for a sequence, wanted at least {LEAST_POSITIONS}'
            )


@command
def main(argv=None):
    """Read, measure, write, and say how alike the last layers are."""
    recipe = parse(CompareRecipe, argv, description=__doc__, example=EXAMPLE, positional='models')
    refuse_existing(recipe.output)
    paths = [path.resolve() for path in recipe.models]
    labels = labels_of(list(dict.fromkeys(paths)))
    if len(labels) == 1:
        labels.append(f'{labels[0]} again')
    models = [read_model(path) for path in recipe.models]
    refuse_too_small(models, recipe.models)
    reading = sharing(models, recipe.models)
    longest = min(model.architecture.max_length for model in models)
    sample = read_sample(
        recipe.data,
        reading[0].vocabulary,
        limit=recipe.instances,
        length=min(recipe.length, longest),
        task=recipe.task,
        seed=recipe.seed,
    )
    for model, path in zip(models, recipe.models):
        if sample.features.has_pairs and model.architecture.token_types < 2:
            raise ValueError(
                f'{recipe.data} has sequences of two segments, and {path} has one token type; '
                'compare on a text file with one sequence per line'
            )
    comparison = measure(recipe, reading, labels, sample)
    write(comparison, models, recipe)
    for name, similarity in comparison.similarities.items():
        print(
            f'CKA of {labels[0]} with {name}: {similarity.layers[-1, -1]:.3f} behind the last layers, '
            f'{similarity.attention[-1, -1]:.3f} behind their attention blocks'
        )
    print(f'wrote {recipe.output}: report.html, comparison.json, heat maps and tables')


if __name__ == '__main__':
    sys.exit(main())
