"""A page of HTML in one file: tables, pictures and values, everything escaped, nothing fetched.

Pictures are data in the page, SVG as well as PNG: as images their identifiers cannot collide and nothing in
them is run. The page's own policy forbids scripts and every address."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import re
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

MEDIA = {'png': 'image/png', 'svg': 'image/svg+xml'}
DEEPEST = 6  # tables in tables; below, a value is shown as JSON
FEW = 6  # values that a cell shows without being asked
VOID = ('img', 'meta')
NUMBER = re.compile(r'[-+]?\d[\d,]*(\.\d+)?( ± [\d.]+)?( ?(%|M|G|MB|ms|×))?( \*)?')
CSS = """
:root { color-scheme: light; --ink: #1d2733; --pale: #5b6875; --line: #d9dfe5; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; background: #fff; color: var(--ink);
       overflow-wrap: anywhere;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-top: .75rem; border-top: 3px solid var(--accent); }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
nav a, nav span { display: inline-block; margin: .1rem .9rem .1rem 0; padding: .2rem 0; }
a { color: var(--accent); }
.figures { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 0 1.5rem; }
figure { margin: 1rem 0; min-width: 0; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .25rem; }
.verdict { font-size: 1.15rem; }
footer, .note { color: var(--pale); font-size: .9rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .5rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
         overflow-wrap: normal; }
td { max-width: 40rem; white-space: nowrap; }
td.words { overflow-wrap: anywhere; min-width: 8rem; white-space: normal; }
thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
td.number, th.number { text-align: right; }
.share { display: block; color: var(--pale); }
pre { overflow-x: auto; padding: .75rem; background: #f5f7f9; font-size: .85rem; overflow-wrap: normal; }
details { margin: .5rem 0; }
summary { cursor: pointer; padding: .3rem 0; }
@media print { nav { display: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


class Html(str):
    """Markup; every other value is text, and escaped."""


Section = Tuple[str, Html]  # a title, and what stands below it


def escaped(value: Any) -> Html:
    """Text as markup shows it; markup as it is. What HTML cannot hold is shown as a replacement character."""
    if isinstance(value, Html):
        return value
    text = str(value).encode('utf-8', errors='replace').decode('utf-8')
    return Html(
        html.escape(re.sub(r'[\x00-\x08\x0b-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]', '\ufffd', text))
    )


def tag(element: str, /, *content: Any, **attributes: Any) -> Html:
    """An element; an attribute that is a word of Python ends with an underscore, None leaves it out."""
    words = ''.join(
        f' {key.rstrip("_")}="{escaped(value)}"' for key, value in attributes.items() if value is not None
    )
    return Html(
        f'<{element}{words}>' if element in VOID else f'<{element}{words}>{joined(content)}</{element}>'
    )


def joined(parts: Iterable[Any]) -> Html:
    """One after the other."""
    return Html(''.join(escaped(part) for part in parts))


def shown(value: Any) -> str:
    """A value in a cell: whole numbers in groups of three, others with four digits, nothing for None."""
    if value is None:
        return ''
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (int, float)):
        return str(value)
    return (
        f'{value:,}'
        if isinstance(value, int)
        else f'{value:,.0f}'
        if 1000 <= abs(value) < 1e15
        else f'{value:.4g}'
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, Noted):
        return _is_number(value.value)
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        or (isinstance(value, str) and NUMBER.fullmatch(value) is not None)
    )


class Noted(NamedTuple):
    """A value in a cell, and what stands below it in small."""

    value: Any
    note: Optional[str]


def _aligned(value: Any) -> Any:
    """A fraction of ordinary size with four digits, zeros included."""
    return f'{value:#.4g}' if isinstance(value, float) and 1e-3 <= abs(value) < 1000 else value


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Html:
    """A table that scrolls where it is wider than the page; numbers stand at the right, unless there is no
    header.

    The fractions of a column have as many digits, 2.200 below 2.529.
    """
    rows = [list(row) for row in rows]
    columns = [[row[i] for row in rows if i < len(row)] for i in range(max(map(len, [header, *rows])))]
    right = [bool(rows) and all(_is_number(value) or value is None for value in column) for column in columns]
    aligned = [
        bool(header) and len({value for value in column if isinstance(value, float)}) > 1
        for column in columns
    ]

    def cell(name: str, value: Any, numeric: bool) -> Html:
        kind = 'number' if numeric and header else 'words' if name == 'td' and len(str(value)) > 24 else None
        return tag(name, _content(value), class_=kind)

    heads = [cell('th', name, side) for name, side in zip(header, right)]
    lines = [
        [
            cell('td', _aligned(value) if alike else value, _is_number(value))
            for value, alike in zip(row, aligned)
        ]
        for row in rows
    ]
    body = tag('tbody', *(tag('tr', *line) for line in lines))
    return tag('div', tag('table', tag('thead', tag('tr', *heads)) if heads else '', body), class_='scroll')


def _content(value: Any) -> Html:
    """What is between the tags of a cell."""
    if isinstance(value, Noted):
        note = '' if value.note is None else tag('span', value.note, class_='share')
        return joined([_content(value.value), note])
    return escaped(value if isinstance(value, Html) else shown(value))


def picture(content: bytes, kind: str, description: str) -> Html:
    """An image in the page below its description; `kind` is one of `MEDIA`."""
    source = f'data:{MEDIA[kind]};base64,{base64.b64encode(content).decode("ascii")}'
    return tag('figure', tag('figcaption', description), tag('img', src=source, alt=description))


def figures(*pictures: Html) -> Html:
    """Pictures beside each other where the page is wide enough."""
    return tag('div', *pictures, class_='figures')


def details(summary: str, *content: Any) -> Html:
    """What is shown when somebody asks for it."""
    return tag('details', tag('summary', summary), *content)


def values(data: Any, depth: int = 0) -> Html:
    """Any JSON or YAML value: mappings and lists of mappings as tables, one in the other."""
    if isinstance(data, Mapping) and len(data) > 1 and all(isinstance(row, Mapping) for row in data.values()):
        if len({tuple(row) for row in data.values()}) == 1:  # rows of one table
            return values([{'': name, **row} for name, row in data.items()], depth)
    if depth >= DEEPEST and isinstance(data, (Mapping, list)):
        return tag('pre', json.dumps(data, default=str, ensure_ascii=False))
    if isinstance(data, Mapping):
        return table((), [[tag('b', name), _value(value, depth)] for name, value in data.items()])
    if not isinstance(data, list):
        return escaped(shown(data))
    if data and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(name for row in data for name in row))
        return table(names, [[_value(row.get(name), depth) for name in names] for row in data])
    if any(isinstance(item, (Mapping, list)) for item in data):
        return table((), [[_value(item, depth)] for item in data])
    return escaped(', '.join(shown(item) for item in data))


def _value(data: Any, depth: int) -> Any:
    """A value in a cell of `values`; a long one when it is asked for."""
    if not isinstance(data, (Mapping, list)):
        return data
    parts = data.values() if isinstance(data, Mapping) else data
    deep = any(isinstance(part, (Mapping, list)) for part in parts)
    long = deep or isinstance(data, Mapping) and len(data) > FEW
    return details(f'{len(data)} entries', values(data, depth + 1)) if long else values(data, depth + 1)


@dataclasses.dataclass(frozen=True)
class Chapter:
    """A part of a page: its title, and sections of a title and their markup each."""

    title: str
    sections: Tuple[Section, ...]


def page(title: str, chapters: Sequence[Chapter], *, opening: Any = '', note: Any = '') -> str:
    """The whole page: the opening, links to the chapters and their sections, the chapters, and a note."""
    links: List[Html] = []
    body: List[Html] = []
    for number, chapter in enumerate(chapters):
        parts: List[Html] = []
        for part, (name, content) in enumerate(chapter.sections):
            anchor = f'part-{number}-{part}'
            parts.append(tag('a', name, href=f'#{anchor}'))
            body.append(
                joined(
                    [
                        tag('h2', chapter.title, id=f'chapter-{number}') if part == 0 else '',
                        tag('h3', name, id=anchor),
                        content,
                    ]
                )
            )
        links.append(tag('div', tag('span', tag('b', chapter.title)) if len(chapters) > 1 else '', *parts))
    head = joined(
        [
            tag('meta', charset='utf-8'),
            tag('meta', name='viewport', content='width=device-width, initial-scale=1'),
            tag(
                'meta',
                **{'http-equiv': 'Content-Security-Policy'},
                content="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
            ),
            tag('title', title),
            tag('style', Html(CSS)),
        ]
    )
    main = tag('body', tag('h1', title), opening, tag('nav', *links), *body, tag('footer', note))
    return f'<!DOCTYPE html>\n{tag("html", tag("head", head), main, lang="en")}\n'
