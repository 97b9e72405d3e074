"""The commands, and what they run: tables for setup.py, `import gluon_optbert`, the scripts and messages.

setup.py runs this file alone, so it imports nothing of the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

YAML = ('.yaml', '.yml')  # suffixes of recipe files


class Command(NamedTuple):
    """A program that pip installs, and the script of a checkout that does the same."""

    script: str  # its path in a checkout
    entry: str  # the module below ``gluon_optbert.commands``, and its function
    mxnet: bool = True  # whether it needs MXNet

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.entry.partition(':')[2]


COMMANDS = {
    'optbert-make-shards': Command('pretrain/make_shards.py', 'training:make_shards', mxnet=False),
    'optbert-import': Command('tools/import_checkpoint.py', 'training:import_checkpoint'),
    'optbert-pretrain': Command('pretrain/run_pretraining.py', 'training:pretrain'),
    'optbert-trim-vocabulary': Command('tools/trim_vocabulary.py', 'pruning:trim_vocabulary'),
    'optbert-prune': Command('pretrain/run_prune.py', 'pruning:prune'),
    'optbert-verify': Command('tools/verify.py', 'pruning:verify'),
    'optbert-finetune-glue': Command('finetune/run_glue.py', 'training:finetune_glue'),
    'optbert-finetune-squad': Command('finetune/run_squad.py', 'training:finetune_squad'),
    'optbert-prune-task': Command('finetune/run_prune.py', 'pruning:prune_task'),
    'optbert-export': Command('tools/export_model.py', 'exporting:export'),
    'optbert-predict': Command('tools/predict.py', 'predicting:predict', mxnet=False),
    'optbert-serve': Command('tools/serve.py', 'predicting:serve', mxnet=False),
    'optbert-score': Command('tools/score.py', 'predicting:score', mxnet=False),
    'optbert-report': Command('tools/report.py', 'reporting:report'),
    'optbert-table': Command('finetune/run_table.py', 'reporting:table'),
}


class Run(NamedTuple):
    """A function of the package that runs a recipe; the command of the same name does it as well."""

    home: str  # the module below ``gluon_optbert`` that has it
    recipe: str  # the class of its recipe, with its module where that is not the home
    gives: str  # what the function makes of what
    first: str = ''  # the field of its recipe that is its first word, where that is no recipe file

    @property
    def recipe_place(self) -> str:
        """Module and class of its recipe, as ``pruning.recipe:PruneRecipe``."""
        return self.recipe if ':' in self.recipe else f'{self.home}:{self.recipe}'

    @property
    def recipe_name(self) -> str:
        """The class of its recipe."""
        return self.recipe_place.partition(':')[2]


RUNS = {
    'make_shards': Run('text.make_shards', 'ShardRecipe', 'raw text → shards for pre-training'),
    'import_checkpoint': Run(
        'importing.convert', 'ImportRecipe', "someone else's BERT → a model directory", 'source'
    ),
    'pretrain': Run('training.pretrain', 'training.recipe:PretrainRecipe', 'shards → a model directory'),
    'trim_vocabulary': Run('pruning.trimming', 'TrimRecipe', 'a model directory → one with fewer tokens'),
    'prune': Run('pruning.algorithm', 'pruning.recipe:PruneRecipe', 'a model directory → smaller ones'),
    'verify': Run('deployment.verify', 'VerifyRecipe', 'checks that a cut changed no output', 'run'),
    'finetune_glue': Run('finetuning.recipes', 'GlueRecipe', 'a model directory → a classifier'),
    'finetune_squad': Run('finetuning.recipes', 'SquadRecipe', 'a model directory → a reader of texts'),
    'prune_task': Run(
        'pruning.task_objectives', 'pruning.recipe:TaskPruneRecipe', 'a fine-tuned model → smaller ones'
    ),
}
CHECKOUT = Path(__file__).resolve().parents[2]


def named(program: str) -> str:
    """A command as the user has it: its script in a checkout, or the installed program.

    A process that was started as an installed program has those; any other has the scripts if the package
    lies beside them.
    """
    script = COMMANDS[program].script
    is_installed = Path(sys.argv[0]).name in COMMANDS
    return program if is_installed or not (CHECKOUT / script).is_file() else script


def listed_runs() -> str:
    """The functions of the package that are commands, a line each."""
    programs = {command.name: program for program, command in COMMANDS.items()}
    return '\n'.join(
        f'    {name:<19}{run.gives:<45}{run.recipe_name:<16}{programs[name]}' for name, run in RUNS.items()
    )
