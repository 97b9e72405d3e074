"""The commands of the package. A library that one needs and that is missing is one line, not a traceback."""

import sys
from types import TracebackType
from typing import Optional, Type

from .. import front_door
from ..runs.programs import is_command


def _in_one_line(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Show an error that ends a command while it is being imported."""
    library = (getattr(error, 'name', None) or '').partition('.')[0]
    if isinstance(error, ImportError) and library in front_door.REMEDIES:
        print(f'error: {front_door.REMEDIES[library]}', file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if is_command(sys.argv[0]):
    sys.excepthook = _in_one_line
