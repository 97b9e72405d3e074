"""Score sentence encoders: rank correlation on STS-B's pairs, and search of long texts.

TEXTS is what sentence_texts.py wrote. Networks are exports or model directories, as NAME=PATH, or a file .npz
of embeddings by another program, such as peers/static_embeddings.py; the first one is the parent. A search is
also made with the queries of a network in the index of the parent. OUTPUT has a line for every network, with
the rank of every right document and the cosine of every pair, from which differences are paired; OUTPUT with
the suffix .md has the table. What is in OUTPUT is not computed again. Networks whose names differ in a last
number, such as half-1 and half-2, are runs of one way with other seeds.

example:
  python benchmarks/studies/sentence_scores.py texts parent=models/minilm half=runs/half/round-1/model \\
      --output scores.json"""

from __future__ import annotations

import csv
import functools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from points import read_if_there
from scipy.stats import rankdata, spearmanr

from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.progress import paired_error, score_text, spread

SETS = ('squad', 'wiki')
RESAMPLED = 1000  # times, for the error of a difference of rank correlations


def ranks(queries: np.ndarray, documents: np.ndarray, right: list[int]) -> list[int]:
    """Number of documents that are nearer to each query than the right one."""
    scores = queries @ documents.T
    return (scores > scores[np.arange(len(right)), right][:, None]).sum(axis=1).tolist()


def gains(found: list[int]) -> np.ndarray:
    """nDCG@10 of every query, in percent, where one document is right."""
    place = np.array(found)
    return np.where(place < 10, 100 / np.log2(place + 2), 0.0)


@functools.cache
def correlations(cosines: tuple[float, ...], gold: tuple[float, ...]) -> np.ndarray:
    """Spearman's correlation on draws of the pairs with replacement, the same draws for every network."""
    draws = np.random.RandomState(0).randint(len(gold), size=(RESAMPLED, len(gold)))
    ranked = (rankdata(np.array(values)[draws], axis=1) for values in (cosines, gold))
    own, wanted = (values - values.mean(axis=1, keepdims=True) for values in ranked)
    return (own * wanted).sum(axis=1) / np.sqrt((own**2).sum(axis=1) * (wanted**2).sum(axis=1))


def apart(
    runs: Sequence[Mapping[str, Any]], other: Mapping[str, Any], name: str, gold: np.ndarray
) -> tuple[float, float]:
    """Mean difference between runs of one way and `other`, paired, and its standard error: that of pairs or
    queries and, of several runs, that of their seeds.
    """
    if name == 'pairs':
        score = spearmanr(other['pairs'], gold)[0]
        by_run = [100 * (spearmanr(one['pairs'], gold)[0] - score) for one in runs]
        drawn = np.mean([correlations(tuple(one['pairs']), tuple(gold)) for one in runs], axis=0)
        error = float(np.std(100 * (drawn - correlations(tuple(other['pairs']), tuple(gold))), ddof=1))
    else:
        known = gains(other[name if name in other else name.split(' ')[0]])
        gained = np.array([gains(one[name]) - known for one in runs])
        by_run, error = gained.mean(axis=1).tolist(), gained.mean(axis=0).std(ddof=1) / len(known) ** 0.5
    return float(np.mean(by_run)), float(np.hypot(error, paired_error(by_run) or 0))


def difference(
    runs: Sequence[Mapping[str, Any]], other: Mapping[str, Any], name: str, gold: np.ndarray
) -> str:
    """`apart`, as text."""
    mean, error = apart(runs, other, name, gold)
    return f'{mean:+.{DIGITS[name]}f} ± {error:.{DIGITS[name]}f}'


NAMES = ('pairs', *SETS, *(f'{name} in the parent' for name in SETS))
HEAD = ('STS-B dev', *NAMES[1:])
DIGITS = {name: 2 if name == 'pairs' else 1 for name in NAMES}


def score_of(one: Mapping[str, Any], name: str, gold: np.ndarray) -> float:
    """A score of a network, times 100."""
    return 100 * spearmanr(one[name], gold)[0] if name == 'pairs' else gains(one[name]).mean()


def seeds_table(points: Mapping[str, Any], gold: np.ndarray) -> list[str]:
    """Mean scores of the ways that have several runs, and how they differ from the parent."""
    (_, parent), *others = points.items()
    ways: dict[str, list[Mapping[str, Any]]] = {}
    for label, one in others:
        way, _, seed = label.rpartition('-')
        if way and seed.isdigit():
            ways.setdefault(way, []).append(one)
    rows = []
    for way, runs in ways.items():
        if len(runs) > 1:
            row = [way, str(len(runs))]
            for name in NAMES:
                if not all(name in one for one in runs):  # of another width than the parent
                    row.append('')
                    continue
                text = score_text(*spread([score_of(one, name, gold) for one in runs]), digits=DIGITS[name])
                row.append(f'{text} ({difference(runs, parent, name, gold)})')
            rows.append(row)
    if not rows:
        return []
    said = 'Mean and standard deviation over seeds, and the mean difference to the parent:'
    return [said, markdown_table(['way', 'runs', *HEAD], rows)]


def table_of(points: Mapping[str, Any], gold: np.ndarray) -> str:
    """A line for every network, with differences to the parent, and those to the first of the others, in
    Markdown.
    """
    (_, parent), *others = points.items()
    rows, to_first = [], []
    for label, one in points.items():
        row = [label, one.get('parameters', ''), one.get('flops', '')]
        for name in NAMES:
            cell = f'{score_of(one, name, gold):.{DIGITS[name]}f}' if name in one else ''
            if cell and one is not parent:
                cell += f' ({difference([one], parent, name, gold)})'
            row.append(cell)
        rows.append(row)
    for label, one in others[1:]:
        found = (difference([one], others[0][1], name, gold) if name in one else '' for name in NAMES)
        to_first.append([label, *found])
    parts = [
        markdown_table(['network', 'parameters', 'FLOPs', *HEAD], rows),
        'STS-B: rank correlation × 100. Search: nDCG@10 × 100 of questions for paragraphs of SQuAD, and of '
        'titles for articles of Wikipedia, with the documents of the network itself, or of the parent. In '
        'brackets the difference to the parent, paired, with its standard error over pairs or queries.',
    ]
    if to_first:
        parts += [f'To {others[0][0]}, in the same way:', markdown_table(['network', *HEAD], to_first)]
    return '\n\n'.join(parts + seeds_table(points, gold)) + '\n'


@command
def main(argv=None):
    """Score the networks that are not scored yet, and write the table of all."""
    parser = Parser(__doc__)
    parser.add_argument('texts', type=Path, metavar='TEXTS')
    parser.add_argument('networks', nargs='+', metavar='NAME=PATH')
    parser.add_argument('--output', type=Path, required=True, help='file of points to write')
    options = parser.parse_args(argv)
    points = read_if_there(options.output) or {}
    with open(options.texts / 'pairs.csv', encoding='utf-8', newline='') as file:
        pairs = [row[:3] for row in csv.reader(file)]
    gold = np.array([float(row[2]) for row in pairs])
    sets = {name: json.loads((options.texts / 'search' / f'{name}.json').read_text()) for name in SETS}
    index: dict[str, np.ndarray] = {}

    def encode(path: Path) -> dict[str, np.ndarray]:
        if path.suffix == '.npz':
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        with tempfile.TemporaryDirectory() as place:
            if (path / 'progress.json').is_file():  # rather than an export
                export(read_model(path), Path(place) / 'deploy', onnx=True)
                path = Path(place) / 'deploy'
            predictor = Predictor(path)
            encoded = {f'pairs {side}': predictor.encode([row[side] for row in pairs]) for side in (0, 1)}
            for name, one in sets.items():
                for what in ('queries', 'documents'):
                    encoded[f'{name} {what}'] = predictor.encode(one[what])
        return encoded

    for number, word in enumerate(options.networks):
        label, _, place = word.partition('=')
        if label in points and number:
            continue
        encoded = encode(Path(place))
        if not number:
            index = encoded
        one: dict[str, Any] = {'origin': origin_here()}
        if (Path(place) / 'progress.json').is_file():
            architecture = read_model(Path(place)).architecture
            one['parameters'] = int(ParameterCost().cost(architecture))
            one['flops'] = sum(count_flops(architecture, 128).values())
        one['pairs'] = [round(float(x), 5) for x in (encoded['pairs 0'] * encoded['pairs 1']).sum(axis=1)]
        for name, searched in sets.items():
            queries, right = encoded[f'{name} queries'], searched['right']
            one[name] = ranks(queries, encoded[f'{name} documents'], right)
            documents = index[f'{name} documents']
            if number and documents.shape[1] == queries.shape[1]:
                one[f'{name} in the parent'] = ranks(queries, documents, right)
        points[label] = one
        lines = ',\n'.join(f'{json.dumps(name)}: {json.dumps(value)}' for name, value in points.items())
        write_file(options.output, f'{{\n{lines}\n}}\n'.encode())
        print(f'scored {label}', flush=True)
    text = table_of(points, gold)
    write_file(options.output.with_suffix('.md'), text.encode())
    print(text)


if __name__ == '__main__':
    sys.exit(main())
