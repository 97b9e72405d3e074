"""The rooms of the package: what each may import, and that it loads without Horovod, GPU and network."""

import ast
import functools
import importlib.util
import re
import sys

import pytest
from helpers.commands import run_without
from helpers.tiny import ROOT

import gluon_optbert

PACKAGE = ROOT / 'gluon_optbert'
# A room imports itself, the rooms that the table of docs/code.md names, the standard library, its libraries.
ROOMS = {
    room: allowed.split(', ') if allowed else []
    for room, allowed in re.findall(
        r'^\| \d \| `(\w+)/` \| .* \| (.*?) ?\|$', (ROOT / 'docs' / 'code.md').read_text(), re.MULTILINE
    )
}
ROOMS['commands'] = sorted(ROOMS.keys() - {'commands'})  # above all others
LIBRARIES = {
    'runs': set('filelock gluonnlp jinja2 mxnet numpy psutil pydantic pydantic_core tqdm yaml'.split()),
    'architecture': {'pydantic'},
    'text': {'numpy', 'pydantic', 'blingfire', 'sacremoses', 'tokenizers'},
    'cutting': {'numpy'},
    'network': {'numpy', 'mxnet', 'gluonnlp', 'yaml'},
    'tasks': {'numpy', 'pydantic', 'scipy', 'sklearn'},
    'reporting': {'jinja2', 'markupsafe', 'matplotlib', 'numpy', 'pydantic', 'yaml'},
    'training': {'numpy', 'mxnet', 'gluonnlp', 'horovod', 'psutil', 'pydantic'},
    'importing': {'google_crc32c', 'gluonnlp', 'mxnet', 'numpy', 'pydantic', 'safetensors', 'tokenizers'},
    'deployment': {'numpy', 'mxnet', 'onnx', 'onnxruntime', 'openvino', 'pydantic', 'safetensors'}
    | {'tokenizers', 'torch', 'transformers'},
    'analysis': {'numpy', 'mxnet', 'scipy', 'sklearn'},
    'serving': {'fastapi', 'h11', 'jinja2', 'starlette', 'uvicorn', 'markdown_it', 'pydantic'},
    'pruning': {'filelock', 'matplotlib', 'mxnet', 'numpy', 'optuna', 'pydantic', 'scipy'},
    'finetuning': {'numpy', 'mxnet', 'gluonnlp', 'pydantic'},
    'reproduction': {'numpy', 'mxnet', 'matplotlib', 'pydantic', 'scipy'},
    'commands': {'matplotlib', 'numpy', 'pydantic'},
}
OF_THE_SERVICE = LIBRARIES['serving'] - {'jinja2', 'pydantic'}
WITHOUT_MXNET = ('architecture', 'cutting', 'text', 'tasks')
# what loads without MXNet and the libraries of training, in rooms that need them otherwise
PREDICTING = (
    'commands.predicting deployment.description deployment.engines deployment.hub deployment.instances '
    'deployment.lineage deployment.measures deployment.predictor network.inputs runs.command_line '
    'runs.display runs.machine serving.batching serving.bodies serving.settings'
).split()


def modules():
    """The modules of all rooms, as ``room.module``."""
    return sorted(
        f'{path.parent.name}.{path.stem}' for path in PACKAGE.glob('*/*.py') if path.parent.name in ROOMS
    )


MODULES = modules()


def path_of(name):
    return PACKAGE / (name.replace('.', '/') + '.py')


def running(tree):
    """The nodes of a program, without what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and getattr(node.test, 'id', '') == 'TYPE_CHECKING'):
            yield node
            yield from running(node)


@functools.cache
def tree_of(name):
    return ast.parse(path_of(name).read_text(encoding='utf-8'))


@functools.cache
def imports(name):
    """Imports anywhere in a module: modules and names of the package, and top-level names of all else."""
    own, others = set(), set()
    parents = ['gluon_optbert', *name.split('.')[:-1]]
    for node in running(tree_of(name)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base += node.module.split('.') if node.module else []
            names = ['.'.join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for full in names:
            top, _, rest = full.partition('.')
            (own if top == 'gluon_optbert' else others).add(rest if top == 'gluon_optbert' else top)
    return own, others


def rooms_of(name):
    """The rooms that a module imports from, beside its own; ``''`` stands for the package itself."""
    rooms = {full.partition('.')[0] for full in imports(name)[0]}
    rooms = {room if (PACKAGE / room).is_dir() else '' for room in rooms}
    return rooms - {name.partition('.')[0]}


def test_the_folder_listing_is_the_table():
    assert {path.parent.name for path in PACKAGE.glob('*/*.py')} == set(ROOMS)


def test_no_room_is_above_itself():
    """The table has no circle: rooms can be put in an order in which each imports from before it."""
    placed = set()
    while len(placed) < len(ROOMS):
        ready = {room for room, allowed in ROOMS.items() if room not in placed and set(allowed) <= placed}
        assert ready, f'a circle among {sorted(set(ROOMS) - placed)}'
        placed |= ready


@pytest.mark.parametrize('name', MODULES)
def test_module_imports_what_its_room_may(name):
    room = name.partition('.')[0]
    allowed = {*ROOMS[room], ''}
    wrong = sorted(rooms_of(name) - allowed)
    assert not wrong, (
        f'{name} imports {", ".join(wrong)}; {room} may import {", ".join(ROOMS[room]) or "no room"}'
    )
    others = sorted(imports(name)[1] - LIBRARIES[room] - sys.stdlib_module_names)
    assert not others, f'{name} imports {", ".join(others)}; libraries of {room}: {sorted(LIBRARIES[room])}'


def test_only_distributed_imports_horovod():
    assert [name for name in MODULES if 'horovod' in imports(name)[1]] == ['training.distributed']


def test_only_distributed_asks_for_gpus():
    asking = {
        name
        for name in MODULES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Attribute) and node.attr in ('gpu', 'num_gpus')
    }
    assert asking == {'training.distributed'}


def import_without(blocked, names):
    """Output of importing the modules in a process without network and the blocked packages."""
    refusing = (
        'import socket',
        'def refuse(*_, **__): raise OSError("no network")',
        'socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse',
    )
    own = (f'import gluon_optbert.{name}' for name in names if not name.endswith('__main__'))
    return run_without(blocked, *refusing, 'import gluon_optbert', *own)


def test_package_and_pure_rooms_load_without_mxnet():
    pure = [name for name in MODULES if name.partition('.')[0] in WITHOUT_MXNET]
    assert len(pure) > 5
    done = import_without(['mxnet', 'gluonnlp', 'horovod'], pure)
    assert done.returncode == 0, done.stderr


def test_predicting_loads_without_mxnet_and_what_only_training_needs():
    missing = ['mxnet', 'gluonnlp', 'horovod', 'onnx', 'scipy', 'sklearn', 'matplotlib', 'safetensors']
    missing += ['blingfire', 'sacremoses', 'optuna', 'google_crc32c', 'jinja2']
    done = import_without(missing, PREDICTING)
    assert done.returncode == 0, done.stderr


def test_everything_loads_without_horovod_and_network():
    missing = {name for name in OF_THE_SERVICE if importlib.util.find_spec(name) is None}
    done = import_without(['horovod'], [name for name in MODULES if not imports(name)[1] & missing])
    assert done.returncode == 0, done.stderr


def test_rooms_do_not_go_through_the_names_of_the_package():
    inside = [name for name in MODULES if not name.startswith('commands.')]
    assert [name for name in inside if any(one.startswith('api') for one in imports(name)[0])] == []
    names = set(gluon_optbert.__all__)
    assert [name for name in inside if imports(name)[0] & names] == []
