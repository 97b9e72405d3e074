"""Recipe of a pruning run, and the networks that it can prune."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from ..architecture.architecture import Architecture
from ..architecture.cost import OBJECTIVES, CostModel, cost_model, shares_of_rounds
from ..architecture.parameters import H_GATES, LETTERS
from ..cutting.baselines import DROPS, layers_to_keep
from ..finetuning.recipe import FineTuneRecipe
from ..network.saved_model import SavedModel
from ..network.settings import check_precision
from ..runs.recipe import Seed, Share, option, with_options_of
from ..tasks.own_data import OwnData
from ..text.shards import Shards
from ..training.distributed import Workers
from ..training.objective import Phase
from ..training.optimization import OF_WEIGHTS
from ..training.recipe import TrainingRecipe, WeightRecipe, lacking
from ..training.teaching import TeacherRecipe
from .gate_training import GateSettings, Settling
from .methods import METHODS
from .penalty import PENALTIES

SENTENCES = 'sentences'
BATCHES = 64  # that units are ranked on, where no gates are trained
FIT_TOKENS = 40
BATCH_TOKENS = 3072  # of sentences; all widths of batches divide it

_TIMED = 'the steps follow from the minutes, or are stated'

_OF_GATES = ('penalty', 'gamma', 'alpha_learning_rate', 'alpha_optimizer', 'relative_gates')
_OF_SETTLING = ('alpha_limit', 'alpha_window', 'alpha_overlap')
_OF_RECOVERY = ('recover_after', 'optimizer', 'learning_rate', 'warmup', 'weight_decay', 'beta2', 'clip_norm')


class PruningRecipe(TeacherRecipe, WeightRecipe):
    """Fields of every pruning run, whatever the network is pruned for.

    Training after a cut begins with an optimizer that has no moments yet. BERTAdam does not correct their
    bias, so its first steps are up to three times too long; AdamW's are not.
    """

    GROUPS = {
        'what to prune': (
            *('model', 'output', 'target', 'rounds', 'targets', 'prune', 'method', 'ranking', 'drop'),
            *('multiple_of', 'drop_blocks', 'objective', 'length', 'latency_model'),
        ),
        'gates': (
            *('penalty', 'gamma', 'unweighted', 'alpha_steps', 'alpha_limit', 'alpha_window'),
            *('alpha_overlap', 'alpha_learning_rate', 'alpha_optimizer', 'h_gate', 'relative_gates'),
            'split_half',
        ),
        'repairs': ('rotate_heads', 'reconstruct', 'fit_tokens'),
        'recovery': (
            'recover_after',
            'minutes',
            'word_embeddings',
            'keep_best',
            *WeightRecipe.GROUPS['weights'],
        ),
        'teacher': (*TeacherRecipe.OF_TEACHER, 'gate_teacher'),
        'data': ('batch_size', 'seed', 'evaluate_every', 'evaluation_limit', 'keep_embeddings'),
        'machine': WeightRecipe.GROUPS['machine'],
    }
    SETTLE: ClassVar[tuple[Any, ...]] = ('auto',)  # alpha_steps with which gate training may stop early

    optimizer: str = option('optimizer of the weights', 'adamw', choices=OF_WEIGHTS)
    model: Path = option('model directory to prune')
    target: Share = option(
        "one number: share of the model's cost that is left after the last round; not with --targets", 0.6
    )
    rounds: PositiveInt = option('number of rounds (T in the paper); each trains gates, cuts and recovers', 4)
    targets: tuple[Share, ...] = option(
        "list of numbers: share of the model's cost that is left after each round, such as 0.9,0.8,0.7. "
        'Replaces --target and --rounds',
        (),
    )
    prune: str = option(
        'widths that may lose units, as letters: h hidden, a heads, k keys, v values, f filters', LETTERS
    )
    method: str = option(
        'how the units that stay are chosen. alpha: by trained gates. fisher: by the gradients of the loss '
        'towards the gates, without training. The others are baselines. random: by chance; magnitude: by the '
        'size of the weights; uniform: one factor for all widths, in a width as magnitude; uniform-alpha: '
        'one factor for all widths, in a width as alpha; layers: whole layers; blocks: whole intermediate '
        'blocks, spread evenly over those that the round begins with (for even distances use --rounds 1); '
        'heads: by the head importance of Michel et al. (2019)',
        'alpha',
        choices=METHODS,
    )
    ranking: Path | None = option(
        'run that has pruned the same network and ranked its units in the same way: the first round takes '
        'the ranking of that first round instead of making one',
        None,
    )
    drop: str = option(
        'which layers to drop, for --method layers; alternate spreads those that stay evenly over the layers '
        'that the round begins with (for even distances use --rounds 1)',
        'last',
        choices=DROPS,
    )
    multiple_of: PositiveInt = option(
        'cut the widths h, k, v and f down to multiples of this; the number of heads a is never rounded', 1
    )
    drop_blocks: bool = option('allow f = 0, which removes the whole intermediate block of a layer', False)
    objective: str = option('how the cost of a network is measured', 'parameters', choices=OBJECTIVES)
    length: PositiveInt = option('tokens in a sequence, for --objective flops', 128)
    latency_model: Path | None = option('file written by tools/fit_latency.py, for --objective latency', None)
    penalty: str = option('penalty that pushes the gates alpha towards zero', 'l1', choices=PENALTIES)
    gamma: NonNegativeFloat = option('coefficient of the penalty', 1e-2)
    unweighted: bool = option(
        'give every unit the same weight in the penalty (beta = 1), whatever the unit costs', False
    )
    alpha_steps: PositiveInt | Literal['auto'] | None = option(
        'steps of gate training in a round; auto trains until the selection has settled, see --alpha-window. '
        'By default 1/1000 of the pre-training steps',
        None,
    )
    alpha_limit: PositiveInt = option(
        'with --alpha-steps auto: the most steps of gate training in a round', 1000
    )
    alpha_window: PositiveInt = option(
        'with --alpha-steps auto: steps over which the selection must have stayed the same', 50
    )
    alpha_overlap: Annotated[float, Field(gt=0, le=1)] = option(
        'with --alpha-steps auto: the smallest share of the units that stay that two selections in the '
        'window have in common',
        0.99,
    )
    alpha_learning_rate: PositiveFloat = option('learning rate of the gates', 1e-2)
    split_half: bool = option(
        'train the gates of a round twice more, on either half of its batches, to report how far both rank '
        'the units alike; this doubles the time of gate training',
        False,
    )
    h_gate: str = option(
        'where the gates of h stand while they are trained. stream: in the LayerNorms of the residual '
        'stream; table5: on the columns of K, Q, V and D and the rows of P and G, as in Table 5 of the paper',
        'stream',
        choices=H_GATES,
    )
    relative_gates: str = option(
        'widths, as letters, whose gates are divided by the upper decile of their width before they are '
        'ranked, or none. A common factor of such gates changes the network little, so the penalty shrinks '
        'them together. Not with --penalty l0',
        'none',
    )
    alpha_optimizer: Literal['adam', 'sgd'] = option('optimizer of the gates', 'adam')
    rotate_heads: bool = option(
        'before the gate training of a round, change the basis of every head so that its units are ordered '
        'by strength; the network computes the same as before',
        False,
    )
    reconstruct: bool = option(
        'after every cut, fit each layer to the output of the uncut layer, by least squares on training text',
        False,
    )
    fit_tokens: PositiveInt = option(
        'tokens that reconstruct reads, for each input of the widest product that is fitted; with few of '
        'them, which is faster, the layers fit the noise of the text. With reconstruct',
        FIT_TOKENS,
    )
    teacher: str | None = option(
        'network that recovery learns from, in addition to the labels: parent (the network before pruning) '
        'or a model directory',
        None,
    )
    recover_after: Literal['every', 'last'] = option(
        'the rounds that recovery follows: every one, or the last alone, with the steps or minutes of one. '
        'The rounds before it cut, and fit with --reconstruct',
        'every',
    )
    minutes: PositiveFloat | None = option(
        'how long recovery of a round may take, in place of a number of steps: some steps are timed, and as '
        'many planned as fit into the rest',
        None,
    )
    word_embeddings: Literal['train', 'freeze'] | None = option(
        'whether recovery trains the word embeddings. By default it does not where it learns no labels and h '
        'is not pruned',
        None,
    )
    gate_teacher: bool = option(
        'train the gates against the hidden states of the network before pruning alone; in pre-training this '
        'needs no heads',
        False,
    )
    keep_embeddings: bool = option(
        'report how far the embeddings of sentences stay those of the network before pruning', False
    )
    keep_best: bool = option(
        'of recovery, keep the step with the smallest held-out MLM loss, and the network before recovery if '
        'no step is better; leave a reconstruction out that makes that loss larger. See --evaluate-every',
        True,
    )

    def problems(self) -> list[str]:
        problems, method = super().problems(), METHODS[self.method]
        if any(later >= earlier for earlier, later in zip(self.targets, self.targets[1:])):
            problems.append(f'targets must decrease, found {", ".join(map(str, self.targets))}')
        if not self.prune or set(self.prune) - set(LETTERS) or len(set(self.prune)) < len(self.prune):
            problems.append(f'prune must be made of different letters of {LETTERS}, found {self.prune!r}')
        if self.relative_gates != 'none' and not set(self.relative_gates) <= set(LETTERS):
            problems.append(
                f'relative_gates must be letters of {LETTERS}, or none, found {self.relative_gates!r}'
            )
        if self.multiple_of > 1 and not method.ranks_units:
            problems.append(f'multiple_of does not go with the method {self.method}')
        if self.multiple_of > 1 and set(self.prune) == {'a'}:
            problems.append('multiple_of rounds h, k, v and f only; leave it out with prune a')
        if self.drop_blocks and ('f' not in self.prune or not method.ranks_units):
            problems.append(
                f'drop_blocks goes with a method that ranks filters, found {self.method} on {self.prune!r}'
            )
        if method.only and self.prune != method.only:
            problems.append(f'the method {self.method} goes with --prune {method.only}, found {self.prune!r}')
        if self.method == 'layers' and set(self.prune) != set(LETTERS):
            problems.append(
                f'the method layers takes whole layers; leave prune at {LETTERS}, found {self.prune!r}'
            )
        if (self.objective == 'latency') != (self.latency_model is not None):
            problems.append('the objective latency and latency_model go together')
        of_gates = {'alpha_steps auto': self.alpha_steps == 'auto', 'gate_teacher': self.gate_teacher}
        of_gates |= {'unweighted': self.unweighted, 'split_half': self.split_half}
        problems += [
            f'{name} is about trained gates, found the method {self.method}'
            for name, stated in of_gates.items()
            if stated and not self.trains_gates
        ]
        settling = self.settling()
        if settling is not None and settling.first > self.alpha_limit:
            problems.append(
                f'alpha_steps auto can stop after step {settling.first} at the earliest, by '
                f'alpha_learning_rate {self.alpha_learning_rate:g} and alpha_window {self.alpha_window}, and '
                f'alpha_limit is {self.alpha_limit}; raise alpha_limit or alpha_learning_rate, or give '
                'alpha_steps a number'
            )
        return problems

    def unread(self) -> dict[str, str]:
        unread = {}
        if not self.trains_gates:
            unread |= dict.fromkeys((*_OF_GATES, *_OF_SETTLING), f'the method {self.method} trains no gates')
        elif self.settling() is None:
            unread |= dict.fromkeys(_OF_SETTLING, 'it goes with alpha_steps auto')
        if self.penalty == 'l0':
            unread.setdefault('relative_gates', 'the gates of the penalty l0 are probabilities')
        if not self.recovers:
            unread |= dict.fromkeys(_OF_RECOVERY, 'nothing is trained after a cut')
        if not self.reconstruct:
            unread['fit_tokens'] = 'it goes with reconstruct'
        if self.method != 'layers':
            unread['drop'] = 'it goes with the method layers'
        if self.objective != 'flops':
            unread['length'] = f'the objective is {self.objective}'
        if self.targets:
            unread |= dict.fromkeys(('target', 'rounds'), 'targets has the share of every round')
        return unread

    def decided(self, start: SavedModel) -> PruningRecipe:
        """The recipe with what the network that is pruned decides, where it is left open."""
        return self

    @property
    def freezes_words(self) -> bool:
        """Whether recovery leaves the word embeddings as the cut left them."""
        if self.word_embeddings is None:
            return self.without_labels and 'h' not in self.prune
        return self.word_embeddings == 'freeze'

    def nearest_by_number(
        self, before: Architecture, after: Architecture, *, trained: bool, fitted: bool
    ) -> str | None:
        """The network whose embeddings those after pruning come near, number by number, as `taught` names it:
        what recovery learnt from if it `trained` the network, else what its layers were `fitted` to; None if
        there is none.
        """
        if not self.without_labels or before.h != after.h:
            return None
        if trained:
            return self.taught if self.teaching().same_width else None
        return 'parent' if fitted else None

    @property
    def recovers(self) -> bool:
        """Whether the network is trained after a cut."""
        return True

    @property
    def timed(self) -> bool:
        """Whether the networks of all rounds are timed at the end."""
        return False

    @property
    def trains_gates(self) -> bool:
        """Whether the method ranks units by trained gates."""
        return METHODS[self.method].trains_gates

    @property
    def gates_learn(self) -> bool:
        """Whether gates are trained on what recovery learns from the teacher, too."""
        return self.trains_gates

    @property
    def ranks_by_data(self) -> bool:
        """Whether the method reads batches to rank units."""
        method = METHODS[self.method]
        return method.trains_gates or method.measured

    @property
    def ranked_relatively(self) -> str:
        """The letters of the widths whose gates are ranked relative to their upper decile."""
        gates = self.trains_gates and self.penalty != 'l0' and self.relative_gates != 'none'
        return self.relative_gates if gates else ''

    def shares(self) -> list[float]:
        """The share of the cost that is left after each round."""
        if self.targets:
            return list(self.targets)
        return shares_of_rounds(self.target, self.rounds)

    def cost(self) -> CostModel:
        """Cost that the budget counts."""
        return cost_model(self.objective, length=self.length, latency_model=self.latency_model)

    def gate_settings(self) -> GateSettings:
        """Settings of the training of gates."""
        return GateSettings(
            learning_rate=self.alpha_learning_rate,
            penalty=self.penalty,
            gamma=self.gamma,
            unweighted=self.unweighted,
            prune=self.prune,
            optimizer=self.alpha_optimizer,
            dropout=self.dropout,
            precision=self.precision,
            compression=self.compression,
            h_gate=self.h_gate,
        )

    def settling(self) -> Settling | None:
        """When gate training may stop early; None if its steps are fixed."""
        if not self.trains_gates or self.alpha_steps not in self.SETTLE:
            return None
        return Settling.of(self.alpha_window, self.alpha_overlap, self.alpha_learning_rate)


class PruneRecipe(PruningRecipe, TrainingRecipe):
    """A pruning run for pre-training."""

    ALTERNATIVES = (('minutes', 'recovery_steps', _TIMED),)
    GROUPS = {
        **PruningRecipe.GROUPS,
        'what to prune': (*PruningRecipe.GROUPS['what to prune'], 'trim'),
        'recovery': ('labels', 'recovery_steps', *PruningRecipe.GROUPS['recovery']),
        'data': ('shards', *PruningRecipe.GROUPS['data']),
    }

    labels: Literal['mlm', 'none'] | None = option(
        'what units are ranked by and networks are trained on. mlm: MLM and NSP; none: the states and the '
        'embeddings of a teacher, by default the parent, alone, which needs no heads of pre-training. By '
        'default none where the network has no such heads',
        None,
    )
    recovery_steps: PositiveInt | None = option(
        'steps of recovery in a round; by default 1/20 of the pre-training steps', None
    )
    trim: bool = option(
        'before the first round, cut the vocabulary down to that of the shards; the target counts from the '
        'whole network',
        False,
    )

    @property
    def without_labels(self) -> bool:
        return self.labels == 'none'

    @property
    def gates_learn(self) -> bool:
        return self.trains_gates and self.without_labels and not self.gate_teacher

    @property
    def taught(self) -> str | None:
        return self.teacher or ('parent' if self.without_labels else None)

    @property
    def need_heads(self) -> bool:
        """Whether the run trains with the heads of pre-training, or ranks units by them."""
        if self.without_labels:
            return False
        ranked = self.ranks_by_data and not (self.trains_gates and self.gate_teacher)
        return ranked or self.taught is None or self.teaching().need_heads

    def decided(self, start: SavedModel) -> PruneRecipe:
        """The recipe with the labels that a network has, where it leaves them open and needs some."""
        unlabelled = self.labels is None and self.need_heads and start.progress.untrained
        unlabelled = unlabelled and lacking(start, Shards.open(self.shards))
        return self.replace(labels='none') if unlabelled else self

    def round_steps(self, base: SavedModel) -> tuple[int, int]:
        """Steps of a round's gate training, or the most of them, and of recovery; the paper's shares of
        pre-training unless given.
        """
        trained = base.progress.trained_steps
        unknown = (self.recovery_steps or self.minutes) is None or (
            self.alpha_steps is None and self.ranks_by_data
        )
        if unknown and not trained:
            raise ValueError(
                'the model does not say how many steps it was pre-trained for; give --alpha-steps and '
                '--recovery-steps, or take the recipe imported_prune'
            )
        gates = self.alpha_limit if self.alpha_steps == 'auto' else self.alpha_steps
        return gates or max(1, trained // 1000), self.recovery_steps or max(1, trained // 20)


def _by_default(name: str, default: Any) -> Any:
    """A field of every pruning run with another default."""
    field = PruningRecipe.model_fields[name]
    return option(field.description, default, choices=field.json_schema_extra['choices'])


class TaskPruneRecipe(
    OwnData, with_options_of(FineTuneRecipe, ('batch_size', 'warmup', 'limit')), PruningRecipe
):
    """Pruning a network that was fine-tuned."""

    ALTERNATIVES = (('minutes', 'steps', _TIMED),)
    GROUPS = {
        **PruningRecipe.GROUPS,
        'what to prune': (*PruningRecipe.GROUPS['what to prune'], 'trim', 'trim_count'),
        'recovery': ('steps', *PruningRecipe.GROUPS['recovery']),
        'data': (
            *('task', 'data', *OwnData.OWN_DATA, 'max_length', 'limit', 'batch_tokens'),
            *PruningRecipe.GROUPS['data'],
        ),
        'machine': ('timing', *PruningRecipe.GROUPS['machine']),
    }
    SETTLE = (None, 'auto')

    task: str | None = option(
        'task of the model, by name or as a JSON file that describes it; SQuAD-1.1, SQuAD-2.0; or sentences, '
        'for a sentence encoder without labels. By default what the model was fine-tuned for',
        None,
    )
    data: Path | None = option(
        'directory of the data in the official layout; by default GluonNLP downloads the data. For sentences '
        'a file of texts, or a directory of such: .txt with a sentence or paragraph in each line, and .csv, '
        '.tsv or .jsonl with a text or a pair in each row, perhaps with a score. All texts are learnt from, '
        'but for pairs with scores, which are held out to measure on: those of files called dev '
        '(validation, valid, val) or test; if there is none, all; if there is nothing else, a share of them, '
        'see --held-out',
        None,
    )
    steps: NonNegativeInt | None = option(
        'steps of training after every cut; 0 for none. By default one pass over the training set', None
    )
    target: Share = _by_default('target', 0.5)
    rounds: PositiveInt = option('number of rounds; each ranks units, cuts and trains', 1)
    prune: str = option(
        'widths that may lose units, as letters: h hidden, a heads, k keys, v values, f filters. For '
        'sentences akvf unless stated: a query encoder, whose embeddings keep their width and search an '
        'index that was made with the network before pruning; with h, such an index has to be made anew',
        LETTERS,
    )
    objective: str = _by_default('objective', 'flops')
    alpha_steps: PositiveInt | Literal['auto'] | None = option(
        'steps of gate training in a round; auto trains until the selection has settled, see --alpha-window. '
        f'By default auto for trained gates, and {BATCHES} batches for methods that measure gradients',
        None,
    )
    alpha_limit: PositiveInt = _by_default('alpha_limit', 400)
    relative_gates: str = _by_default('relative_gates', 'ha')
    teacher: str | None = option(
        'network that gates and weights learn from, in addition to the labels: parent (the network before '
        'pruning), a model directory that was fine-tuned on the same task, or none',
        'parent',
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
    batch_tokens: PositiveInt | None = option(
        'for sentences, in place of batch_size: tokens in a batch, over all workers and with padding; a '
        f'batch has texts of similar lengths. By default {BATCH_TOKENS}',
        None,
    )
    learning_rate: PositiveFloat = option('peak learning rate', 5e-5)
    max_length: PositiveInt | None = option(
        'largest number of tokens of an instance or a window; by default that of the fine-tuning, for '
        'sentences that of the checkpoint',
        None,
    )
    evaluate_every: NonNegativeInt = option(
        'steps between evaluations on held-out data; 0 for only one, at the end', 0
    )
    evaluation_limit: PositiveInt | None = option(
        'number of instances of every held-out set to use; by default all', None
    )

    def problems(self) -> list[str]:
        of_sentences = {
            'the task sentences needs --data': self.data is None,
            'the task sentences has no labels and needs a teacher': self.taught is None,
            'batch_size is not read for sentences, batch_tokens is': not self.is_default('batch_size'),
            'gate_teacher is about labels and scores, which the task sentences has not': self.gate_teacher,
            'labels names labels, which the task sentences has not': bool(self.labels),
        }
        of_others = {'batch_tokens is about the task sentences': self.batch_tokens is not None}
        wrong = {
            'gate_teacher needs a teacher': self.gate_teacher and self.taught is None,
            'trim_count is about the text of trim, which is not given': self.trim_count > 1 and not self.trim,
            **(of_sentences if self.without_labels else of_others),
        }
        return super().problems() + [problem for problem, found in wrong.items() if found]

    @pydantic.model_validator(mode='before')
    @classmethod
    def _keeps_width(cls, values: Any) -> Any:
        """Leave h out of what is pruned for sentences, unless it is stated."""
        whole_layers = isinstance(values, Mapping) and values.get('method') == 'layers'
        if isinstance(values, Mapping) and values.get('task') == SENTENCES and not whole_layers:
            return {'prune': LETTERS.replace('h', ''), **values}
        return values

    @property
    def without_labels(self) -> bool:
        return self.task == SENTENCES

    @property
    def taught(self) -> str | None:
        return None if self.teacher == 'none' else self.teacher

    @property
    def recovers(self) -> bool:
        return self.minutes is not None or self.steps != 0

    @property
    def timed(self) -> bool:
        return self.timing

    def phase(self, name: str, steps: int, **more: Any) -> Phase:
        tokens = (self.batch_tokens or BATCH_TOKENS) if self.without_labels else 0
        settings = {'seed': self.seed, 'evaluate_every': self.evaluate_every, 'evaluation_limit': 0}
        return super().phase(name, steps, **{**settings, 'batch_tokens': tokens, **more})

    def check_workers(self, workers: Workers) -> None:
        """As of every run; a batch of tokens divides among any number of workers."""
        if self.without_labels:
            check_precision(self.precision, workers.context())
        else:
            super().check_workers(workers)

    def gate_steps(self) -> int:
        """Steps of gate training in a round, or the most of them; or the batches that units are ranked on."""
        if self.alpha_steps not in self.SETTLE:
            return int(self.alpha_steps)
        return self.alpha_limit if self.trains_gates else BATCHES


def unreachable(
    recipe: PruningRecipe, architecture: Architecture, whole: Architecture | None = None
) -> str | None:
    """Reason why a run cannot come down to the share that it is to leave of a network, or of `whole`, if that
    is not the network that is cut; None if it can.
    """
    cost, empty = recipe.cost(), recipe.drop_blocks or recipe.method == 'blocks'
    least = {
        key: int(key[0] != 'f' or not empty)
        for key, width in architecture.widths().items()
        if key[0] in recipe.prune and width
    }
    smallest = architecture.with_widths(least)
    if recipe.method == 'layers':
        (kept,) = layers_to_keep(len(architecture.layers), 1, recipe.drop)
        smallest = dataclasses.replace(architecture, layers=architecture.layers[kept : kept + 1])
    before, wanted = cost.cost(whole or architecture), recipe.shares()[-1]
    if before <= 0:
        return f'the network costs no {cost.unit}, so there is nothing to save; take another objective'
    reachable = cost.cost(smallest) / before
    if reachable <= wanted:
        return None
    by_units = f'pruning {recipe.prune}: with one unit of each width{" but f" if empty else ""} left'
    of_whole = {
        'layers': 'dropping layers: with one layer left',
        'blocks': 'dropping intermediate blocks: without any',
    }
    remedy = 'take another method' if recipe.method in of_whole else 'prune more widths'
    return (
        f'target {wanted:.4g} cannot be reached by {of_whole.get(recipe.method, by_units)}, '
        f'{reachable:.3f} of the {recipe.objective} remain; ask for more, or {remedy}'
    )
