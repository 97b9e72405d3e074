"""What pruning a fine-tuned network is asked for: its recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, List, Literal, Optional, Tuple, Union

from ..architecture.cost import OBJECTIVES
from ..pruning.methods import METHODS
from ..pruning.recipe import PruningRecipe
from ..pruning.watch import Settling
from ..runs.recipe import option, seed_problems
from ..training.objective import Phase

SENTENCES = 'sentences'
BATCHES = 64  # that units are ranked on, where no gates are trained


@dataclasses.dataclass(frozen=True)
class TaskPruneRecipe(PruningRecipe):
    """Pruning a network that was fine-tuned."""

    task: Optional[str] = option(
        'task of the model, by name or as a JSON file that describes it; SQuAD-1.1, SQuAD-2.0; or sentences, '
        'for a sentence encoder without labels. By default what the model was fine-tuned for',
        None,
    )
    data: Optional[Path] = option(
        'directory of the data in the official layout; by default GluonNLP downloads the data. For sentences '
        'a text file, or a directory of such, with a sentence in each line',
        None,
    )
    steps: Optional[int] = option(
        'steps of training after every cut; 0 for none. By default one pass over the training set', None
    )
    target: float = option(
        "one number: share of the model's cost that is left after the last round. No effect together with "
        '--targets',
        0.5,
    )
    rounds: int = option('number of rounds; each ranks units, cuts and trains', 1)
    objective: str = option('how the cost of a network is measured', 'flops', choices=OBJECTIVES)
    alpha_steps: Optional[Union[int, Literal['auto']]] = option(
        'steps of gate training in a round; auto trains until the selection has settled, see --alpha-window. '
        f'By default auto for trained gates, and {BATCHES} batches for methods that measure gradients',
        None,
    )
    alpha_limit: int = option('with --alpha-steps auto: the most steps of gate training in a round', 400)
    split_half: bool = option(
        'train the gates of a round twice more, on either half of its batches, to report how far both rank '
        'the units alike; this doubles the time of gate training',
        False,
    )
    relative_gates: str = option(
        'widths, as letters, whose gates are divided by the upper decile of their width before they are '
        'ranked, or none. A common factor of such gates changes the network little, so the penalty shrinks '
        'them together. No effect with --penalty l0',
        'ha',
    )
    teacher: Optional[str] = option(
        'network that gates and weights learn from, in addition to the labels: parent (the network before '
        'pruning), a model directory that was fine-tuned on the same task, or none',
        'parent',
    )
    label_weight: float = option("weight of the loss of the task's labels, with a teacher", 1.0)
    embedding_weight: float = option(
        'for sentences: weight of the squared difference between the similarities of sentences, whose '
        'embeddings are the means of their tokens',
        1.0,
    )
    cosine_weight: float = option(
        "for sentences: weight of the cosine distance between a sentence's embeddings in both networks", 0.0
    )
    keep_best: bool = option(
        'of the training after a cut, keep the step with the best score on the development set, and the '
        'network before it if no step is better, and leave a reconstruction out that makes that score worse; '
        'this makes the score on that set optimistic',
        False,
    )
    trim: Tuple[Path, ...] = option(
        'before the first round, cut the vocabulary down to the tokens that these files and directories of '
        'text need; with --objective parameters the target counts from the whole network',
        (),
    )
    trim_count: int = option('uses in that text that a token needs to stay', 1)
    timing: bool = option('whether to time the networks of all rounds at the end', True)
    seed: int = option('random seed of data order and dropout', 1)
    batch_size: int = option('instances in a batch, over all workers', 32)
    learning_rate: float = option('peak learning rate', 5e-5)
    warmup: float = option('share of the steps in which the learning rate rises to its peak', 0.1)
    max_length: Optional[int] = option(
        'largest number of tokens of an instance or a window; by default that of the fine-tuning', None
    )
    limit: Optional[int] = option(
        'number of training instances to use, from the start of the file; by default all', None
    )
    evaluate_every: int = option('steps between evaluations on held-out data; 0 for only one, at the end', 0)
    evaluation_limit: Optional[int] = option(
        'number of instances of every held-out set to use; by default all', None
    )

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = super().problems()
        for name in ('limit', 'evaluation_limit', 'max_length'):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f'{name} must be at least 1, found {value}')
        for name in ('steps', 'evaluate_every'):
            value = getattr(self, name)
            if value is not None and value < 0:
                problems.append(f'{name} must not be negative, found {value}')
        problems += seed_problems(self.seed)
        if self.trim_count < 1:
            problems.append(f'trim_count must be at least 1, found {self.trim_count}')
        if self.gate_teacher and self.taught is None:
            problems.append('gate_teacher needs a teacher')
        if self.task == SENTENCES and self.data is None:
            problems.append('the task sentences needs --data')
        if self.task == SENTENCES and self.taught is None:
            problems.append('the task sentences has no labels and needs a teacher')
        return problems + self._without_effect()

    @property
    def read_weights(self) -> Tuple[str, ...]:
        """Those of the weights that training after a cut reads."""
        of_labels = ('label_weight', 'teacher_score_weight', 'teacher_state_weight')
        of_sentences = ('teacher_state_weight', 'embedding_weight', 'cosine_weight')
        return of_sentences if self.task == SENTENCES else of_labels

    def _without_effect(self) -> List[str]:
        """Settings that nothing would read for this task."""
        if self.task != SENTENCES:
            idle, what = ('embedding_weight', 'cosine_weight'), 'is about the task sentences'
        else:
            idle = ('label_weight', 'teacher_score_weight', 'gate_teacher')
            what = 'is about labels and scores, which the task sentences has not'
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [f'{name} {what}' for name in idle if getattr(self, name) != defaults[name]]

    @property
    def taught(self) -> Optional[str]:
        return None if self.teacher == 'none' else self.teacher

    @property
    def recovers(self) -> bool:
        return self.steps != 0

    @property
    def holds_out_of_training_data(self) -> bool:
        return self.task == SENTENCES

    @property
    def timed(self) -> bool:
        return self.timing

    def phase(self, name: str, steps: int, **more: Any) -> Phase:
        """A phase of the run with the recipe's settings."""
        settings = {'seed': self.seed, 'evaluate_every': self.evaluate_every, 'evaluation_limit': 0}
        return super().phase(name, steps, **{**settings, **more})

    def settling(self) -> Optional[Settling]:
        """When gate training may stop early; None if its steps are fixed."""
        if not self.trains_gates or self.alpha_steps not in (None, 'auto'):
            return None
        return Settling.of(self.alpha_window, self.alpha_overlap, self.alpha_learning_rate)

    def gate_steps(self) -> int:
        """Steps of gate training in a round, or the most of them; or the batches that units are ranked on."""
        if self.alpha_steps not in (None, 'auto'):
            return int(self.alpha_steps)
        return self.alpha_limit if METHODS[self.method].scores is None else BATCHES
