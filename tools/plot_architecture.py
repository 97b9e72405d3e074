"""Plot pruning runs: the widths of every layer, the gates, and the loss against size. With --paper also plot
figures of the paper.

example:
  python tools/plot_architecture.py runs/pruned runs/random --paper --output plots"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gluon_optbert.reporting.figures import name_by_size, plot
from gluon_optbert.reporting.networks import labels_of, read_run
from gluon_optbert.runs.command_line import Parser, command


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read the runs, draw, and say what was written."""
    parser = Parser(__doc__)
    parser.add_argument('runs', nargs='*', type=Path, metavar='RUN_DIR', help='finished pruning runs')
    parser.add_argument(
        '--paper',
        action='store_true',
        help='draw Figures 3 to 6 of optBERT, as far as the widths are published',
    )
    parser.add_argument(
        '--output',
        type=Path,
        required=True,
        metavar='DIR',
        help='directory for PNG and SVG files; files of the same name are replaced',
    )
    arguments = parser.parse_args(argv)
    if not arguments.runs and not arguments.paper:
        raise ValueError('nothing to draw: give a RUN_DIR, --paper, or both')
    runs = [read_run(path, label) for path, label in zip(arguments.runs, labels_of(arguments.runs))]
    written, left_out = plot(runs, arguments.output, paper=arguments.paper)
    for line in left_out:
        print(line)
    names = dict.fromkeys(name_by_size(run, runs) for run in runs)
    tables = [f'{name}.md' for name in names if arguments.output / f'{name}.png' in written]
    print(
        f'wrote {len(written)} files to {arguments.output}: '
        + ', '.join(path.name for path in written if path.suffix == '.png')
        + ', each also as .svg'
        + (f', and {", ".join(tables)}' if tables else '')
    )


if __name__ == '__main__':
    sys.exit(main())
