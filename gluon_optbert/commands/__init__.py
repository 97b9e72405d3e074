"""The commands of the package. All of them need MXNet, and say so before anything else."""

import importlib.util
import sys

from .. import front_door
from ..runs.programs import is_command

for _library in ('mxnet', 'gluonnlp'):
    if importlib.util.find_spec(_library) is None:
        if is_command(sys.argv[0]):
            sys.exit(f'error: {front_door.REMEDIES[_library]}')
        raise front_door.NotInstalled(front_door.REMEDIES[_library], name=_library)
