"""A data set made ready for one network, and where its files are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import numpy as np
from gluonnlp.base import get_home_dir

from ..architecture.heads import Head
from ..network.saved_model import SavedModel
from ..runs.fetching import fetching, reason
from ..tasks.features import Features
from ..training.distributed import Workers


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A data set made ready for one network.

    Parameters
    ----------
    name : str
    head : Head
    train : Features
    heldout : mapping of str to Features
        By name; the first decides which epoch is best.
    metric : str
        The one that decides, of those that `score` gives.
    score : callable
        The name of a held-out set and its scores → measurements in percent, by name.
    test : mapping of str to Features
        To predict only.
    files : callable
        The scores of every held-out set and test set → what to leave beside the model, by file name.
    samples : mapping of str to int
        How many are used of each, in the units of the data set.
    majority : mapping of str to float
        The scores of always giving the commonest answer of a held-out set, in percent, by set and score:
        ``dev/accuracy``.
    """

    name: str
    head: Head
    train: Features
    heldout: Mapping[str, Features]
    metric: str
    score: Callable[[str, np.ndarray], Dict[str, float]]
    test: Mapping[str, Features]
    files: Callable[[Mapping[str, np.ndarray]], Mapping[str, bytes]]
    samples: Mapping[str, int]
    majority: Mapping[str, float]

    def right(self, name: str, scores: np.ndarray) -> Optional[np.ndarray]:
        """Which instances of a held-out set its scores answer right, shape (instances,); None where it is no
        accuracy that decides.
        """
        if self.metric != 'accuracy':
            return None
        return scores.argmax(axis=1) == self.heldout[name].labels


def data_directory(
    chosen: Optional[Path], home: str, files: Sequence[str], load: Callable[[str, str], Any], workers: Workers
) -> Path:
    """Where the files of a data set are: in the user's directory, or in GluonNLP's own.

    GluonNLP fetches the files that its directory lacks.

    Parameters
    ----------
    chosen : Path, optional
        The user's directory.
    home : str
        What GluonNLP calls its own directory.
    files : sequence of str
        What is to be fetched into it.
    load : callable
        A file's name without its ending, and its directory: has GluonNLP fetch it.
    workers : Workers

    Raises
    ------
    FileNotFoundError
        If the directory is not there, or nothing can be fetched.
    """
    if chosen is not None:
        if not Path(chosen).is_dir():
            raise FileNotFoundError(f'{chosen}: no such directory')
        return Path(chosen)
    directory = Path(get_home_dir(), 'datasets', home).expanduser()
    for path in (directory / file for file in files if workers.local_rank == 0):
        try:
            if not path.is_file():
                with fetching(path):
                    load(path.stem, str(path.parent))
        except Exception as error:  # whatever sockets, zip files and checksums raise
            raise FileNotFoundError(
                f'{path}: GluonNLP could not fetch it ({reason(error)}); put the files '
                'there yourself, or give their directory with --data'
            ) from error
    workers.barrier('fetched')
    return directory


def check_fits(max_length: int, saved: SavedModel, *, pairs: bool, name: str = 'the network') -> None:
    """Raise ValueError if a network has fewer positions than an instance may have tokens, or reads pairs of
    texts and has no token type for the second one; the message has its name.
    """
    if pairs and saved.architecture.token_types < 2:
        raise ValueError(f'instances are pairs of texts, and {name} has one token type')
    if max_length > saved.architecture.max_length:
        raise ValueError(
            f'max_length is {max_length}, and {name} has {saved.architecture.max_length} positions'
        )
