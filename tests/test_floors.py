"""The floors of the package: what a module may import, and that it loads where there is no Horovod, GPU or
network.
"""

import ast
import importlib.util

import pytest
from tiny import ROOT, run

PACKAGE = ROOT / 'gluon_optbert'
# A module imports from lower floors, and on its own floor from those before it. A new module needs a place
# here.
FLOORS = [
    [
        'threads',
        '__init__',
        'liveness',
        'staging',
        'recipe',
        'architecture',
        'paper',
        'cost',
        'named',
        'heads',
        'name_maps',
    ],
    ['arrays', 'selection', 'shrink', 'baselines', 'foreign', 'crc32c'],
    ['precision', 'gates', 'penalty', 'encoder', 'model', 'inference'],
    [
        'vocabulary',
        'metrics',
        'tasks',
        'features',
        'squad',
        'answers',
        'documents',
        'shards',
        'instances',
        'batches',
        'buckets',
        'corpus',
        'checkpoint',
        'distributed',
        'optimization',
        'provenance',
        'torch_reader',
        'safetensors_reader',
        'tensorflow_reader',
    ],
    [
        'states',
        'loop',
        'training',
        'pretraining',
        'quantize',
        'onnx_export',
        'deployment',
        'predictor',
        'deploy',
        'latency',
        'prune_recipe',
        'prune_report',
        'pruning',
        'verification',
        'sources',
        'importers',
        'finetuning',
        'glue',
        'question_answering',
        'analysis',
        'probing',
        'tables',
        'table_runs',
        'step_times',
        'table_files',
    ],
]
LATE = {
    ('architecture', 'named')
}  # inside a function: names are looked up in the module that is built on this one
ORDER = [name for floor in FLOORS for name in floor]
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
LIBRARIES = [
    {'yaml', 'psutil'},
    {'numpy'},
    {'mxnet', 'gluonnlp'},
    {'tqdm', 'blingfire', 'sacremoses', 'tokenizers', 'horovod', 'scipy', 'sklearn', 'safetensors', 'onnx'},
    set(),
]
MODULES = sorted(path.stem for path in PACKAGE.glob('*.py'))


def imports(name):
    """Modules of the package, and top-level names of everything else, that a module imports anywhere in it."""
    own, others = set(), set()
    for node in ast.walk(ast.parse((PACKAGE / f'{name}.py').read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ('gluon_optbert.' if node.level else '') + (node.module or '')
            own_names = base.rstrip('.') == 'gluon_optbert'
            found = [f'gluon_optbert.{alias.name}' for alias in node.names] if own_names else [base]
        else:
            continue
        for full in found:
            top, _, rest = full.partition('.')
            if top == 'gluon_optbert':
                module = rest.partition('.')[0]
                own.add(module if (PACKAGE / f'{module}.py').exists() else '__init__')
            else:
                others.add(top)
    return own, others


def in_standard_library(name):
    origin = importlib.util.find_spec(name).origin or ''
    return not ('site-packages' in origin or 'dist-packages' in origin or str(ROOT) in origin)


def test_every_module_has_a_floor():
    assert set(MODULES) - set(ORDER) == set()
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize('name', MODULES)
def test_module_imports_from_below(name):
    own, others = imports(name)
    below = ORDER[: ORDER.index(name)] if name in ORDER else []
    assert [other for other in sorted(own) if other not in below and (name, other) not in LATE] == []
    allowed = set().union(*LIBRARIES[: FLOOR.get(name, len(FLOORS)) + 1])
    assert [other for other in sorted(others - allowed) if not in_standard_library(other)] == []


@pytest.mark.parametrize('name, other', sorted(LATE))
def test_late_import_is_inside_a_function(name, other):
    tree = ast.parse((PACKAGE / f'{name}.py').read_text(encoding='utf-8'))
    assert not any(isinstance(node, ast.ImportFrom) and node.module == other for node in tree.body)
    assert other in imports(name)[0]


def test_imports_are_found_in_every_spelling():
    """The reader of imports itself: relative, absolute, in a function, of the package's own names."""
    assert imports('checkpoint')[0] >= {'__init__', 'architecture', 'shrink', 'staging'}
    assert 'horovod' in imports('distributed')[1]
    assert 'tokenizers' in imports('vocabulary')[1]


def test_only_distributed_imports_horovod():
    assert [name for name in MODULES if 'horovod' in imports(name)[1]] == ['distributed']


def test_only_distributed_asks_for_gpus():
    def asks(name):
        tree = ast.parse((PACKAGE / f'{name}.py').read_text(encoding='utf-8'))
        return any(
            isinstance(node, ast.Attribute) and node.attr in ('gpu', 'num_gpus') for node in ast.walk(tree)
        )

    assert [name for name in MODULES if asks(name)] == ['distributed']


def import_without(blocked, modules):
    """What importing the modules says and ends with, in a process that has no network and lacks the blocked
    packages.
    """
    program = '\n'.join(
        [
            'import socket, sys',
            'def refuse(*_, **__): raise OSError("no network")',
            'socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse',
            *(f'sys.modules[{name!r}] = None' for name in blocked),
            *(f'import gluon_optbert.{name}' for name in modules if name != '__init__'),
            'import gluon_optbert',
        ]
    )
    return run('-W', 'ignore', '-c', program)


def test_package_and_pure_floors_load_without_mxnet():
    pure = [name for floor in FLOORS[:2] for name in floor if name in MODULES]
    done = import_without(['mxnet', 'gluonnlp', 'horovod'], pure)
    assert done.returncode == 0, done.stderr


def test_everything_loads_without_horovod_and_network():
    done = import_without(['horovod'], MODULES)
    assert done.returncode == 0, done.stderr


def test_scripts_are_not_imported_by_the_package():
    for name in MODULES:
        assert imports(name)[1].isdisjoint({'pretrain', 'finetune', 'tools', 'tests'})
