"""Raw text → documents → sentences, for five layouts: WikiExtractor's, WikiText's, one sentence per line,
books, Moses tokens.

Sentences are split by blingfire 0.1.8: one wheel without dependencies or downloads serves every Python, so
all make the same shards; it ran at 19 MB/s where syntok, pysbd and sentence-splitter took 1.2, 0.2 and 1.4,
and it splits inside quotations, which sentencex (56 MB/s) never does."""

from __future__ import annotations

import dataclasses
import functools
import html
import itertools
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import blingfire
import sacremoses

LAYOUTS = ('wikiextractor', 'wikitext', 'sentences', 'book', 'moses')
LONGEST_DOCUMENT = 4_000_000  # characters; a longer text without borders counts as several documents
_LONGEST_LINE = 1_000_000  # characters
_SAMPLE_LINES = 2000

_DOC = re.compile(r'<doc\s.*>$')
_TITLE = re.compile(r'\s*= (?!= ).*(?<! =) =$')  # of an article of WikiText; its sections have more signs
_SECTION = re.compile(r'\s*(?P<signs>(?:= ){1,5}=) .* (?P=signs)$')  # more signs are part of the heading
_MOSES = re.compile(r' @[-/,.]@ |&(?:apos|quot|amp|lt|gt|#91|#93|#124);')
_JOINT = re.compile(r' @([-/,.])@ ')  # inside a word or a number; sacremoses knows the hyphen alone
_SENTENCE_END = re.compile(r'[.!?…]["\'”’)\]]*$')
_BOOK_START = re.compile(
    r'\W*(?:start of (?:the|this)(?: copyrighted)? project gutenberg|end\W*(?:of )?(?:the )?small print)',
    re.I,
)
_BOOK_END = re.compile(
    r'\W*(?:ende?\b.{0,40}\bproject gutenberg|start: full licen[sc]e|the full project gutenberg licen[sc]e)',
    re.I,
)
_HEADER_LINES = 1500  # within which a book's start marker is looked for
_PRODUCTION = re.compile(
    r'project gutenberg|gutenberg\.org|gutenberg-tm|pgdp\.net|\bpg ebook|\betext\b', re.I
)
_CREDIT = re.compile(
    r'(?:this )?(?:e-?text |ebook )?(?:was )?(?:produced|prepared|transcribed) (?:by|from)\b', re.I
)
_CREDIT_PARAGRAPHS = 5  # at the beginning of a book, where such a line is a credit and not prose
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

    Links are followed. A file that is met twice counts once.

    Raises
    ------
    FileNotFoundError
        If an input is not there, or no input has a file, or a link leads nowhere.
    PermissionError
        If a directory cannot be read.
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


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends; a byte-order mark and carriage returns are dropped.

    Raises
    ------
    ValueError
        If it is not UTF-8 text.
    """
    remedy = 'unpack it if it is compressed, convert it with iconv, or take it out of the input'
    with open(path, encoding='utf-8-sig') as text:
        try:
            while line := text.readline(_LONGEST_LINE):
                if '\0' in line:
                    raise ValueError(f'{path}: has zero bytes, so it is no UTF-8 text; {remedy}')
                yield line.rstrip()
        except UnicodeDecodeError as error:
            raise ValueError(f'{path}: not UTF-8 ({error.reason}); {remedy}') from error


def detect_layout(path: Path) -> str:
    """Which of `LAYOUTS` the beginning of a file looks like."""
    lines = [line for line, _ in zip(read_lines(path), range(_SAMPLE_LINES))]
    text = [line for line in lines if line]
    if not text or _DOC.match(text[0]):
        return 'wikiextractor' if text else 'sentences'
    if any(_BOOK_START.match(line) for line in text):
        return 'book'
    if _TITLE.match(text[0]) or any(map(_TITLE.match, text)) and any(map(_SECTION.match, text)):
        return 'wikitext'
    escaped = sum(_MOSES.search(line) is not None for line in text)
    spaced = sum(line[-2:] in (' .', ' !', ' ?') or line.endswith((' &quot;', ' "')) for line in text)
    if escaped * 50 > len(text) or spaced * 2 > len(text):
        return 'moses'
    ended = sum(_SENTENCE_END.search(line) is not None for line in text)
    per_line = statistics.mean(len(split_sentences(line)) for line in text[:200])
    return 'sentences' if ended * 2 > len(text) and per_line < 1.7 else 'book'


def read_documents(path: Path, layout: str = 'auto') -> Iterator[Document]:
    """The documents of a file, none empty and none above `LONGEST_DOCUMENT` characters by more than a line.

    Raises
    ------
    ValueError
        If the file is not UTF-8 text.
    """
    layout = detect_layout(path) if layout == 'auto' else layout
    lines = read_lines(path)
    match layout:
        case 'wikiextractor':
            marked = _articles(lines)
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
    """WikiExtractor: what stands between the tags, without the title line that follows the opening one."""
    title_is_next = False
    for line in lines:
        if _DOC.match(line) or line == '</doc>':
            title_is_next = line != '</doc>'
            yield _BORDER
        elif title_is_next and line:
            title_is_next = False
        elif line:
            yield html.unescape(line)


def _titled(lines: Iterable[str]) -> Iterator[object]:
    """WikiText: what stands between the titles, without headings; a title has a blank line before it."""
    after_blank = True
    for line in lines:
        if after_blank and _TITLE.match(line):
            yield _BORDER
        elif line and not _SECTION.match(line):
            yield line
        after_blank = not line


def _without_frame(lines: Iterable[str]) -> Iterator[object]:
    """The lines between a start and an end marker, books kept apart; all lines where there is no marker."""
    lines = iter(lines)
    waiting: list[str] = []
    for line in lines:
        waiting.append(line)
        if _BOOK_START.match(line) or len(waiting) > _HEADER_LINES:
            break
    if waiting and _BOOK_START.match(waiting[-1]):
        _skip_marker(waiting.pop(), lines)
        waiting = []
    inside = True
    for line in itertools.chain(waiting, lines):
        if _BOOK_START.match(line):  # a second marker below the first, or the next book of the file
            _skip_marker(line, lines)
            inside = True
            yield _BORDER
        elif _BOOK_END.match(line):
            inside = False
            yield _BORDER
        elif inside:
            yield line


def _skip_marker(line: str, lines: Iterator[str]) -> None:
    """Take the lines over which a marker's title runs on, up to its closing asterisks."""
    for _ in range(4):
        if line.startswith('*') and not line.endswith('*'):
            line = '*' + next(lines, '*')
        else:
            return


def _paragraphs(lines: Iterable[object]) -> Iterator[object]:
    """Wrapped lines joined; what has no letters, or speaks of the edition's production, is left out."""
    held: list[str] = []
    size = number = 0
    for line in itertools.chain(lines, (_BORDER,)):
        if held and (line is _BORDER or not line or size > _LONGEST_LINE):
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


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph; a piece that goes on in lower case, or has no word, belongs to the one
    before.
    """
    sentences: list[str] = []
    for piece in blingfire.text_to_sentences(' '.join(paragraph.split())).split('\n'):
        goes_on = piece[:1].islower() or not any(map(str.isalnum, piece))
        if goes_on and sentences:
            sentences[-1] += ' ' + piece
        elif piece:
            sentences.append(piece)
    return sentences


@functools.lru_cache(maxsize=1)
def _detokenizer() -> Callable[[Sequence[str]], str]:
    return sacremoses.MosesDetokenizer(lang='en').detokenize


def sentences_of(document: Document) -> list[str]:
    """The sentences of a document: kept where its lines are sentences, split where they are paragraphs.

    Lines in Moses tokens are put together again first; corpora have both sentences and paragraphs in them.
    """
    if document.layout == 'sentences':
        return list(document.lines)
    lines: Iterable[str] = document.lines
    if document.layout in ('wikitext', 'moses'):
        lines = (_detokenizer()(_JOINT.sub(r'\1', line).split()) for line in lines)
    return [sentence for line in lines for sentence in split_sentences(line)]
