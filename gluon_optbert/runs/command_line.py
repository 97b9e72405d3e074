"""A recipe's command line: flags and help from its fields, failures as one line and an exit status."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import functools
import inspect
import logging
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .failures import LogLine, NotInstalled, RunFailed, Terminated, meant, shown
from .machine import of_launcher
from .programs import YAML
from .recipe import (
    R,
    Recipe,
    RecipeError,
    check_alternatives,
    check_read,
    choices_of,
    fill,
    find_recipe,
    overridden,
    read_yaml,
    takes,
    takes_several,
)
from .starting import flag

_FULL = 'No space left on device'
_USED_UP = re.compile(
    f'({_FULL}|Cannot allocate memory|([Ff]ailed|[Uu]nable) to [Aa]llocate|bad_?alloc|[Oo]ut of memory).*'
)
_MOST_PROBLEMS = 20  # that are shown of a recipe


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32, width=110)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Lines that do not end within a name such as sentence-transformers, so that names can be copied."""
        return textwrap.wrap(' '.join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """One whose help begins with a description as it is. Its errors are a `RecipeError`, and name the flag
    that a misspelt one is like.
    """

    def __init__(self, description: str, **more: Any):
        text = inspect.cleandoc(description)
        super().__init__(description=text, formatter_class=_Help, allow_abbrev=False, **more)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise RecipeError([message])

    def parse_args(self, args=None, namespace=None):
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise RecipeError(
                [self._unknown(word) for word in unknown if word.startswith('-')]
                or [f'too many words: {" ".join(unknown)}']
            )
        return namespace

    def _unknown(self, word: str) -> str:
        name = word.split('=')[0]
        return f'unknown flag {name}{meant(name, self._option_string_actions) or "; --help lists the flags"}'


def parser_of(
    cls: type[Recipe], *, description: str, example: str, positional: str | None = None
) -> argparse.ArgumentParser:
    """The command line of a recipe; help and defaults come from its fields.

    The first word is a recipe file, or the field named `positional` where a command has no recipe files; all
    words, if that is a tuple."""
    parser = Parser(f'{inspect.cleandoc(description)}\n\nexample:\n  {example}')
    if positional is None:
        parser.add_argument(
            'recipe',
            nargs='?',
            metavar='RECIPE',
            help='recipe: a YAML file, or the name of a packaged recipe; flags override its fields',
        )
    groups = {}
    for title, names in cls.GROUPS.items():
        groups.update(dict.fromkeys(names, parser.add_argument_group(title)))
    for name in (*(name for name in cls.model_fields if name not in groups), *groups):
        field = cls.model_fields[name]
        text = field.description.replace('%', '%%')
        if name == positional:
            words = '*' if takes_several(field) else '?'
            parser.add_argument(name, nargs=words, default=argparse.SUPPRESS, metavar=name.upper(), help=text)
            continue
        choices = choices_of(field)
        if choices:
            text += f' (one of {", ".join(map(str, choices))})'
        if field.is_required():
            text += ' [required]'
        elif field.default not in (None, ()):
            shown = field.default
            if isinstance(shown, Mapping):
                shown = tuple(f'{key}={value}' for key, value in shown.items() if value is not None)
            if isinstance(shown, tuple):
                shown = ','.join(map(str, shown))
            text += f' [default: {shown}]' if shown != '' else ''
        groups.get(name, parser).add_argument(
            flag(name),
            dest=name,
            default=argparse.SUPPRESS,
            help=text,
            metavar=field.json_schema_extra['metavar'] or name.upper(),
            **({'nargs': '?', 'const': True} if takes(field, bool) else {}),
        )
    return parser


def parse(
    cls: type[R],
    argv: Sequence[str] | None = None,
    *,
    description: str,
    example: str,
    positional: str | None = None,
) -> R:
    """The recipe that a command line describes: its YAML file or packaged recipe first, then its flags.
    RecipeError, or FileNotFoundError, with every problem named.
    """
    parser = parser_of(cls, description=description, example=example, positional=positional)
    from_flags = vars(parser.parse_args(argv))
    path = from_flags.pop('recipe', None)
    values = {} if path is None else _recipe_at(path)
    check_alternatives(cls, values)
    values = overridden(cls, values, from_flags)
    source, flags = path or 'command line', set(from_flags) - {positional}
    recipe = fill(cls, values, source=source, flags=flags, positional=positional)
    return check_read(recipe, flags)


def _recipe_at(path: str) -> dict[str, Any]:
    """The fields in the recipe that a command line names, which may have meant a flag's file."""
    if not path.strip():
        raise RecipeError(['RECIPE must not be empty'])
    try:
        return read_yaml(find_recipe(path))
    except (RecipeError, FileNotFoundError) as error:
        if not Path(path).exists() or Path(path).suffix in YAML:
            raise
        raise RecipeError([f'{path} is no recipe: which flag is it for? --help lists them']) from error


def command(main: Callable[[Sequence[str] | None], int | None]) -> Callable[..., int]:
    """Turn `main(argv)` into a command: bad input is one line and exit status 2, a failed run or a missing
    library one line and status 1.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        if logging.lastResort is not None:  # shows warnings where nobody else has set up the log
            logging.lastResort.setFormatter(LogLine())
        stopped = signal.getsignal(signal.SIGTERM)
        with contextlib.suppress(ValueError):  # of threads, none but the main one handles signals
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            status = main(argv) or 0
            sys.stdout.flush()
            return status
        except BrokenPipeError:  # nobody reads on, as behind `| head`: drop the rest, and end as SIGPIPE does
            with open(os.devnull, 'wb') as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        except RecipeError as error:
            return _complain(2, *error.problems)
        except (RunFailed, NotInstalled) as error:
            if isinstance(error, Terminated) and of_launcher('RANK', '0') != '0':
                return _complain(1)
            return _complain(1, error)
        except (
            ValueError,
            FileNotFoundError,
            FileExistsError,
            NotADirectoryError,
            IsADirectoryError,
            PermissionError,
        ) as error:
            return _complain(2, error)
        # a full disk, a read-only one; but no name of a file is the fault of who gave it
        except OSError as error:
            return _complain(2 if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else 1, error)
        except KeyboardInterrupt:
            return _complain(1, 'interrupted')
        except Exception as error:  # of a library's own kind, if it says that memory or disk are used up
            said = _USED_UP.search(' '.join(f'{error}'.split()))
            if said is None and not isinstance(error, MemoryError):
                raise
            if 'mxnet.base' in sys.modules:  # which would raise the error again when the process ends
                atexit.unregister(sys.modules['mxnet.base']._notify_shutdown)
            reason = said[0] if said else 'what was asked for is too large'
            return _complain(1, f'not enough {"disk" if _FULL in reason else "memory"}: {reason:.300}')
        finally:
            if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
                signal.signal(signal.SIGTERM, stopped)

    return run


def _complain(status: int, *problems: object) -> int:
    rank = of_launcher('RANK', '0')
    if rank != '0':
        signal.signal(signal.SIGTERM, lambda *_: os._exit(status))  # or the shell says 'Terminated'
        time.sleep(10)  # what rank 0 finds as well it says alone, and horovodrun ends the others
    more = [f'and {len(problems) - _MOST_PROBLEMS} more problems'] if len(problems) > _MOST_PROBLEMS else []
    for problem in (*problems[:_MOST_PROBLEMS], *more):
        line = ('' if rank == '0' else f'[rank {rank}] ') + f'error: {shown(problem)}'
        print(line, file=sys.stderr, flush=True)
    return status
