"""The commands: one table, which setup.py, `import gluon_optbert`, the scripts and messages read.

setup.py runs this file alone, so it imports nothing of the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

YAML = ('.yaml', '.yml')  # suffixes of recipe files


class Command(NamedTuple):
    """A program that pip installs, and the script of a checkout that does the same.

    Parameters
    ----------
    script : str
        Its path in a checkout.
    entry : str
        The module below ``gluon_optbert.commands``, and its function.
    home : str
        The module below ``gluon_optbert`` that has the function of the same name, if that is one of the names
        of the package.
    recipe : str
        The module that has the recipe of this function, and the class.
    gives : str
        What the function makes of what.
    mxnet : bool
        Whether it needs MXNet.
    first : str
        The field of its recipe that is its first word, where that is no recipe file.
    """

    script: str
    entry: str
    home: str = ''
    recipe: str = ''
    gives: str = ''
    mxnet: bool = True
    first: str = ''

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.entry.partition(':')[2]


COMMANDS = {
    'optbert-make-shards': Command(
        'pretrain/make_shards.py',
        'training:make_shards',
        'text.make_shards',
        'text.make_shards:ShardRecipe',
        'raw text → shards for pre-training',
        mxnet=False,
    ),
    'optbert-import': Command(
        'tools/import_checkpoint.py',
        'training:import_checkpoint',
        'importing.convert',
        'importing.convert:ImportRecipe',
        "someone else's BERT → a model directory",
        first='source',
    ),
    'optbert-pretrain': Command(
        'pretrain/run_pretraining.py',
        'training:pretrain',
        'training.pretrain',
        'training.recipe:PretrainRecipe',
        'shards → a model directory',
    ),
    'optbert-trim-vocabulary': Command(
        'tools/trim_vocabulary.py',
        'pruning:trim_vocabulary',
        'pruning.trimming',
        'pruning.trimming:TrimRecipe',
        'a model directory → one with fewer tokens',
    ),
    'optbert-prune': Command(
        'pretrain/run_prune.py',
        'pruning:prune',
        'pruning.algorithm',
        'pruning.recipe:PruneRecipe',
        'a model directory → smaller ones',
    ),
    'optbert-verify': Command(
        'tools/verify.py',
        'pruning:verify',
        'deployment.verify',
        'deployment.verify:VerifyRecipe',
        'checks that a cut changed no output',
        first='run',
    ),
    'optbert-finetune-glue': Command(
        'finetune/run_glue.py',
        'training:finetune_glue',
        'finetuning.recipes',
        'finetuning.recipes:GlueRecipe',
        'a model directory → a classifier',
    ),
    'optbert-finetune-squad': Command(
        'finetune/run_squad.py',
        'training:finetune_squad',
        'finetuning.recipes',
        'finetuning.recipes:SquadRecipe',
        'a model directory → a reader of texts',
    ),
    'optbert-prune-task': Command(
        'finetune/run_prune.py',
        'pruning:prune_task',
        'pruning.task_objectives',
        'pruning.recipe:TaskPruneRecipe',
        'a fine-tuned model → smaller ones',
    ),
    'optbert-export': Command('tools/export_model.py', 'exporting:export'),
    'optbert-predict': Command('tools/predict.py', 'predicting:predict', mxnet=False),
    'optbert-serve': Command('tools/serve.py', 'predicting:serve', mxnet=False),
    'optbert-score': Command('tools/score.py', 'predicting:score', mxnet=False),
    'optbert-report': Command('tools/report.py', 'reporting:report'),
    'optbert-table': Command('finetune/run_table.py', 'reporting:table'),
}
CHECKOUT = Path(__file__).resolve().parents[2]


def named(program: str) -> str:
    """A command as the user has it: its script in a checkout, or the installed program.

    A process that was started as an installed program has those; any other has the scripts if the package
    lies beside them.

    Parameters
    ----------
    program : str
        A key of `COMMANDS`.
    """
    script = COMMANDS[program].script
    is_installed = Path(sys.argv[0]).name in COMMANDS
    return program if is_installed or not (CHECKOUT / script).is_file() else script


def listed_runs() -> str:
    """The functions of the package that are commands, a line each."""
    return '\n'.join(
        f'    {command.name:<19}{command.gives:<45}{command.recipe.partition(":")[2]:<16}{program}'
        for program, command in COMMANDS.items()
        if command.home
    )
