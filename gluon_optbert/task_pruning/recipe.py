"""What pruning a fine-tuned network is asked for: its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from ..architecture.cost import OBJECTIVES
from ..pruning.methods import METHODS
from ..pruning.recipe import PruningRecipe
from ..pruning.watch import Settling
from ..runs.recipe import Seed, Share, ShareOrZero, option
from ..training.objective import Phase

SENTENCES = 'sentences'
BATCHES = 64  # that units are ranked on, where no gates are trained


class TaskPruneRecipe(PruningRecipe):
    """Pruning a network that was fine-tuned."""

    GROUPS = {
        **PruningRecipe.GROUPS,
        'what to prune': (*PruningRecipe.GROUPS['what to prune'], 'trim', 'trim_count'),
        'recovery': ('steps', *PruningRecipe.GROUPS['recovery']),
        'data': ('task', 'data', 'max_length', 'limit', *PruningRecipe.GROUPS['data']),
        'machine': ('timing', *PruningRecipe.GROUPS['machine']),
    }

    task: str | None = option(
        'task of the model, by name or as a JSON file that describes it; SQuAD-1.1, SQuAD-2.0; or sentences, '
        'for a sentence encoder without labels. By default what the model was fine-tuned for',
        None,
    )
    data: Path | None = option(
        'directory of the data in the official layout; by default GluonNLP downloads the data. For sentences '
        'a text file, or a directory of such, with a sentence in each line',
        None,
    )
    steps: NonNegativeInt | None = option(
        'steps of training after every cut; 0 for none. By default one pass over the training set', None
    )
    target: Share = option(
        "one number: share of the model's cost that is left after the last round. No effect together with "
        '--targets',
        0.5,
    )
    rounds: PositiveInt = option('number of rounds; each ranks units, cuts and trains', 1)
    objective: str = option('how the cost of a network is measured', 'flops', choices=OBJECTIVES)
    alpha_steps: PositiveInt | Literal['auto'] | None = option(
        'steps of gate training in a round; auto trains until the selection has settled, see --alpha-window. '
        f'By default auto for trained gates, and {BATCHES} batches for methods that measure gradients',
        None,
    )
    alpha_limit: PositiveInt = option(
        'with --alpha-steps auto: the most steps of gate training in a round', 400
    )
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
    teacher: str | None = option(
        'network that gates and weights learn from, in addition to the labels: parent (the network before '
        'pruning), a model directory that was fine-tuned on the same task, or none',
        'parent',
    )
    teacher_weights: dict[str, NonNegativeFloat] = option(
        'weights of the parts of the loss, with a teacher, such as labels=0,states=2; those not named keep '
        "their defaults. labels: the task's; scores: the divergence from the teacher's scores; states: the "
        "squared difference from the teacher's hidden states. For sentences states, and embeddings: the "
        'squared difference between the similarities of sentences, whose embeddings are the means of their '
        "tokens; cosines: the cosine distance between a sentence's embeddings in both networks",
        {'labels': 1.0, 'scores': 1.0, 'states': 1.0, 'embeddings': 1.0, 'cosines': 0.0},
    )
    keep_best: bool = option(
        'of the training after a cut, keep the step with the best score on the development set, and the '
        'network before it if no step is better, and leave a reconstruction out that makes that score worse; '
        'this makes the score on that set optimistic',
        False,
    )
    trim: tuple[Path, ...] = option(
        'before the first round, cut the vocabulary down to the tokens that these files and directories of '
        'text need; with --objective parameters the target counts from the whole network',
        (),
    )
    trim_count: PositiveInt = option('uses in that text that a token needs to stay', 1)
    timing: bool = option('whether to time the networks of all rounds at the end', True)
    seed: Seed = option('random seed of data order and dropout', 1)
    batch_size: PositiveInt = option('instances in a batch, over all workers', 32)
    learning_rate: PositiveFloat = option('peak learning rate', 5e-5)
    warmup: ShareOrZero = option('share of the steps in which the learning rate rises to its peak', 0.1)
    max_length: PositiveInt | None = option(
        'largest number of tokens of an instance or a window; by default that of the fine-tuning', None
    )
    limit: PositiveInt | None = option(
        'number of training instances to use, from the start of the file; by default all', None
    )
    evaluate_every: NonNegativeInt = option(
        'steps between evaluations on held-out data; 0 for only one, at the end', 0
    )
    evaluation_limit: PositiveInt | None = option(
        'number of instances of every held-out set to use; by default all', None
    )

    def problems(self) -> list[str]:
        """What is contradictory about fields whose values are right in themselves."""
        problems = super().problems()
        if self.gate_teacher and self.taught is None:
            problems.append('gate_teacher needs a teacher')
        if self.task == SENTENCES and self.data is None:
            problems.append('the task sentences needs --data')
        if self.task == SENTENCES and self.taught is None:
            problems.append('the task sentences has no labels and needs a teacher')
        return problems + self._without_effect()

    @property
    def read_weights(self) -> tuple[str, ...]:
        return (
            ('states', 'embeddings', 'cosines') if self.task == SENTENCES else ('labels', 'scores', 'states')
        )

    def _without_effect(self) -> list[str]:
        """Settings that nothing would read for this task."""
        defaults = type(self).model_fields['teacher_weights'].default
        stated = [name for name, weight in self.teacher_weights.items() if weight != defaults[name]]
        unread = [f'teacher_weights {name}' for name in stated if name not in self.read_weights]
        if self.task != SENTENCES:
            return [f'{name} is about the task sentences' for name in unread]
        unread += ['gate_teacher'] if self.gate_teacher else []
        return [f'{name} is about labels and scores, which the task sentences has not' for name in unread]

    @property
    def taught(self) -> str | None:
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

    def settling(self) -> Settling | None:
        """When gate training may stop early; None if its steps are fixed."""
        if not self.trains_gates or self.alpha_steps not in (None, 'auto'):
            return None
        return Settling.of(self.alpha_window, self.alpha_overlap, self.alpha_learning_rate)

    def gate_steps(self) -> int:
        """Steps of gate training in a round, or the most of them; or the batches that units are ranked on."""
        if self.alpha_steps not in (None, 'auto'):
            return int(self.alpha_steps)
        return self.alpha_limit if METHODS[self.method].scores is None else BATCHES
