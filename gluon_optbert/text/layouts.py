"""Layouts of text files, and which of them a file has."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..runs.limits import LONGEST_LINE
from .sentences import ends_sentence, split_sentences

LAYOUTS = {  # and what is said of those that can be taken for one another
    'wikiextractor': '',
    'jsonl': '',
    'wikitext': '',
    'sentences': 'a sentence a line, with blank lines between documents',
    'paragraphs': 'a paragraph a line, with blank lines between documents',
    'book': 'one document, whose paragraphs have blank lines between them',
    'moses': '',
}
_SAMPLE = 2000  # lines
_A_TABLE = (
    'a table is no text; write its texts as JSON lines with the field text, or name the --layout in which '
    'its lines are text'
)

# Nothing but the first title is tried, which (?=(...))\1 sees to.
ARTICLE = re.compile(r'<doc(?=\s)(?:(?=(.*?\stitle="))\1(?P<title>.*?)"(?=\s+\w+="|\s*>$))?.*>$')
TITLE = re.compile(r'\s*= (?!= ).*(?<! =) =$')  # of an article of WikiText; its sections have more signs
SECTION = re.compile(r'\s*(?P<signs>(?:= ){1,5}=) .* (?P=signs)$')  # more signs are part of the heading
BOOK_START = re.compile(
    r'\W*(?:start of (?:the|this)(?: copyrighted)? project gutenberg|end\W*(?:of )?(?:the )?small print)',
    re.I,
)
_OBJECT = re.compile(r'\{|\[(?:\{|$)')
_MARKUP = re.compile(r'<(?:\?xml|!doctype|html|mediawiki)\b', re.I)
_MOSES = re.compile(r' @[-/,.]@ |&(?:apos|quot|amp|lt|gt|#91|#93|#124);')
# A line of scripts without spaces may break before any character.
_WORD = re.compile(r'([\u0e00-\u109f\u1780-\u17ff\u3000-\ua4cf\uf900-\ufaff\uff00-\uffef])|\S+')
_NARROWEST = 30, 20  # characters of wrapped lines, and of those without spaces
_FEWEST = 4  # lines whose fullness counts
_BETWEEN = 1.3, 1.7  # sentences a line: with fewer, a line is a sentence, and with more, a paragraph


def read_lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends or a byte-order mark, longer ones in pieces; ValueError if
    it is not UTF-8 text.
    """
    remedy = 'unpack it if it is compressed, convert it with iconv, or take it out of the input'
    with open(path, encoding='utf-8-sig') as text:
        try:
            while line := text.readline(longest):
                if '\0' in line:
                    raise ValueError(f'{path}: has zero bytes, so it is no UTF-8 text; {remedy}')
                yield line.rstrip()
        except UnicodeDecodeError as error:
            raise ValueError(f'{path}: not UTF-8 ({error.reason}); {remedy}') from error


def detect_layout(path: Path) -> str:
    """The one of `LAYOUTS` that a file has; ValueError as of `guess_layouts`, or if it may have one or
    another.
    """
    guesses, seen = guess_layouts(path)
    if len(guesses) > 1:
        meant = ' or '.join(f'{layout} ({LAYOUTS[layout]})' for layout in guesses)
        raise ValueError(f'{path}: {seen}: may be {meant}; say with --layout which it is')
    return guesses[0]


def guess_layouts(path: Path) -> tuple[list[str], str]:
    """The layouts that the beginning of a file may have, the likelier one first, and what they were guessed
    from; one layout where it is certain. ValueError if it is markup, a table (by its name, too) or no text.
    """
    if path.suffix.lower() in ('.csv', '.tsv'):
        raise ValueError(f'{path}: {_A_TABLE}')
    lines, size = [], 0
    for line in itertools.islice(read_lines(path), _SAMPLE):
        lines.append(line)
        size += len(line)
        if size > 4 * LONGEST_LINE:
            break
    text = [line for line in lines if line]
    if not text:
        return ['sentences'], ''
    if ARTICLE.match(text[0]):
        return ['wikiextractor'], ''
    if _OBJECT.match(text[0]):
        return ['jsonl'], ''
    if _MARKUP.match(text[0]):
        raise ValueError(
            f'{path}: is HTML or XML; take the text out of it first, out of Wikipedia with WikiExtractor'
        )
    if any(map(BOOK_START.match, text)):
        return ['book'], ''
    if statistics.mode(line.count('\t') for line in text):
        raise ValueError(f'{path}: its lines have tabs: {_A_TABLE}')
    if TITLE.match(text[0]) or any(map(TITLE.match, text)) and any(map(SECTION.match, text)):
        return ['wikitext'], ''
    escaped = sum(_MOSES.search(line) is not None for line in text)
    spaced = sum(line[-2:] in (' .', ' !', ' ?') or line.endswith((' &quot;', ' "')) for line in text)
    if escaped * 50 > len(text) or spaced * 2 > len(text):
        return ['moses'], ''
    groups = groups_of(lines)
    if wrapped(groups):
        return ['book'], ''
    a_line = statistics.mean(len(split_sentences(line)) for line in text[:200])
    ended = sum(map(ends_sentence, text)) / len(text)
    seen = f'{a_line:.1f} sentences a line, {ended:.0%} of the lines end one, {len(groups)} groups of lines'
    guesses = ['sentences', 'paragraphs'] if a_line < sum(_BETWEEN) / 2 else ['paragraphs', 'sentences']
    if len(groups) > 1 and sum(len(group) > 1 for group in groups) * 5 < len(groups):
        guesses[1] = 'book'  # blank lines between nearly all lines
    elif (
        len(text) > 1 and a_line <= _BETWEEN[0] and ended <= 0.5 and (len(groups) == 1 or ended or a_line > 1)
    ):
        guesses[1] = 'book'  # lines that end anywhere, where sentences have end marks
    elif not _BETWEEN[0] < a_line < _BETWEEN[1]:
        del guesses[1]
    return guesses, seen


def groups_of(lines: Iterable[str]) -> list[list[str]]:
    """The lines between blank lines."""
    return [list(group) for blank, group in itertools.groupby(lines, lambda line: not line) if not blank]


def wrapped(groups: Sequence[Sequence[str]]) -> bool:
    """Whether lines are those of paragraphs that were wrapped: few of them end a sentence, and most are too
    full for the next one's first word, or go on in lower case, in which paragraphs do not begin. The lines
    are those of `groups_of`.
    """
    pairs = [pair for group in groups for pair in zip(group, group[1:])]
    if not pairs or sum(ends_sentence(line) for line, _ in pairs) * 2 >= len(pairs):
        return False
    width = sorted(len(line) for line, _ in pairs)[int(len(pairs) * 0.95)]
    words = [_WORD.match(after.lstrip()) for _, after in pairs]
    narrowest = _NARROWEST[sum(word[1] is not None for word in words) * 2 > len(pairs)]
    full = sum(len(line) + word.end() >= width for (line, _), word in zip(pairs, words))
    if width >= narrowest and full * 2 > len(pairs) >= _FEWEST:
        return True
    going_on = sum(after.lstrip()[0].islower() for _, after in pairs)
    beginning = sum(group[0].lstrip()[0].islower() for group in groups)
    return going_on * 2 > len(pairs) and beginning * 2 < len(groups)
