"""The names of the commands: a program that pip installs, or the script of a checkout that does the same."""

from __future__ import annotations

import sys
from pathlib import Path

# every installed program, and its script
SCRIPTS = {
    'optbert-make-shards': 'pretrain/make_shards.py',
    'optbert-pretrain': 'pretrain/run_pretraining.py',
    'optbert-prune': 'pretrain/run_prune.py',
    'optbert-import': 'tools/import_checkpoint.py',
    'optbert-trim-vocabulary': 'tools/trim_vocabulary.py',
    'optbert-export': 'tools/export_model.py',
    'optbert-verify': 'tools/verify.py',
    'optbert-predict': 'tools/predict.py',
    'optbert-serve': 'tools/serve.py',
    'optbert-score': 'tools/score.py',
    'optbert-report': 'tools/report.py',
    'optbert-finetune-glue': 'finetune/run_glue.py',
    'optbert-finetune-squad': 'finetune/run_squad.py',
    'optbert-prune-task': 'finetune/run_prune.py',
    'optbert-table': 'finetune/run_table.py',
}
CHECKOUT = Path(__file__).resolve().parents[2]


def is_installed(program: str) -> bool:
    """Whether a program, the first word of a command line, is one that pip installed."""
    return Path(program).name in SCRIPTS


def is_command(program: str) -> bool:
    """Whether a program is one of the commands, installed or not."""
    return is_installed(program) or Path(program).name in {Path(path).name for path in SCRIPTS.values()}


def named(name: str) -> str:
    """A command as the user has it: its script in a checkout, or the installed program.

    A process that was started as an installed program has those; any other has the scripts if the package
    lies beside them.

    Parameters
    ----------
    name : str
        A key of `SCRIPTS`.
    """
    script = SCRIPTS[name]
    return name if is_installed(sys.argv[0]) or not (CHECKOUT / script).is_file() else script
