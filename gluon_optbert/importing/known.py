"""Public BERTs whose number of pre-training steps was published."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Dict, Optional, Tuple

from ..architecture.architecture import Architecture
from ..architecture.named import uniform


@dataclasses.dataclass(frozen=True)
class KnownBERT:
    """A public BERT.

    Parameters
    ----------
    architecture : Architecture
        Its widths, with its vocabulary size.
    steps : int
        Of pre-training, in both phases.
    source : str
        Where that is published.
    """

    architecture: Architecture
    steps: int
    source: str


_DEVLIN = 'Devlin et al., 2018, A.2'
_BASE, _LARGE = dict(layers=12, h=768, a=12), dict(layers=24, h=1024, a=16)
_WIDTHS: Dict[str, Tuple[Dict[str, int], int]] = {
    'base-uncased': (_BASE, 30522),
    'base-cased': (_BASE, 28996),
    'large-uncased': (_LARGE, 30522),
    'large-cased': (_LARGE, 28996),
}
# The names under which the checkpoints of Devlin et al. are distributed: by Hugging Face, by Google, and in
# GluonNLP's model zoo, which converted Google's. Other BERTs of the same widths, such as multilingual ones or
# those with whole-word masking, are not listed: their steps are not published there.
_NAMES: Dict[str, str] = {
    'bert-base-uncased': 'base-uncased',
    'bert-base-cased': 'base-cased',
    'bert-large-uncased': 'large-uncased',
    'bert-large-cased': 'large-cased',
    'uncased_L-12_H-768_A-12': 'base-uncased',
    'cased_L-12_H-768_A-12': 'base-cased',
    'uncased_L-24_H-1024_A-16': 'large-uncased',
    'cased_L-24_H-1024_A-16': 'large-cased',
    'bert_12_768_12_book_corpus_wiki_en_uncased': 'base-uncased',
    'bert_12_768_12_book_corpus_wiki_en_cased': 'base-cased',
    'bert_24_1024_16_book_corpus_wiki_en_uncased': 'large-uncased',
    'bert_24_1024_16_book_corpus_wiki_en_cased': 'large-cased',
}
KNOWN: Dict[str, KnownBERT] = {
    name: KnownBERT(uniform(vocab_size=_WIDTHS[kind][1], **_WIDTHS[kind][0]), 1_000_000, _DEVLIN)
    for name, kind in _NAMES.items()
}


def name_of(source: str) -> str:
    """The name of a checkpoint by its path, or by its name in GluonNLP's model zoo.

    It is the name of the directory, or of the file without the short hash that GluonNLP puts behind it. In
    the cache of Hugging Face it is the name of the repository.
    """
    path = Path(source).absolute()
    if path.parent.name == 'snapshots':  # models--OWNER--NAME/snapshots/COMMIT
        return path.parent.parent.name.split('--')[-1]
    if path.suffix == '.params':
        return re.sub(r'-[0-9a-f]{8}$', '', path.stem)
    if path.suffix == '.ckpt':
        return path.parent.name
    return path.name


def known(source: str, architecture: Architecture) -> Optional[Tuple[str, KnownBERT]]:
    """The public BERT that a checkpoint is by its name and all of its widths, with that name; None if it is
    none that is known.

    Parameters
    ----------
    source : str
        As in `sources.read_source`.
    architecture : Architecture
        Of the checkpoint.
    """
    name = name_of(source)
    bert = KNOWN.get(name)
    return (name, bert) if bert is not None and bert.architecture == architecture else None
