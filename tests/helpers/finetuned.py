"""Small fine-tuning runs: their data, of letters, and their recipes."""

import dataclasses
import itertools

import numpy as np

from gluon_optbert.finetuning.recipes import GlueRecipe, SquadRecipe
from gluon_optbert.runs.recipe import fill
from gluon_optbert.tasks.squad import Question
from helpers.pruned import MODEL
from helpers.questions import write_squad

LEFT = ['origin.json', 'recipe.yaml', 'result.json', 'seed-1', 'seed-2']  # by a run of two seeds
LETTERS = 'abcdefghijklmnopqrstuvwxyz'
FILES = MODEL | {'head.json', 'metrics.jsonl'}


def sentences(count, seed):
    """Sentences of the first half of the alphabet, with the label 1, or of the second."""
    random = np.random.RandomState(seed)
    halves = [list(LETTERS[13:]), list(LETTERS[:13])]
    return [
        (' '.join(random.choice(halves[label], random.randint(1, 12))), int(label))
        for label in random.randint(0, 2, count)
    ]


def write_glue(directory):
    """SST-2, STS-B and the matched half of MNLI, of letters."""

    def write(name, header, rows):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        lines = ['\t'.join(map(str, row)) for row in [header.split(), *rows]]
        (directory / name).write_text('\n'.join([*lines, '']), encoding='utf-8')

    for part, count, seed in (('train', 41, 0), ('dev', 13, 1)):
        told = sentences(count, seed)
        scored = [(i, text, text[::-1], label * 4.5) for i, (text, label) in enumerate(told)]
        kinds = itertools.cycle(['neutral', 'entailment', 'contradiction'])
        pairs = [(text, text[::-1], kind) for (text, _), kind in zip(told, kinds)]
        write(f'SST-2/{part}.tsv', 'sentence label', told)
        write(f'STS-B/{part}.tsv', 'index sentence1 sentence2 score', scored)
        write(f'MNLI/{part.replace("dev", "dev_matched")}.tsv', 'sentence2 sentence1 gold_label', pairs)
    texts = [text for text, _ in sentences(7, 2)]
    write('SST-2/test.tsv', 'index sentence', enumerate(texts))
    write('STS-B/test.tsv', 'index sentence1 sentence2', zip(range(7), texts, texts))
    return directory


def values_for(model, data, base, **more):
    return {
        'model': str(model),
        'data': str(data),
        'output': str(base / 'run'),
        'task': 'SST-2',
        'max_length': 16,
        'epochs': 2,
        'batch_size': 8,
        'learning_rate': 0.01,
        'log_every': 2,
        'checkpoint_every': 2,
        **more,
    }


def flags_of(values):
    """The words of a command line with these values."""
    return [part for name, value in values.items() for part in ('--' + name.replace('_', '-'), str(value))]


def recipe_for(*args, **more):
    return fill(GlueRecipe, values_for(*args, **more))


def write_questions(directory):
    """Questions whose answer is the word after the one they ask for; in version 2.0 some ask for what is not
    there.
    """
    random = np.random.RandomState(0)
    for part, count in (('train', 30), ('dev', 11)):
        asked, answerable = [], []
        for i in range(count):
            words = list(random.permutation(list(LETTERS[:20]))[: random.randint(3, 20)])
            place = random.randint(0, len(words) - 1)
            context = ' '.join(words)
            answer = (words[place + 1], context.index(words[place + 1]))
            answerable.append(Question(f'{part}{i}', words[place], context, (answer,)))
            asked.append(answerable[-1] if i % 3 else Question(f'{part}{i}', 'z', context, ()))
        write_squad(directory / f'{part}-v1.1.json', answerable, '1.1')
        write_squad(directory / f'{part}-v2.0.json', asked)
    return directory


def squad_recipe(model, base, **more):
    values = {'stride': 4, 'max_question': 3, **values_for(model, base / 'squad', base), **more}
    del values['task']
    return fill(SquadRecipe, values)


def without_times(result):
    """The part that two runs of the same recipe share; the tree may be committed between them."""
    runs = tuple(dataclasses.replace(run, seconds=0.0) for run in result.runs)
    return dataclasses.replace(result, runs=runs, recipe={}, origin={})
