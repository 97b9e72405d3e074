"""Commands that run in the process of the tests, which has imported MXNet already, or on a terminal."""

import contextlib
import importlib.util
import io
import os
import pty
import runpy
import select
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

from helpers.tiny import ROOT, environment, run


def _stream():
    return io.TextIOWrapper(io.BytesIO(), encoding='utf-8', newline='')


@contextlib.contextmanager
def _standard_input(content):
    """Have a text as standard input, which commands open by its number."""
    before = os.dup(0)
    with tempfile.TemporaryFile('w+', encoding='utf-8') as file:
        file.write(content)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(before, 0)
            os.close(before)


def _text(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()


def _status(program, module):
    """The exit status of a script, or of a module, whose words are those of `sys.argv`."""
    try:
        if module:
            runpy.run_module(program, run_name='__main__', alter_sys=True)
        else:
            runpy.run_path(program, run_name='__main__')
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def module_at(path):
    """The module in a file of the repository that is in no folder to import from."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def call(*words, input='', cwd=ROOT):
    """Result of a script as `helpers.tiny.run` gives it, or of `-m` and a module, without another process.

    A bug is a traceback and status 1, as in a process. `os.environ` and the working directory are restored.
    """
    words = [str(word) for word in words]
    module = words[0] == '-m'
    program = words[module]
    out, err, before = _stream(), _stream(), os.getcwd()
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, before)
        os.chdir(cwd)
        stack.enter_context(mock.patch.dict(os.environ, environment()))
        stack.enter_context(mock.patch.object(sys, 'argv', words[module:]))
        stack.enter_context(_standard_input(input))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        status = _status(program, module)
    return subprocess.CompletedProcess(words, status, _text(out), _text(err))


def succeed(*words, **options):
    """Output of a command that succeeds; the words and options are those of `call`."""
    done = call(*words, **options)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def refused(*words, **options):
    """The line in which a command refuses bad input; the words and options are those of `call`."""
    done = call(*words, **options)
    assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
    assert done.stderr.startswith('error: ')
    return done.stderr


def run_without(blocked, *lines):
    """Output of a program of these lines that cannot import some packages."""
    start = ['import sys', *(f'sys.modules[{name!r}] = None' for name in blocked)]
    return run('-W', 'ignore', '-c', '\n'.join([*start, *lines]))


def on_terminal(*words, **more):
    """Output of a Python program on a terminal of 80 columns: its parts, and when each of them came."""
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], env=environment(**more), stdout=secondary, stderr=secondary
    )
    os.close(secondary)
    parts = []
    while select.select([primary], [], [], 600)[0]:
        try:
            parts.append((os.read(primary, 65536).decode(errors='replace'), time.monotonic()))
        except OSError:  # the program has ended
            break
    process.wait()
    os.close(primary)
    return parts
