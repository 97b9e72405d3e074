"""A page of HTML in one file: tables, pictures and values, everything escaped, nothing fetched.

Its form is in ``templates``. Pictures are data in the page, SVG as well as PNG: as images their identifiers
cannot collide and nothing in them is run. The page's own policy forbids scripts and every address."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

MEDIA = {'png': 'image/png', 'svg': 'image/svg+xml'}
_DEEPEST = 6  # tables in tables; below, a value is shown as JSON
_FEW = 6  # values that a cell shows without being asked
_WORDS = 24  # characters, from which on the text of a cell may break
_NUMBER = re.compile(r'[-+]?\d[\d,]*(\.\d+)?( ± [\d.]+)?( ?(%|M|G|MB|ms|×))?( \*)?')
_UNSHOWABLE = re.compile(r'[\x00-\x08\x0b-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]')

Section = tuple[str, Markup]  # a title, and the markup below it


def _showable(value: Any) -> Any:
    """Text that HTML can hold, with replacement characters where it could not; markup as it is."""
    if isinstance(value, Markup):
        return value
    return _UNSHOWABLE.sub('\ufffd', str(value).encode('utf-8', errors='replace').decode('utf-8'))


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / 'templates'),
    autoescape=True,
    finalize=_showable,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PARTS = _TEMPLATES.get_template('parts.html').module


class Noted(NamedTuple):
    """A value in a cell, and a note below it in small."""

    value: Any
    note: str | None


class _Cell(NamedTuple):
    """A cell as its template takes it; the kind is ``number``, ``words`` or none."""

    text: Any
    kind: str | None
    note: str | None


@dataclasses.dataclass(frozen=True)
class Chapter:
    """A part of a page: its title, and its sections."""

    title: str
    sections: tuple[Section, ...]


def page(title: str, chapters: Sequence[Chapter], *, opening: Any = '', note: Any = '') -> str:
    """The whole page: the opening, links to the chapters and their sections, the chapters, and a note."""
    return _TEMPLATES.get_template('page.html').render(
        title=title, chapters=chapters, opening=opening, note=note
    )


def joined(*parts: Any) -> Markup:
    """One after the other."""
    return Markup('').join(map(_showable, parts))


def element(name: str, content: Any, *, kind: str | None = None) -> Markup:
    """Content between tags; `kind` is the class that the style sheet knows."""
    return _PARTS.element(name, content, kind)


def note(text: str) -> Markup:
    """A paragraph in small."""
    return element('p', text, kind='note')


def picture(content: bytes, kind: str, description: str) -> Markup:
    """An image in the page below its description; `kind` is one of `MEDIA`."""
    data = base64.b64encode(content).decode('ascii')
    return _PARTS.picture(f'data:{MEDIA[kind]};base64,{data}', description)


def figures(*pictures: Markup) -> Markup:
    """Pictures beside each other where the page is wide enough."""
    return element('div', joined(*pictures), kind='figures')


def details(summary: str, *content: Any) -> Markup:
    """Content that is shown when somebody asks for it."""
    return element('details', joined(element('summary', summary), *content))


def shown(value: Any) -> str:
    """A value in a cell: whole numbers in groups of three, others with four digits, nothing for None."""
    match value:
        case None:
            return ''
        case bool():
            return str(value).lower()
        case int():
            return f'{value:,}'
        case float():
            return f'{value:,.0f}' if 1000 <= abs(value) < 1e15 else f'{value:.4g}'
    return str(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, Noted):
        return _is_number(value.value)
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table that scrolls where it is wider than the page; numbers stand at the right, unless there is no
    header.

    The fractions of a column have as many digits, 2.200 below 2.529.
    """
    rows = [list(row) for row in rows]
    columns = [column[1:] for column in itertools.zip_longest(header, *rows)]
    right = [bool(rows) and all(_is_number(value) or value is None for value in column) for column in columns]
    aligned = [
        bool(header) and len({value for value in column if isinstance(value, float)}) > 1
        for column in columns
    ]

    def cell(value: Any, alike: bool) -> _Cell:
        below, plain = (value.note, value.value) if isinstance(value, Noted) else (None, value)
        if alike and isinstance(value, float) and 1e-3 <= abs(value) < 999.95:
            plain = f'{value:#.4g}'
        kind = 'number' if header and _is_number(value) else 'words' if len(str(value)) > _WORDS else None
        return _Cell(plain if isinstance(plain, Markup) else shown(plain), kind, below)

    heads = [_Cell(shown(name), 'number' if side else None, None) for name, side in zip(header, right)]
    return _PARTS.table(heads, [list(map(cell, row, aligned)) for row in rows])


def values(data: Any, depth: int = 0) -> Markup:
    """Any JSON or YAML value: mappings and lists of mappings as tables, one in the other."""
    if isinstance(data, Mapping) and len(data) > 1 and all(isinstance(row, Mapping) for row in data.values()):
        if len({tuple(row) for row in data.values()}) == 1:  # rows of one table
            return values([{'': name, **row} for name, row in data.items()], depth)
    if depth >= _DEEPEST and isinstance(data, (Mapping, list)):
        return element('pre', json.dumps(data, default=str, ensure_ascii=False))

    def folded(value: Any) -> Any:
        """A value in a cell; a long one when it is asked for."""
        if not isinstance(value, (Mapping, list)):
            return value
        parts = value.values() if isinstance(value, Mapping) else value
        deep = any(isinstance(part, (Mapping, list)) for part in parts)
        inner = values(value, depth + 1)
        long = deep or isinstance(value, Mapping) and len(value) > _FEW
        return details(f'{len(value)} entries', inner) if long else inner

    if isinstance(data, Mapping):
        return table((), [[element('b', name), folded(value)] for name, value in data.items()])
    if not isinstance(data, list):
        return joined(shown(data))
    if data and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(name for row in data for name in row))
        return table(names, [[folded(row.get(name)) for name in names] for row in data])
    if any(isinstance(item, (Mapping, list)) for item in data):
        return table((), [[folded(item)] for item in data])
    return joined(', '.join(shown(item) for item in data))
