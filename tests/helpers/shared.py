"""Files that the workers of a test run share."""

import os
import shutil

from filelock import FileLock


def made_once(tmp_path_factory, name, make):
    """A path that `make(path)` writes for the first worker of a test run that asks; all only read it."""
    place = tmp_path_factory.getbasetemp()
    if 'PYTEST_XDIST_WORKER' in os.environ:  # whose own places are below the one of the run
        place = place.parent
    with FileLock(place / f'{name}.lock'):
        if not (place / name).exists():
            try:
                make(place / name)
            except BaseException:
                shutil.rmtree(place / name, ignore_errors=True)
                raise
    return place / name
