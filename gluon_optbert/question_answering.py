"""Fine-tuning on SQuAD."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
from gluonnlp.base import get_home_dir

from .checkpoint import SavedModel
from .distributed import Workers
from .finetuning import Exercise, FineTuneRecipe, finetune
from .heads import Head
from .metrics import squad_v1, squad_v2
from .recipe import option
from .squad import Question, WindowSpec, answer_files, best_answers, make_windows, read_questions
from .vocabulary import make_aligner


@dataclasses.dataclass(frozen=True)
class SquadRecipe(FineTuneRecipe):
    """Fine-tuning on SQuAD."""
    version: str = option('of the data set; in 2.0 a question may have no answer', '1.1', choices=('1.1', '2.0'))
    learning_rate: float = option('its peak', 5e-5)
    max_length: int = option('tokens of a window with its question', 384)
    stride: int = option('tokens from the beginning of a window to that of the next', 128)
    max_question: int = option('tokens that a question is cut to', 64)
    max_answer: int = option('tokens of an answer at most', 30)
    n_best: int = option('answers to keep of each question', 20)
    null_threshold: float = option('how far the score of no answer must be above that of the best one to win, in 2.0', 0.0)

    def problems(self) -> List[str]:
        """What is out of range."""
        found = super().problems()
        for name in ('stride', 'max_question', 'max_answer', 'n_best'):
            if getattr(self, name) < 1:
                found.append(f'{name} must be at least 1, found {getattr(self, name)}')
        if self.max_length < self.max_question + 4:
            found.append(f'max_length must be at least {self.max_question + 4}, four above max_question, found {self.max_length}')
        return found


def read_parts(data: Optional[Path], version: str, workers: Workers) -> Dict[str, List[Question]]:
    """The questions of both parts, from a directory or as GluonNLP fetches them."""
    directory = data
    if directory is None:
        directory = Path(get_home_dir(), 'datasets', 'squad').expanduser()
        if workers.local_rank == 0:
            _fetch(version, directory)
        workers.barrier('fetched')
    questions = {part: read_questions(Path(directory) / f'{part}-v{version}.json') for part in ('train', 'dev')}
    if version == '1.1':
        for part, asked in questions.items():
            unanswered = [question.id for question in asked if not question.answers]
            if unanswered:
                raise ValueError(f'{directory}: {len(unanswered)} questions of {part}-v1.1.json have no answer, the first '
                                 f'is {unanswered[0]}; --version 2.0 takes such')
    return questions


def _fetch(version: str, directory: Path) -> None:
    from gluonnlp.data import SQuAD
    for part in ('train', 'dev'):
        if (directory / f'{part}-v{version}.json').is_file():
            continue
        try:
            SQuAD(part, version, root=str(directory))
        except Exception as error:  # whatever sockets, zip files and checksums raise
            raise FileNotFoundError(f'{directory}: GluonNLP could not fetch SQuAD {version} ({type(error).__name__}: {error}); '
                                    f'put train-v{version}.json and dev-v{version}.json there yourself, or give their '
                                    'directory with --data') from error


def prepare_squad(recipe: SquadRecipe, saved: SavedModel) -> Exercise:
    """SQuAD, made ready for a network.

    Raises
    ------
    ValueError, FileNotFoundError
        If files are missing or not as they should be, or the network has too few positions.
    """
    if recipe.max_length > saved.architecture.max_length:
        raise ValueError(f'max_length is {recipe.max_length}, and the network has {saved.architecture.max_length} positions')
    questions = read_parts(recipe.data, recipe.version, Workers())
    questions = {'train': questions['train'][:recipe.limit], 'dev': questions['dev'][:recipe.evaluation_limit]}
    vocabulary, align = saved.vocabulary, make_aligner(saved.vocabulary, cased=recipe.cased)
    windows = {part: make_windows(asked, align, WindowSpec(recipe.max_length, recipe.stride, recipe.max_question),
                                  cls_id=vocabulary[vocabulary.cls_token], sep_id=vocabulary[vocabulary.sep_token],
                                  labelled=part == 'train') for part, asked in questions.items()}
    texts = {question.id: [text for text, _ in question.answers] for question in questions['dev']}

    def answers(scores: np.ndarray) -> Dict[str, Mapping[str, Any]]:
        best, nulls = best_answers(questions['dev'], windows['dev'], scores, n_best=recipe.n_best, max_answer=recipe.max_answer)
        return answer_files(questions['dev'], best, nulls if recipe.version == '2.0' else None, threshold=recipe.null_threshold)

    def files(scores: Mapping[str, np.ndarray]) -> Dict[str, bytes]:
        return {name: (json.dumps(content) + '\n').encode() for name, content in answers(scores['dev']).items()}
    return Exercise(name=f'SQuAD v{recipe.version}', head=Head('question_answering', (), f'SQuAD v{recipe.version}'),
                    train=windows['train'].features, heldout={'dev': windows['dev'].features}, metric='f1',
                    score=lambda _, scores: measure(texts, answers(scores)), test={}, files=files,
                    samples={**{part: len(asked) for part, asked in questions.items()},
                             **{f'{part}_windows': len(made.features) for part, made in windows.items()}})


def measure(texts: Mapping[str, Sequence[str]], found: Mapping[str, Mapping[str, Any]]) -> Dict[str, float]:
    """The official scores of what `answer_files` gave.

    In version 2.0 they are those of ``predictions.json``; the best thresholds are those for ``answers.json``, in which no answer
    is withheld yet, with ``null_odds.json``.
    """
    if 'null_odds.json' not in found:
        return squad_v1(texts, found['predictions.json'])
    given = squad_v2(texts, found['predictions.json'])
    best = squad_v2(texts, found['answers.json'], found['null_odds.json'], threshold=float('inf'))
    return {**{name: value for name, value in given.items() if not name.endswith('total')},
            **{name: value for name, value in best.items() if name.startswith('best')}}


def finetune_squad(recipe: SquadRecipe) -> Dict[str, Any]:
    """Fine-tune on SQuAD; `finetune` says what comes of it and what it raises."""
    return finetune(recipe, lambda saved: prepare_squad(recipe, saved))
