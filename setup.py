"""The package `gluon_optbert`.

Whoever predicts needs little: the plain requirements and the extra `serve` are ranges, for CPython 3.10 to
3.14 and any NumPy. Training needs MXNet, which is retired and holds NumPy and Python down: its extras have
the pins of constraints.txt.

`cpu` and `cu112` are alternatives, never both: mxnet and mxnet-cu112 install the same import package.

Horovod is not an ordinary requirement: it compiles against the MXNet it finds, so MXNet and NumPy have to be
installed before its build starts, the build must not be isolated from them, and HOROVOD_WITH_MXNET=1 and its
fellows must be in the environment. `make install` does all of this; the extra `horovod` only records the
version.

The ranges begin behind the versions with known vulnerabilities: of Jinja2, tqdm, h11 and starlette."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

# the table of the commands, read without the package and what it needs
COMMANDS = runpy.run_path(str(Path(__file__).resolve().parent / 'gluon_optbert/runs/programs.py'))['COMMANDS']
PLAIN = [
    'filelock>=3.29',
    'Jinja2>=3.1.6',
    'numpy>=1.23',
    'psutil>=5.9',
    'pydantic>=2.7',
    'PyYAML>=6.0',
    'tokenizers>=0.13.3',
    'tqdm>=4.66.3',
]
# what comes with MXNet
TRAINING = [
    'numpy',
    'gluonnlp',
    'blingfire',
    'filelock',
    'google-crc32c',
    'Jinja2',
    'matplotlib',
    'onnx',
    'psutil',
    'pydantic',
    'PyYAML',
    'sacremoses',
    'safetensors',
    'scikit-learn',
    'scipy',
    'tokenizers',
    'tqdm',
]
CONSTRAINTS = Path(__file__).resolve().parent / 'constraints.txt'


def pinned(*names: str) -> list[str]:
    """The lines of constraints.txt for these distributions, in the order asked for."""
    lines = [
        line.strip()
        for line in CONSTRAINTS.read_text().splitlines()
        if line.strip() and not line.startswith('#')
    ]
    pins = {line.split('==')[0]: line for line in lines}
    return [pins[name] for name in names]


setup(
    name='gluon_optbert',
    version='0.1.0',
    description='optBERT on MXNet, GluonNLP and Horovod: structured pruning of BERT during pre-training',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['gluon_optbert', 'gluon_optbert.*']),
    package_data={
        'gluon_optbert': [
            'architecture/paper/*.json',
            'deployment/hub_code/*.py',
            'deployment/templates/*.jinja',
            'importing/*.json',
            'pruning/templates/*.jinja',
            'recipes/*/*.yaml',
            'reporting/templates/*',
            'serving/*.html',
            'tasks/descriptions/*.json',
        ]
    },
    entry_points={
        'console_scripts': [
            f'{program} = gluon_optbert.commands:{command.name}' for program, command in COMMANDS.items()
        ]
    },
    install_requires=PLAIN,
    extras_require={
        'serve': [
            'onnxruntime>=1.16',
            'fastapi>=0.120.1',
            'h11>=0.16',
            'markdown-it-py>=2.2',
            'starlette>=0.49.1',
            'uvicorn>=0.23',
        ],
        'openvino': ['openvino>=2024.0'],
        'cpu': pinned('mxnet', *TRAINING),
        'cu112': pinned(
            'mxnet-cu112',
            'nvidia-cublas-cu11',
            'nvidia-cuda-nvrtc-cu11',
            'nvidia-cuda-runtime-cu11',
            'nvidia-cudnn-cu11',
            'nvidia-cufft-cu11',
            'nvidia-curand-cu11',
            'nvidia-cusolver-cu11',
            'nvidia-nccl-cu11',
            'nvidia-nvtx-cu11',
            *TRAINING,
        ),
        'horovod': pinned('horovod'),
        'scripts': pinned('optuna'),  # what pretrain/search_prune.py imports beside the package's own
        'test': pinned(
            'coverage',
            'hypothesis',
            'pytest',
            'pytest-xdist',
            'ruff',
            'fastapi',
            'httpx',
            'markdown-it-py',
            'onnxruntime',
            'uvicorn',
        ),
    },
)
