"""Options of data without the name of a task."""

from __future__ import annotations

from typing import ClassVar, Literal

from ..runs.recipe import Recipe, Share, option


class TableOptions(Recipe):
    """Columns of a table, and its labels."""

    text: tuple[str, ...] = option(
        'column of the text in --data, a file .csv, .tsv or .jsonl, or a directory with train and dev files; '
        'of pairs both, with a comma between. By default those with usual names',
        (),
    )
    label: str | None = option(
        'column of the labels in --data, or several of zeros and ones with commas between, each a label; by '
        'default label, or the last one',
        None,
    )
    kind: Literal['classification', 'regression', 'multi_label', 'token_classification'] | None = option(
        'kind of the labels: one class, a number to predict, any number of labels, or a tag for every word. '
        'By default numbers if one has a fraction, and by the file: lists of JSON are several labels, CoNLL '
        'columns (.conll, .iob, .bio) or lists of words and tags are tags',
        None,
    )
    labels: tuple[str, ...] = option(
        "names of the labels, as negative=0,positive=1; they say which of a network's labels is which of the "
        'data where their names differ',
        (),
    )

    def problems(self) -> list[str]:
        wrong = [f'text must be one column or two, found {",".join(self.text)}'] if len(self.text) > 2 else []
        return super().problems() + wrong


class OwnData(TableOptions):
    """Options of a table, or a directory of tables, to train and measure on."""

    OWN_DATA: ClassVar = ('text', 'label', 'kind', 'held_out', 'labels')

    held_out: Share = option('share of a file without a development set that is held out', 0.1)
