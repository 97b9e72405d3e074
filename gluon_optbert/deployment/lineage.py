"""Lineage of a network, as far as its model directory and the runs beside it say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING, Head
from ..architecture.rounds import Round, read_rounds
from ..runs.files import parse_json, read_small, sha256
from ..runs.machine import ORIGIN
from ..runs.progress import RESULT, RESULT_FORMAT, HeldOut, Progress, TaskScores
from ..runs.recipe import load_yaml
from ..text.trimming import read_trim_record


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """The scores of a network, in percent, by data and metric such as ``dev/accuracy``; and what the result
    of its run says of all seeds, of always giving the majority class, and of the examples in each part of the
    data. `optimistic`: the learning rate was chosen on the data of the scores.
    """

    scores: Mapping[str, float]
    seeds: int = 0  # of the run; 0 if its result is not known, nor what follows
    mean: Mapping[str, float] = dataclasses.field(default_factory=dict)
    std: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # None for one seed
    majority: Mapping[str, float] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, int] = dataclasses.field(default_factory=dict)
    commit: str = ''
    optimistic: bool = False


@dataclasses.dataclass(frozen=True)
class Pruning:
    """The rounds that a network came out of. Round 0 is the network that went in, whose widths are `before`;
    the last one gave this network.
    """

    before: Architecture
    rounds: tuple[Round, ...]
    recipe: Mapping[str, Any]
    commit: str = ''  # of the package; empty if not known
    metric: str = ''  # of the rounds' scores; empty if the run pruned for pre-training
    whole_vocabulary: int = 0  # tokens before the run trimmed the vocabulary; 0 if it did not
    again: bool = False  # whether the network that went in came out of a run of pruning
    pretrained_steps: int | None = None  # of it; None if it is not there, or recovery is among them
    embeddings: Mapping[str, float] = dataclasses.field(default_factory=dict)  # beside those before


@dataclasses.dataclass(frozen=True)
class Trimming:
    """Numbers of tokens of a vocabulary before it was trimmed and now; and whether nothing was trained
    after it, so that scores and losses are those of the whole vocabulary.
    """

    before: int
    after: int
    last: bool


@dataclasses.dataclass(frozen=True)
class Lineage:
    """Known facts of a network's training."""

    finetuning: Finetuning | None = None
    pruning: Pruning | None = None
    pretrained_steps: int = 0  # before pruning; 0 if not known, or of a network that was fine-tuned
    trained_steps: int = 0  # of pre-training and recovery, where only both together are known; else 0
    held_out: HeldOut | None = None  # the last evaluation of pre-training
    checkpoint: str = ''  # imported: the network is one, or was fine-tuned from one at once
    trimming: Trimming | None = None  # of the vocabulary, after pruning or before fine-tuning


def before_gates(lineage: Lineage) -> Lineage:
    """The lineage of a network whose gates are folded now, which changes it: nothing was measured of it."""
    return dataclasses.replace(lineage, finetuning=None, held_out=None)


def lineage_of(saved: Any, directory: Path | None = None) -> Lineage:
    """The lineage of a model.

    What stands beside its directory is taken only if it belongs to the model: the result of fine-tuning if
    it names the directory's seed, a pruning run if one of its rounds has the architecture. From fine-tuning,
    the lineage goes on with the network that it started from, if its parameters still have the checksum that
    the result states; from a trimmed vocabulary likewise with the network that had the whole one. What cannot
    be read is left out, and all that where the model was read from no directory.
    """
    progress: Progress = saved.progress
    own = saved.architecture.vocab_size
    finetuning = _finetuning_of(saved.head, progress)
    start, tokens = _untrimmed(directory, own)
    last = tokens > own
    if start is not None and finetuning is not None and progress.more.get('scores'):
        result = _result_of(start, progress)
        finetuning = _with_result(finetuning, result)
        tuned_from = _unchanged(_mapping(result.get('recipe')).get('model'), result.get('model_sha256'))
        start, tokens = _untrimmed(tuned_from, tokens)
    pruning = None
    if start is not None:
        pruning = _pruning_of(start, dataclasses.replace(saved.architecture, vocab_size=tokens))
    tokens = max(tokens, pruning.whole_vocabulary if pruning else 0)
    before = pruning.pretrained_steps if pruning else None
    steps = 0 if finetuning else progress.trained_steps if before is None else before
    recovered = bool(pruning or progress.round) and before is None  # with no count of its own
    recipes = [saved.recipe, {} if start is None else _mapping(_read(start / 'recipe.yaml'))]
    sources = [recipe['source'] for recipe in recipes if isinstance(recipe.get('source'), str)]
    return Lineage(
        finetuning=finetuning,
        pruning=pruning,
        pretrained_steps=0 if recovered else steps,
        trained_steps=steps if recovered else 0,
        held_out=None if finetuning else progress.held_out,
        checkpoint=Path(sources[0]).name if sources else '',
        trimming=Trimming(tokens, own, last) if tokens > own else None,
    )


def _read(path: Path) -> Any:
    """The values of a JSON or YAML file; None if there is none that can be read."""
    try:
        read = load_yaml if path.suffix == '.yaml' else parse_json
        return read(read_small(path), source=path.name)
    except (OSError, ValueError):
        return None


def _mapping(values: Any) -> dict[str, Any]:
    return values if isinstance(values, dict) else {}


def _numbers(values: Any) -> dict[str, Any]:
    """Those entries of a mapping that are numbers."""
    return {str(name): value for name, value in _mapping(values).items() if type(value) in (int, float)}


def _finetuning_of(head: Head, progress: Progress) -> Finetuning | None:
    """Scores recorded with a network: those of fine-tuning, or of pruning for its task."""
    scores = _numbers(progress.more.get('scores'))
    if scores:
        return Finetuning(scores)
    measured = progress.task_scores
    if measured is None or head == PRETRAINING:
        return None
    return Finetuning(measured.scores, samples={measured.metric.partition('/')[0]: measured.instances})


def _result_of(directory: Path, progress: Progress) -> dict[str, Any]:
    """The result of the fine-tuning run that wrote a model directory; empty if there is none."""
    result = _mapping(_read(directory.parent / RESULT))
    runs = result.get('runs') if result.get('format') == RESULT_FORMAT else None
    own = progress.more.get('seed'), progress.more.get('scores')
    for run in runs if isinstance(runs, list) else []:
        if isinstance(run, dict) and (run.get('seed'), run.get('scores')) == own:
            return result
    return {}


def _with_result(finetuning: Finetuning, result: Mapping[str, Any]) -> Finetuning:
    """Scores with what the result of their run says of all seeds."""
    seeds = result.get('seeds')
    return dataclasses.replace(
        finetuning,
        seeds=len(seeds) if isinstance(seeds, list) else 0,
        **{name: _numbers(result.get(name)) for name in ('mean', 'std', 'majority', 'samples')},
        commit=str(result.get('commit') or ''),
        optimistic=bool(_mapping(result.get('learning_rates')).get('tried')),
    )


def _unchanged(path: Any, checksum: Any) -> Path | None:
    """A model directory that a file names, if its parameters still have the checksum that the file states."""
    try:
        same = isinstance(path, str) and sha256(Path(path) / 'model.params') == checksum
    except (OSError, ValueError):
        return None
    return Path(path) if same else None


def _untrimmed(directory: Path | None, tokens: int) -> tuple[Path | None, int]:
    """The directory of the network with the whole vocabulary, if it is still there, and the number of its
    tokens; the directory itself, with `tokens`, if nothing was trimmed.
    """
    try:
        record = None if directory is None else read_trim_record(directory)
    except (OSError, ValueError):
        record = None
    if record is None or record.tokens[0] <= tokens:
        return directory, tokens
    whole = _unchanged(record.recipe['model'], record.model_sha256)
    return _untrimmed(whole, record.tokens[0])  # it may have been trimmed before


def _pruning_of(directory: Path, architecture: Architecture) -> Pruning | None:
    """The pruning run that a model directory, ``RUN/round-N/model``, came out of."""
    place = directory.absolute().parent
    run = place.parent
    word, _, number = place.name.partition('-')
    try:
        rounds = read_rounds(run)
    except (OSError, ValueError):
        return None
    if word != 'round' or not number.isdigit() or not 0 < int(number) < len(rounds):
        return None
    rounds = rounds[: int(number) + 1]
    if rounds[-1].architecture != architecture:
        return None
    last = rounds[-1].recovered
    try:
        start = Progress.from_dict(_read(run / 'round-0' / 'model' / 'progress.json'))
    except (ValueError, AttributeError, TypeError):  # it is not there, or no progress
        start = None
    entries = _read(run / ORIGIN)
    commit = _mapping(entries[-1]).get('commit') if isinstance(entries, list) and entries else None
    return Pruning(
        rounds[0].architecture,
        rounds,
        _mapping(_read(run / 'recipe.yaml')),
        str(commit or ''),
        last.metric if isinstance(last, TaskScores) else '',
        whole_vocabulary=start.whole_vocabulary or 0 if start else 0,
        again=bool(start and start.round),
        pretrained_steps=None if start is None or start.round else start.trained_steps,
        embeddings=_numbers(_mapping(_read(place / 'embeddings.json')).get('recovered')),
    )
