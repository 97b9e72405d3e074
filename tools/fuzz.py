"""Read thousands of hostile inputs of every kind; the properties are those of tests/helpers/fuzzing.py."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / 'tests'

if __name__ == '__main__':
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get('PYTHONPATH')])])
    words = [sys.executable, '-m', 'helpers.many_cases', *sys.argv[1:]]
    sys.exit(subprocess.run(words, env={**os.environ, 'PYTHONPATH': path}, check=False).returncode)
