"""Collections of texts without labels, for encoders of sentences; pairs of texts may have scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..text.documents import list_files
from .examples import PARTS, Examples, finite_number, known_columns, known_texts, label_text
from .tables import SUFFIXES, Table, read_cells, read_header, read_table

ENDINGS = ('.txt', *SUFFIXES)


@dataclasses.dataclass(frozen=True)
class Collection:
    """Texts to learn from, in the order of the files, none twice, none empty, and none of a scored pair; and
    pairs to measure on, with their scores, by the name of the file, of which the first decides.
    """

    texts: tuple[str, ...]
    scored: Mapping[str, Examples]


def read_collection(
    data: Path,
    *,
    text: Sequence[str] = (),
    label: str | None = None,
    kind: str | None = None,
    held_out: float = 0.1,
) -> Collection:
    """The texts of a file, or of all files below a directory whose names end with one of `ENDINGS`.

    A table is a ``.csv``, ``.tsv`` or ``.jsonl``, see `read_pairs`; any other file has a text in each line.
    Held out are pairs with scores: those of the tables that are called dev (validation, valid, val) or test;
    if there is none, those of all tables; and if there are no other texts, a share of them.

    FileNotFoundError or ValueError if there is no such file, a table is not as it should be, or two with
    scores have one name.
    """
    data, texts, scored = Path(data), [], {}
    paths, root = list_files([data]), data.parent
    if data.is_dir():
        root = data
        paths = [path for path in paths if path.suffix.lower() in ENDINGS]
        if not paths:
            raise FileNotFoundError(f'{data}: no file in there ends with {", ".join(ENDINGS)}')
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            texts += ['\t'.join(cells) for cells in read_cells(path)]
            continue
        pairs = read_pairs(path, text=text, label=label, kind=kind)
        if pairs.labels is None:
            texts += _texts_of(pairs)
            continue
        name = '-'.join(path.relative_to(root).with_suffix('').parts)
        if name in scored:
            raise ValueError(f'{path}: two tables with scores are called {name}; rename one')
        scored[name] = pairs
    parts = (*PARTS['dev'], *PARTS['test'])
    lasts = {name: name.rpartition('-')[2].lower() for name in scored}  # without their directories
    named = sorted((parts.index(last), name) for name, last in lasts.items() if last in parts)
    held = {name: scored[name] for name in [name for _, name in named] or sorted(scored)}
    for name in scored.keys() - held.keys():
        texts += _texts_of(scored[name])
    if held and not texts:
        split = {name: pairs.split(held_out) for name, pairs in held.items()}
        texts = [one for left, _ in split.values() for one in _texts_of(left)]
        held = {name: part for name, (_, part) in split.items()}
    measured = {one.strip() for pairs in held.values() for one in _texts_of(pairs)}
    different = dict.fromkeys(one.strip() for one in texts)
    return Collection(tuple(one for one in different if one and one not in measured), held)


def _texts_of(pairs: Examples) -> list[str]:
    return [one for row in pairs.texts for one in row]


def read_pairs(
    path: Path, *, text: Sequence[str] = (), label: str | None = None, kind: str | None = None
) -> Examples:
    """The texts of a table, one or two in a row, with labels if these are the scores of pairs.

    Columns are those that are named, or the usual ones, `known_columns`. If the first line has none of these,
    it is a row like all others: a text or two, and perhaps a number. Labels are scores if they are numbers,
    and one has a fraction, `kind`, which is that of `task_of_file`, is ``regression``, or their column is
    named. FileNotFoundError or ValueError from `read_table`; or if columns of text are not known, or a score
    is no number.
    """
    path = Path(path)
    has_keys = path.suffix.lower() == '.jsonl'
    first = [] if has_keys else read_header(path)
    if not (text or label or has_keys or known_texts(first)):
        return _without_header(path, len(first), kind)
    wanted = (*text, *filter(None, (label,)))
    table = read_table(path, wanted, cut_with=first[0] if first else '')
    fields = tuple(text) or known_texts(table.columns)
    if not fields:
        raise ValueError(
            f'{path}: none of the columns {", ".join(map(repr, table.columns)):.200} is known as text; name '
            'one, or two of pairs, with --text'
        )
    usual = [one[-1] for one in known_columns() if one[:-1] == fields]
    columns = [label] if label else [one for one in usual if one in table.columns]
    return _examples(table, fields, columns, 'regression' if label else kind)


def _without_header(path: Path, count: int, kind: str | None) -> Examples:
    """The rows of a table whose first line is one of them."""
    columns = [f'column {number + 1}' for number in range(count)]
    table = read_table(path, columns, headerless=columns)
    numbers = count > 1 and scores_of(table, columns[-1]) is not None
    fields = tuple(columns[: count - numbers])
    if len(fields) > 2:
        raise ValueError(
            f'{path}: its first line names no column that is known, and has {count} cells; without a header '
            'a row is a text or two, and perhaps a score; if it is a header, name its columns with --text '
            'and --label'
        )
    return _examples(table, fields, columns[-1:] if numbers else [], kind)


def _examples(table: Table, fields: tuple[str, ...], columns: Sequence[str], kind: str | None) -> Examples:
    """The rows of a table, with the first of some columns of labels that are scores, if there is one."""
    labels = None
    for column in columns if len(fields) == 2 and kind in (None, 'regression') else ():
        scores = scores_of(table, column, strict=kind is not None)
        if scores is not None and (kind or (scores % 1).any()):
            labels = scores
            break
    return Examples(table.texts(fields), labels, tuple(map(str, range(len(table.rows)))))


def scores_of(table: Table, column: str, *, strict: bool = False) -> np.ndarray | None:
    """The numbers in a column; if one cell has none, None, or ValueError where that is `strict`."""
    numbers = []
    for line, cell in table.column(column):
        try:
            numbers.append(finite_number(label_text(cell)))
        except ValueError:
            if not strict:
                return None
            raise ValueError(
                f'{table.path}: line {line} has {cell!r:.60} as {column!r}, wanted a finite number'
            ) from None
    return np.array(numbers)
