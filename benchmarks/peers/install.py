"""Make the environments of peers: python benchmarks/peers/install.py DIRECTORY

Each has its own, with the versions of onnx.txt or torch.txt, because they need a newer NumPy than MXNet
bears. One that is there is brought up to these versions. CPython 3.11, as the rest."""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = ('onnx', 'torch')


def main() -> int:
    """Make every environment; the exit status of the first pip that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('directory', type=Path)
    parser.add_argument('--only', choices=ENVIRONMENTS, help='make this one alone')
    arguments = parser.parse_args()
    for name in (arguments.only,) if arguments.only else ENVIRONMENTS:
        place = arguments.directory / name
        if not (place / 'bin' / 'python').exists():
            venv.create(place, with_pip=True)
        done = subprocess.run(
            [place / 'bin' / 'python', '-m', 'pip', 'install', '--quiet', '-r', HERE / f'{name}.txt'],
            check=False,
        )
        if done.returncode:
            return done.returncode
        print(f'{place}: ready')
    return 0


if __name__ == '__main__':
    sys.exit(main())
