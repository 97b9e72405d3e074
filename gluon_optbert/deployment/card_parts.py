"""Parts of a model card: words, sizes, bars of widths, tables of scores, the rounds of a pruning run."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import ParameterCost, count_flops
from ..runs.display import markdown_table
from ..runs.progress import NOTE, OPTIMISTIC, exceeds, score_text
from .story import Finetuning, Pruning, Trimming

_BAR = 10  # characters of the longest bar
_EIGHTHS = ' ▏▎▍▌▋▊▉█'
_WEIGHTS = ('.params', '.safetensors', '.onnx')


def plain(text: Any) -> str:
    """Somebody else's words, in one line of Markdown that shows them as they are."""
    line = ' '.join(str(text).encode('utf-8', 'replace').decode('utf-8').split())
    return re.sub(r'([\\`*_\[\]<>|~&])', r'\\\1', ''.join(filter(str.isprintable, line)))


def millions(count: float) -> str:
    """A number of parameters or operations, such as ``13.6 M``."""
    for unit, size in (('G', 1e9), ('M', 1e6), ('k', 1e3)):
        if count >= size:
            return f'{count / size:.1f} {unit}'
    return f'{count:.0f}'


def commit_words(commit: str) -> str:
    """The commit of a run; ``+`` behind it says that the working tree had changes."""
    return f', commit `{commit}`' if re.fullmatch(r'[0-9a-f]{7,40}\+?', commit) else ''


def finetuning_table(tuned: Finetuning) -> str:
    """The scores of this network and of all seeds, beside the majority class's."""
    header, align = ['data and metric', 'this network'], 'lr'
    several = tuned.seeds > 1
    if several:
        header, align = [*header, f'mean of {tuned.seeds} seeds'], align + 'r'
    if tuned.majority:
        header, align = [*header, 'majority class'], align + 'r'
    rows, marked = [], False
    for name, score in scores_in_percent(tuned.scores):
        majority = tuned.majority.get(name)
        marked |= not exceeds(score, majority)
        row = [plain(name), score_text(score, majority=majority, digits=2)]
        if several:
            mean = tuned.mean.get(name)
            row.append(None if mean is None else score_text(mean, tuned.std.get(name), digits=2))
        if tuned.majority:
            row.append(None if majority is None else score_text(majority, digits=2))
        rows.append(row)
    text = 'In percent, float32.'
    if tuned.samples:
        listed = ', '.join(f'{plain(name)}: {count:,}' for name, count in tuned.samples.items())
        text += f' Examples: {listed}.'
    if marked:
        text += f' {plain(NOTE)}.'
    if tuned.optimistic:
        text += f' {OPTIMISTIC[0].upper()}{OPTIMISTIC[1:]}.'
    return f'{markdown_table(header, rows, align=align)}\n\n{text}'


def scores_in_percent(scores: Mapping[str, float]) -> List[Tuple[str, float]]:
    """The scores without the thresholds that SQuAD's program reports beside them."""
    return [(name, score) for name, score in scores.items() if not name.endswith('_thresh')]


def _before(pruning: Optional[Pruning]) -> Tuple[Optional[Architecture], str]:
    """The widths before the run of pruning, and what they are called."""
    if pruning is None:
        return None, ''
    return pruning.before, 'before the last pruning' if pruning.again else 'before pruning'


def size_table(here: Architecture, pruning: Optional[Pruning], files: Mapping[str, int]) -> str:
    """Parameters, FLOPs and the sizes of files; beside those before pruning, if these are known."""
    before, when = _before(pruning)
    length = min(128, here.max_length)
    rows = []
    for name, count in (
        ('parameters of embeddings and encoder', lambda widths: ParameterCost().cost(widths)),
        (f'FLOPs of {length} tokens', lambda widths: float(sum(count_flops(widths, length).values()))),
    ):
        row = [name, millions(count(here))]
        if before is not None:
            row += [millions(count(before)), f'{100 * count(here) / count(before):.0f} %']
        rows.append(row)
    empty = [None, None] if before is not None else []
    for name, size in sorted(files.items()):
        if name.endswith(_WEIGHTS):
            rows.append([f'`{name}`', f'{size / 1e6:.1f} MB', *empty])
    header = ['', 'this network', *([when, 'share'] if before is not None else [])]
    return markdown_table(header, rows, align='l' + 'r' * (len(header) - 1))


def widths_picture(here: Architecture, pruning: Optional[Pruning]) -> str:
    """The widths as bars; the longest bar of a column is the largest width before pruning, or here."""
    before, when = _before(pruning)
    columns = [('heads', 'a'), ('keys', 'k'), ('values', 'v'), ('filters', 'f')]
    every = [*here.layers, *(before.layers if before else ())]
    most = {letter: max((getattr(dims, letter) for dims in every), default=0) for _, letter in columns}
    digits = {letter: max(len(str(most[letter])), 2) for _, letter in columns}

    def cell(dims: LayerDims, letter: str) -> str:
        width = getattr(dims, letter)
        return f'{bar(width, most[letter])} {width:>{digits[letter]}}'

    lines = ['layer  ' + '  '.join(f'{name} {it}'.ljust(_BAR + 1 + digits[it]) for name, it in columns)]
    for first, last, dims in _runs(here.layers):
        where = str(first) if first == last else f'{first}-{last}'
        lines.append(f'{where:>5}  ' + '  '.join(cell(dims, letter) for _, letter in columns))
    hidden = f'hidden size h {here.h}' + (f', {before.h} {when}' if before else '')
    embedding = f'embedding of {here.vocab_size:,} tokens × {here.h if here.e is None else here.e}'
    lines = [f'{hidden}; {embedding}; {here.max_length} positions', '', *(line.rstrip() for line in lines)]
    text = '```\n' + '\n'.join(lines) + '\n```'
    return f'{text}\n\nA full bar is the largest width {when}.' if before else text


def _runs(layers: Sequence[LayerDims]) -> List[Tuple[int, int, LayerDims]]:
    """Layers that are equal and follow each other: the first, the last, counted from 1, and their widths."""
    runs: List[Tuple[int, int, LayerDims]] = []
    for number, dims in enumerate(layers, 1):
        if runs and runs[-1][2] == dims:
            runs[-1] = (runs[-1][0], number, dims)
        else:
            runs.append((number, number, dims))
    return runs


def bar(width: int, most: int) -> str:
    """A bar of block characters, as long as its share of the largest width; a width above zero is seen."""
    eighths = round(8 * _BAR * width / most) if most else 0
    eighths = max(eighths, 1) if width else 0
    full, rest = divmod(eighths, 8)
    return ('█' * full + (_EIGHTHS[rest] if rest else '')).ljust(_BAR)


def pruning_lines(pruning: Pruning) -> List[str]:
    """What a pruning run did, and what each round came to, as an entry of a list."""
    recipe = pruning.recipe
    words = {name: recipe.get(name) for name in ('method', 'prune', 'penalty', 'objective')}
    how = [f'{name} `{value}`' for name, value in words.items() if _is_word(value)]
    rounds = len(pruning.rounds) - 1
    lines = [
        f'Pruned {"again " if pruning.again else ""}in {rounds} round{"s" if rounds > 1 else ""}'
        + (f' ({", ".join(how)})' if how else '')
        + f'{commit_words(pruning.commit)}:'
    ]
    first, came_in = pruning.rounds[0].parameters, 'before, pruned already' if pruning.again else 'before'
    for one in pruning.rounds:
        loss = '' if one.mlm_loss is None else f', MLM loss {one.mlm_loss:.3f}'
        loss += '' if one.score is None else f', {plain(pruning.metric)} {one.score:.2f}'
        name = f'round {one.number}' if one.number else came_in
        lines.append(f'  {name}: {millions(one.parameters)} parameters ({one.parameters / first:.0%}){loss}')
    return [lines[0] + ''.join(f'\n  - {line.strip()}' for line in lines[1:])]


def trimming_line(trimming: Trimming) -> str:
    """How many tokens a vocabulary lost."""
    return f'The vocabulary was trimmed to a text: {trimming.after:,} of {trimming.before:,} tokens are left.'


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r'[\w-]{1,40}', value) is not None
