"""Raw text → documents → sentences, for the layouts of `layouts`."""

from __future__ import annotations

import dataclasses
import html
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import sacremoses

from ..runs.files import parse_json
from ..runs.limits import LONGEST_DOCUMENT, LONGEST_LINE, LONGEST_OBJECT
from .layouts import ARTICLE, BOOK_START, SECTION, TITLE, detect_layout, groups_of, read_lines, wrapped
from .sentences import split_sentences

_detokenize = sacremoses.MosesDetokenizer(lang='en').detokenize
_JOINT = re.compile(r' @([-/,.])@ ')  # inside a word or a number; sacremoses knows the hyphen alone
_BOOK_END = re.compile(
    r'\W*(?:ende?\b.{0,40}\bproject gutenberg|start: full licen[sc]e|the full project gutenberg licen[sc]e)',
    re.I,
)
_HEADER_LINES = 1501  # within which a book's start marker is looked for
_PRODUCTION = re.compile(
    r'project gutenberg|gutenberg\.org|gutenberg-tm|pgdp\.net|\bpg ebook|\betext\b', re.I
)
_CREDIT = re.compile(
    r'(?:this )?(?:e-?text |ebook )?(?:was )?(?:produced|prepared|transcribed) (?:by|from)\b', re.I
)
_CREDIT_PARAGRAPHS = 5  # at the beginning of a book, where such a line is a credit and not prose
_SURROGATE = re.compile('[\ud800-\udfff]')
_ITALICS = re.compile(r'(?<!\w)_(\S(?:[^_]*\S)?)_(?!\w)')
_BORDER = object()  # between documents


@dataclasses.dataclass(frozen=True)
class Document:
    """Consecutive text of one source: lines that are paragraphs or sentences, in Moses tokens or not."""

    lines: tuple[str, ...]
    layout: str

    @property
    def characters(self) -> int:
        """Its size."""
        return sum(map(len, self.lines))


def list_files(inputs: Iterable[Path]) -> list[Path]:
    """The files of `inputs`, each a file or a tree, in the order of their paths; hidden ones are passed over.

    Links are followed. A file that is met twice counts once. FileNotFoundError if an input is not there, or
    no input has a file, or a link leads nowhere; PermissionError if a directory cannot be read.
    """
    files: dict[Path, Path] = {}  # by what they are once links are followed
    for root in map(Path, inputs):
        if root.is_file():
            files.setdefault(root.resolve(), root)
        elif root.is_dir():
            for path in sorted(_files_below(root), key=lambda path: path.relative_to(root).parts):
                files.setdefault(path.resolve(), path)
        else:
            raise FileNotFoundError(f'{root}: no such file or directory of text')
    if not files:
        raise FileNotFoundError(f'{", ".join(map(str, inputs))}: no files of text in there')
    return list(files.values())


def _files_below(root: Path) -> Iterator[Path]:
    """Every file below a directory, each directory once, without what is hidden."""

    def refuse(error: OSError) -> None:
        raise error

    seen = set()
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a directory above it, or a second one to the same
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith('.'))
        paths = [Path(folder, name) for name in names if not name.startswith('.')]
        for path in paths:
            if path.is_symlink() and not path.exists():
                raise FileNotFoundError(
                    f'{path}: a link to {os.readlink(path)}, which is not there; remove it, or restore that'
                )
        yield from (path for path in paths if path.is_file())


def read_documents(path: Path, layout: str = 'auto') -> Iterator[Document]:
    """The documents of a file, none empty and none above `LONGEST_DOCUMENT` characters by more than a line;
    ValueError if the file is not UTF-8 text, has not that layout, or none that can be told.
    """
    layout = detect_layout(path) if layout == 'auto' else layout
    lines = read_lines(path)
    match layout:
        case 'wikiextractor':
            marked = _articles(lines)
        case 'jsonl':
            marked = _objects(path)
        case 'wikitext':
            marked = _titled(lines)
        case 'book':
            marked = _paragraphs(_without_frame(lines))
        case _:
            marked = (line if line.strip() else _BORDER for line in lines)
    for group in _bounded(marked):
        if group:
            yield Document(tuple(group), layout)


def _bounded(marked: Iterable[object]) -> Iterator[list[str]]:
    """Lines grouped between items that are `_BORDER`, and where a group grows too long."""
    group: list[str] = []
    size = 0
    for line in marked:
        if line is _BORDER or size >= LONGEST_DOCUMENT:
            yield group
            group, size = [], 0
        if line is not _BORDER:
            group.append(line)
            size += len(line)
    yield group


def _articles(lines: Iterable[str]) -> Iterator[object]:
    """WikiExtractor: what stands between the tags, without a first line that is the title in the tag."""
    title: str | None = None
    for line in lines:
        tag = ARTICLE.match(line)
        if tag or line == '</doc>':
            title = tag and tag['title']
            yield _BORDER
        elif line:
            if title is None or not _same(line, title):
                yield html.unescape(line)
            title = None


def _same(line: str, title: str) -> bool:
    return html.unescape(line).split() == html.unescape(title).split()


def _objects(path: Path) -> Iterator[object]:
    """JSON lines: the lines of each ``text``, joined if they were wrapped; a title is left out."""
    for number, line in enumerate(read_lines(path, LONGEST_OBJECT), 1):
        if not line:
            continue
        place = f'{path}: line {number}'
        value = parse_json(line, source=place)
        text = value.get('text') if isinstance(value, dict) else None
        if not isinstance(text, str):
            found = f'the fields {list(value)!r:.200}' if isinstance(value, dict) else type(value).__name__
            if text is not None:
                found = f'{type(text).__name__} in that field'
            raise ValueError(f'{place}: wanted an object with the text in its field text, found {found}')
        lines = [_SURROGATE.sub('\ufffd', one.rstrip()) for one in text.split('\n')]
        if isinstance(title := value.get('title'), str):
            lines = [html.unescape(one) for one in lines]
            first = next((i for i, one in enumerate(lines) if one), 0)
            del lines[first : first + _same(lines[first], title)]
        yield _BORDER
        yield from _paragraphs(_without_frame(lines)) if wrapped(groups_of(lines)) else filter(None, lines)


def _titled(lines: Iterable[str]) -> Iterator[object]:
    """WikiText: what stands between the titles, without headings; a title has a blank line before it."""
    after_blank = True
    for line in lines:
        if after_blank and TITLE.match(line):
            yield _BORDER
        elif line and not SECTION.match(line):
            yield line
        after_blank = not line


def _without_frame(lines: Iterable[str]) -> Iterator[object]:
    """The lines between a start and an end marker, books kept apart; all lines where there is no marker."""
    lines = iter(lines)
    header = list(itertools.islice(lines, _HEADER_LINES))
    first = next((i for i, line in enumerate(header) if BOOK_START.match(line)), 0)
    rest, inside = itertools.chain(header[first:], lines), True
    for line in rest:
        if BOOK_START.match(line):  # perhaps a second one below the first, or of the next book of the file
            for _ in range(4):  # lines at most over which its title runs on, up to its closing asterisks
                if line.startswith('*') and not line.endswith('*'):
                    line = '*' + next(rest, '*')
            inside = True
            yield _BORDER
        elif _BOOK_END.match(line):
            inside = False
            yield _BORDER
        elif inside:
            yield line


def _paragraphs(lines: Iterable[object]) -> Iterator[object]:
    """Wrapped lines joined; what has no letters, or speaks of the edition's production, is left out."""
    held: list[str] = []
    size = number = 0
    for line in itertools.chain(lines, (_BORDER,)):
        if held and (line is _BORDER or not line or size > LONGEST_LINE):
            # a word or a dash that the line break cut is closed up
            joined = ''.join(part if part.endswith(('-', '—')) else part + ' ' for part in held).rstrip()
            paragraph = _ITALICS.sub(r'\1', joined)
            number += 1
            credit = number <= _CREDIT_PARAGRAPHS and _CREDIT.match(paragraph)
            if any(map(str.isalpha, paragraph)) and not (
                credit or _PRODUCTION.search(paragraph) or paragraph == '[Illustration]'
            ):
                yield paragraph
            held, size = [], 0
        if line is _BORDER:
            number = 0
            yield line
        elif line:
            held.append(line.strip())
            size += len(line)


def sentences_of(document: Document) -> list[str]:
    """The sentences of a document: kept where its lines are sentences, split where they are paragraphs.

    Lines in Moses tokens are put together again first; corpora have both sentences and paragraphs in them.
    """
    if document.layout == 'sentences':
        return list(document.lines)
    lines: Iterable[str] = document.lines
    if document.layout in ('wikitext', 'moses'):
        lines = (_detokenize(_JOINT.sub(r'\1', line).split()) for line in lines)
    return [sentence for line in lines for sentence in split_sentences(line)]
