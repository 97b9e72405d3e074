"""Start of a command, as a script or as an installed program, and the names of the others then."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from .programs import named


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return '--' + name.replace('_', '-')


def line(name: str, *words: object, recipe: str | None = None, workers: int = 1) -> str:
    """A command line for people, quoted for the shell and spelt as this process was started.

    The name is that of the installed program, such as ``optbert-prune``. The recipe is a packaged one with
    its folder, such as ``pretrain/small_prune``, and the first word. Several workers are Horovod's.
    """
    program, (folder, _, stem) = named(name), (recipe or '').partition('/')
    if program == name:
        start, first = [name], [stem] if recipe else []
    else:
        start, first = ['python', program], [f'{folder}/recipes/{stem}.yaml'] if recipe else []
    started = ['horovodrun', '--gloo', '-np', workers] if workers > 1 else []
    return ' '.join(shlex.quote(str(word)) for word in [*started, *start, *first, *words])


def again(name: str, argv: Sequence[str] | None, *, workers: int = 1, **changed: object) -> str:
    """The `line` of a command that was given the words `argv`, or those of this process, with other values of
    the fields `changed`; None leaves a flag out.
    """
    given, words = list(sys.argv[1:] if argv is None else argv), []
    flags = {flag(field): value for field, value in changed.items()}
    while given:
        word = given.pop(0)
        if word.partition('=')[0] not in flags:
            words.append(word)
        elif '=' not in word and given and not given[0].startswith('--'):
            given.pop(0)
    new = [part for item in flags.items() if item[1] is not None for part in item]
    return line(name, *words, *new, workers=workers)


def models_in(run: Path) -> list[Path]:
    """The model directories of a pruning run, the last round first; or of a fine-tuning run, by seed; or of
    one round; none if it is none of these.
    """
    numbered = {'round': {}, 'seed': {}}
    for path in run.glob('*-*'):
        kind, _, number = path.name.partition('-')
        model = path / 'model' if kind == 'round' else path
        if kind in numbered and number.isdigit() and model.is_dir():
            numbered[kind][int(number)] = model
    rounds, seeds = (dict(sorted(models.items())) for models in numbered.values())
    one = [run / 'model'] if (run / 'model' / 'model.params').is_file() else []
    return [*reversed(list(rounds.values())), *seeds.values(), *one]


def what_it_is(path: Path) -> str | None:
    """Kind of a directory that was given in place of another kind, and the command that goes on from it; None
    if it is of no kind that is known here.
    """
    deploy = ('--output', 'deploy')
    if (path / 'config.json').is_file() and (path / 'model.onnx').is_file():
        anew = line('optbert-export', 'MODEL_DIR', *deploy, '--onnx')
        return f'it is an export for other libraries; for the commands here, export its model: {anew}'
    if (path / 'config.json').is_file():
        name = os.path.basename(os.path.abspath(path))  # where the path is a dot, too
        imported = line('optbert-import', path, '--output', f'models/{name}')
        return f'it is a checkpoint of Transformers; import it first: {imported}'
    finished = (path / 'manifest.json').is_file()
    if finished and (path / 'model-symbol.json').is_file():
        predict = line('optbert-predict', path, '--input', 'sentences.txt')
        return f'it is an export already; predict with it: {predict}'
    if finished and (path / 'model.params').is_file():
        return f'it is a model directory; export it first: {line("optbert-export", path, *deploy)}'
    models = [] if (path / 'model.params').is_file() else models_in(path)
    if models:
        example = line('optbert-export', models[0], *deploy)
        return f'it is the directory of a run; take one of its models, such as {models[0]}: {example}'
    return None
