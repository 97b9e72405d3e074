"""The pages of the project, README.md and docs/*.md, in parts: blocks, sentences, commands and what they
name.
"""

import functools
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from unittest import mock

import mxnet as mx
import numpy as np
import pytest

from gluon_optbert import commands as functions
from gluon_optbert.runs import command_line
from gluon_optbert.runs.programs import COMMANDS
from helpers.commands import succeed
from helpers.tiny import ROOT

BY_SCRIPT = {command.script: command.name for command in COMMANDS.values()}
RUNS = re.compile(r'\bpython3? (?:-m (gluon_optbert\S*)|(\S+\.py))')  # a module or a script of the project


def text_of(page):
    return page.read_text(encoding='utf-8')


def blocks(page):
    """The fenced blocks of a page: language and content."""
    return re.findall(r'^```(\w*)\n(.*?)^```', text_of(page), flags=re.DOTALL | re.MULTILINE)


def code_of(page, language):
    """The contents of the blocks of a language."""
    return [content for name, content in blocks(page) if name == language]


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r'^```.*?^```', '', text_of(page), flags=re.DOTALL | re.MULTILINE)


def spans(page):
    """The inline code of a page."""
    return [' '.join(span.split()) for span in re.findall(r'`([^`]+)`', prose(page))]


def shell_lines(page):
    """The lines of the blocks for a shell, joined where they go on, and the inline code."""
    lines = '\n'.join(content for language, content in blocks(page) if language in ('', 'sh', 'bash'))
    return lines.replace('\\\n', ' ').splitlines() + spans(page)


def commands(*pages):
    """Every command line, in a block or in a sentence, that runs a script or a module of the project."""
    return sorted(
        {' '.join(line.split()) for page in pages for line in shell_lines(page) if RUNS.search(line)}
    )


@functools.cache
def flags_of(program):
    """The flags of a script or of `-m` and a module, with what their help says of each."""
    helped = succeed(*program.split(), '--help')
    shown = re.sub(r'\n\n[a-z ]+:\n', '\n', helped)  # without the titles of groups
    entries = re.split(r'\n  (?=-)', shown)[1:]
    flags = {}
    for entry in entries:
        name = re.match(r'(?:-h, )?(--[a-z0-9-]+)', entry)
        if name and name.group(1) != '--help':
            flags[name.group(1)] = ' '.join(entry.split())
    return flags


class Parsed(BaseException):
    """Ends a command when its recipe is there."""


def check_parsed(name, words):
    """A command makes its recipe of these words."""
    function = inspect.unwrap(functions.found(name))

    def parse(*args, **more):
        command_line.parse(*args, **more)
        raise Parsed

    with mock.patch.object(inspect.getmodule(function), 'parse', parse), pytest.raises(Parsed):
        function(words)


def check_command(line):
    """A command line names a script, recipes, flags and choices that exist; one that leaves nothing out is
    parsed by its command.
    """
    module, script = RUNS.search(line).groups()
    own = re.split(' > | && |;', line[RUNS.search(line).end() :])[0]
    words = shlex.split(own, comments=True)
    assert module or (ROOT / script).is_file()
    if script in BY_SCRIPT and words and not any(sign in line for sign in ('…', '$', '--help', '<')):
        return check_parsed(BY_SCRIPT[script], words)
    known = flags_of(f'-m {module}' if module else script)
    assert all((ROOT / word).is_file() for word in words if word.endswith('.yaml'))
    for word, value in zip(words, [*words[1:], '']):
        if word == '--help' or not word.startswith('--'):
            continue
        assert word in known, f'{script or module} has no flag {word}'
        choices = re.search(r'\(one of ([^)]*)\)', known[word])
        if choices:
            assert set(value.split(',')) <= set(choices.group(1).split(', ')), f'{word} {value}'


def targets_of_make(*pages):
    """The targets that command lines of the pages make."""
    lines = [line for page in pages for line in shell_lines(page)]
    calls = [shlex.split(line, comments=True)[1:] for line in lines if re.match(r'make [a-zA-Z]', line)]
    return {word for words in calls for word in words if re.fullmatch('[a-z-]+', word)}


def is_target(word):
    return re.search(rf'^{word}:', text_of(ROOT / 'Makefile'), flags=re.MULTILINE) is not None


def compiled_and_run(program, place):
    """The numbers that a C program prints if it is compiled by the line of gcc in its first comment."""
    source = program.read_text(encoding='utf-8')
    (place / program.name).write_text(source)
    line = re.search(r'gcc .*(?= \*/)', source).group()
    words = line.replace('$PACKAGE', str(Path(mx.__file__).parent)).split()
    subprocess.run([*words, '-Wall', '-Werror'], cwd=str(place), check=True, timeout=120)
    done = subprocess.run(['./predict'], cwd=str(place), check=True, timeout=120, stdout=subprocess.PIPE)
    return np.array([float(line) for line in done.stdout.split()])
