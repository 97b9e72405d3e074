"""What all figures share: style, colours, names of what is drawn, and the way into a file."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Dict, List, Sequence

import matplotlib

matplotlib.use('Agg')

from matplotlib.figure import Figure

from ..runs.files import write_file

# told apart by the colour-blind
OKABE_ITO = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#999999')
MARKERS = 'osD^vPX*'
STYLE = {
    'font.size': 10,
    'axes.titlesize': 11,
    'axes.titlelocation': 'left',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'grid.color': '#e4e4e4',
    'axes.axisbelow': True,
    'legend.frameon': False,
    'figure.constrained_layout.use': True,
}
FORMATS = {'png': {'dpi': 160, 'metadata': {'Software': None}}, 'svg': {'metadata': {'Date': None}}}
_IN_A_RUN = re.compile(r'model|shrunk|round-\d+|seed-\d+')  # directories that every run has
LONGEST = 60  # characters of a name in a figure
NARROW = 5.0  # inches; a figure of a page, whose words can still be read on 400 pixels


def in_millions(parameters: float) -> str:
    """A number of parameters with three digits, e.g. ``88.1 M``."""
    millions = parameters / 1e6
    return f'{millions:.{0 if millions >= 100 else 1 if millions >= 10 else 2}f} M'


def labels_of(paths: Sequence[Path]) -> List[str]:
    """The last part of every path, and as many parts before it as tell the paths apart and name the run of a
    network.

    Raises
    ------
    ValueError
        If two are the same directory.
    """
    parts = [path.resolve().parts[1:] or ('run',) for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError('a run is given twice')
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ['/'.join(part[-max(depth, _named(part)) :]) for part in parts]


def _named(parts: Sequence[str]) -> int:
    """How many of the last parts it takes to name something: ``run/round-4/model``, not ``model``."""
    own = next((i for i, part in enumerate(reversed(parts)) if not _IN_A_RUN.fullmatch(part)), len(parts) - 1)
    return own + 1


def look(place: int) -> Dict[str, str]:
    """Colour and marker of a line by its place, from 0; no two of the first 64 look alike."""
    colours = len(OKABE_ITO)
    marker = MARKERS[(place + place // colours) % len(MARKERS)]
    return {'color': OKABE_ITO[place % colours], 'marker': marker}


def plain(name: str) -> str:
    """Somebody else's name as a figure shows it: no formula, nothing that SVG cannot hold, not too long.

    A long name lacks its middle, because names that begin alike often end differently.
    """
    name = re.sub(
        r'[\x00-\x1f\x7f-\x9f\ufffe\uffff]', '\ufffd', name.encode('utf-8', errors='replace').decode('utf-8')
    )
    if len(name) > LONGEST:
        end = LONGEST // 2
        name = f'{name[: LONGEST - end - 1]}…{name[-end:]}'
    return name.replace('$', r'\$')


def drawn(figure: Figure, name: str, kind: str) -> bytes:
    """A figure as ``png`` or ``svg``, the same bytes for the same figure and name."""
    content = io.BytesIO()
    with matplotlib.rc_context({'svg.hashsalt': name}):
        figure.savefig(content, format=kind, **FORMATS[kind])
    return content.getvalue()


def save(figure: Figure, directory: Path, name: str) -> List[Path]:
    """Write a figure as PNG and SVG."""
    written = [directory / f'{name}.{kind}' for kind in FORMATS]
    for path in written:
        write_file(path, drawn(figure, name, path.suffix[1:]))
    return written
