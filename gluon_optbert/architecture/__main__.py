"""Print an architecture: ``python -m gluon_optbert.architecture NAME``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ..runs.command_line import command
from .description import describe, readable
from .named import FORMS, resolve


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Print an architecture: its widths, parameters, FLOPs and beta."""
    parser = argparse.ArgumentParser(
        prog='python -m gluon_optbert.architecture',
        allow_abbrev=False,
        description=f'{main.__doc__}\n\nexample:\n  python -m gluon_optbert.architecture optbert_88m '
        f'--length 128',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'name',
        metavar='NAME',
        help=f'a name, an architecture.json, a model directory, or JSON itself; names are {FORMS}',
    )
    parser.add_argument(
        '--length',
        type=int,
        default=128,
        help='tokens of the sequence that FLOPs are counted for [default: %(default)s]',
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    arguments = parser.parse_args(argv)
    architecture = resolve(arguments.name)
    story = describe(arguments.name, architecture, arguments.length)
    print(json.dumps(story, indent=1) if arguments.json else readable(story, architecture))


if __name__ == '__main__':
    sys.exit(main())
