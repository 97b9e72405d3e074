"""Make MXNet for GPUs find NVIDIA's libraries: python -m gluon_optbert.runs.cuda_libraries

The wheels nvidia-*-cu11 put each library into a directory of its own, where the loader does not look. MXNet's
library has its own directory as its search path (RPATH $ORIGIN), so links there are found by every program
that loads it: Python, Horovod's launcher, and C. Neither LD_LIBRARY_PATH nor a change of a file is needed.
`make install GPU=1` does this. Nothing is loaded here, and a second call changes nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

LINKER_NAMES = {'libnccl.so.2': 'libnccl.so'}  # the name that the build of Horovod looks for


def link_libraries(mxnet: Path, nvidia: Path) -> list[str]:
    """Link every library below the directory that NVIDIA's wheels share into MXNet's directory, and remove
    links that lead nowhere; the names of the links, sorted.
    """
    links = {}
    for library in nvidia.glob('*/lib/*.so*'):
        for name in (library.name, LINKER_NAMES.get(library.name, library.name)):
            links[mxnet / name] = os.path.relpath(library, mxnet)
    for link in filter(Path.is_symlink, mxnet.glob('*.so*')):
        target = os.readlink(link)
        if not link.exists() or links.get(link, target) != target:
            link.unlink()
    for link, target in links.items():
        if not link.is_symlink():
            link.symlink_to(target)
    return sorted(link.name for link in links)


def unresolved(library: Path) -> list[str]:
    """The libraries that a library needs and the loader does not find."""
    said = subprocess.run(['ldd', str(library)], stdout=subprocess.PIPE, text=True, check=True)
    return [line.split()[0] for line in said.stdout.splitlines() if line.rstrip().endswith('not found')]


def main() -> int:
    """Link the libraries of this environment; exit status 1 if one is still missing."""
    spec = importlib.util.find_spec('mxnet')
    if spec is None or not spec.submodule_search_locations:
        print('error: MXNet is not installed', file=sys.stderr)
        return 1
    mxnet = Path(next(iter(spec.submodule_search_locations)))
    links = link_libraries(mxnet, mxnet.parent / 'nvidia')
    missing = unresolved(mxnet / 'libmxnet.so')
    print(f'{len(links)} libraries of NVIDIA are linked into {mxnet}')
    if missing:
        driver = "; libcuda.so.1 comes with NVIDIA's driver" if 'libcuda.so.1' in missing else ''
        print(f'error: libmxnet.so still lacks {", ".join(missing)}{driver}', file=sys.stderr)
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
