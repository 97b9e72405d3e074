"""Start a command on several workers as horovodrun does, and end with the exit status of the worker.

example:
  python tools/run_workers.py --gloo -np 2 python pretrain/run_prune.py pretrain/recipes/small_prune.yaml \\
      --model models/base --shards shards --output runs/pruned

The flags are horovodrun's. horovodrun 0.28.1 ends every failed job with status 1 and a traceback of its own.
Here the lines of the workers stand alone, and the exit status is that of the worker that ended first: 2 for
bad input, 1 for a failed run.
"""

import re
import sys

from gluon_optbert.runs.failures import REMEDIES


def main() -> int:
    """Run horovodrun in this process."""
    try:
        from horovod.runner.launch import run_commandline
    except ImportError:
        sys.exit(f'error: {REMEDIES["horovod"]}')
    try:
        run_commandline()
    except RuntimeError as error:
        status = re.search(r'Exit code: (\d+)', str(error))
        if status is None:  # horovodrun itself has failed
            raise
        return int(status.group(1))
    return 0


if __name__ == '__main__':
    sys.exit(main())
