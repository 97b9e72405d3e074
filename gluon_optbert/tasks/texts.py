"""The texts of whatever files a user has: raw text, and the data of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..runs.display import number_of, tracked
from ..text.documents import read_documents, sentences_of
from ..text.layouts import guess_layouts
from ..text.tokenizer import Vocabulary
from ..text.trimming import count_words
from .examples import known_columns
from .squad import read_questions
from .tables import read_json_lines, read_records


def read_texts(path: Path) -> Iterator[str]:
    """The texts of a file, by the ending of its name.

    ========  ===========================================================================================
    .tsv .csv the columns that a task of GLUE reads, where the header names one, or text; else every cell
    .json     SQuAD: questions, and contexts once
    .jsonl    every value of an object that is text
    others    raw text in the layout of `text.layouts` that is likeliest: its sentences
    ========  ===========================================================================================

    FileNotFoundError or ValueError if there is no such file, it is not UTF-8, or not what its ending says.
    """
    path = Path(path)
    return _READERS.get(path.suffix.lower(), _sentences)(path)


def read_words(files: Sequence[Path], vocab: Vocabulary) -> Counter:
    """Counts of the words of some files, see `read_texts`; FileNotFoundError or ValueError from reading a
    file, or if there is no word in any.
    """
    words: Counter = Counter()
    for path in tracked(files, 'reading text', len(files), unit='file'):
        words.update(count_words(read_texts(path), vocab))
    if not words:
        raise ValueError(f'{", ".join(map(str, files[:3]))}: no text in {number_of(len(files), "file")}')
    return words


def _sentences(path: Path) -> Iterator[str]:
    for document in read_documents(path, guess_layouts(path)[0][0]):  # where documents end does not matter
        yield from sentences_of(document)


def _cells(path: Path) -> Iterator[str]:
    """The cells of a table: those of the columns of text if its header names some, else all."""
    texts = {field for columns in known_columns() for field in columns[:-1]}
    rows = [cells for _, cells in read_records(path)]
    places = [place for place, name in enumerate(rows[0] if rows else ()) if name in texts]
    if places:
        rows = [[row[place] for place in places if place < len(row)] for row in rows[1:]]
    for row in rows:
        yield from filter(None, row)


def _questions(path: Path) -> Iterator[str]:
    context = None
    try:
        questions = read_questions(path)
    except ValueError as error:
        raise ValueError(f'{error}; take it out, or make it JSON lines, .jsonl') from error
    for question in questions:
        yield question.text
        if question.context != context:
            context = question.context
            yield context


def _values(path: Path) -> Iterator[str]:
    for _, values in read_json_lines(path):
        yield from (value for value in values.values() if isinstance(value, str))


_READERS = {'.tsv': _cells, '.csv': _cells, '.json': _questions, '.jsonl': _values}
