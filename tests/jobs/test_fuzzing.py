"""Hostile input as properties: whatever is read, the answer is a right result or a clear error.

Each test builds a case and hands it to the code in `guarded`, which fails on any error but those that a
command turns into a line, on a file opened outside of the case's directory, on a started program, and on a
pickle. Some dozens of cases are tried for every reader, or as many as `HOSTILE_CASES` says."""

import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.checkpoints import write_gluonnlp, write_google, write_hugging_face
from helpers.exported import write_for_transformers
from helpers.tiny import (
    contents,
    npy,
    random_records,
    seal,
    write_saved_model,
    write_shards,
    write_signed_shard,
)
from hypothesis import HealthCheck, given, settings, strategies as st

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import check_parameters
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_source
from gluon_optbert.network.saved_model import FORMAT, VERSION, read_model
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.files import write_manifest
from gluon_optbert.runs.mxnet_arrays import read_arrays
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill, read_yaml, to_dict
from gluon_optbert.text import shards as format_
from gluon_optbert.text.make_shards import ShardRecipe
from gluon_optbert.text.shards import Shards
from gluon_optbert.training.recipe import PretrainRecipe

CASES = int(os.environ.get('HOSTILE_CASES', 40))
OPTIONS = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    derandomize='HOSTILE_CASES' not in os.environ,
    suppress_health_check=list(HealthCheck),
)
RECIPES = (ShardRecipe, PretrainRecipe, PruneRecipe)
FORBIDDEN = tuple(
    'pickle.find_class os.system subprocess.Popen os.exec os.posix_spawn socket.connect'.split()
)
LONGEST_MESSAGE = 20_000  # characters; every problem of a recipe is said, but none at length


class Audit:
    """Reports of Python on itself (PEP 578) while a case is read; the hook stays installed, as hooks do."""

    def __init__(self):
        self.inside = None
        self.forbidden = []
        sys.addaudithook(self._heard)

    def _heard(self, event, arguments):
        if self.inside is None:
            return
        if event in FORBIDDEN:
            self.forbidden.append(event)
        elif event == 'open' and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(
                (str(self.inside), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
            ):
                self.forbidden.append(f'opened {path}')


AUDIT = Audit()


@contextlib.contextmanager
def guarded(directory):
    """Lets pass the errors that a command says in one line, if they are clear; nothing else may happen
    outside `directory`.
    """
    AUDIT.inside, AUDIT.forbidden = directory.resolve(), []
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        assert type(error) in (ValueError, RecipeError, FileNotFoundError), f'{type(error).__name__}: {error}'
        first, *listed = str(error).split('\n')  # a line, and a list below it where that is long
        assert first and all(line.startswith('  ') for line in listed), f'no clear line: {str(error)[:300]!r}'
        assert len(str(error)) < LONGEST_MESSAGE
    finally:
        AUDIT.inside = None
    assert not AUDIT.forbidden, AUDIT.forbidden


numbers = st.integers() | st.sampled_from([0, -1, 2**31, 2**63, 10**30]) | st.floats()
words = st.text(max_size=20) | st.sampled_from(
    ['', '\0', '../vocab.txt', '/etc/passwd', 'x' * 5000, '\ud800', 'train-00000.npz']
)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def mutated_json(draw, good):
    """JSON text: a good value with some parts replaced, removed or added; or any value, or any text."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(
            st.text()
            | st.sampled_from(['', '[' * 100_000, '{"a":' * 100_000, '9' * 10_000, 'NaN', '\ufeff{}'])
        )
    if kind == 1:
        return json.dumps(draw(json_values))
    value = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        value = _mutated(draw, value)
    return json.dumps(value)


def _mutated(draw, value):
    """A JSON value with one change at a random depth."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(value)))
        change = draw(st.integers(0, 4))
        if change == 0:
            del value[name]
        elif change == 1:
            value[draw(words)] = value[name]
        else:
            value[name] = _mutated(draw, value[name])
        return value
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        place = draw(st.integers(0, len(value) - 1))
        value[place] = _mutated(draw, value[place])
        return value
    return draw(json_values)


@st.composite
def mutated_bytes(draw, good):
    """Bytes with some overwritten, removed, inserted or cut off."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 5))):
        place, kind = draw(st.integers(0, max(len(content) - 1, 0))), draw(st.integers(0, 4))
        if kind == 0:
            del content[place:]
        elif kind == 1:
            del content[place : place + draw(st.integers(1, 64))]
        elif kind == 2:
            content[place:place] = draw(st.binary(min_size=1, max_size=16))
        else:
            replacement = draw(
                st.sampled_from([b'\0', b'\xff', b'\x7f', b'\xff' * 8, b'\0' * 8])
                | st.binary(min_size=1, max_size=4)
            )
            content[place : place + len(replacement)] = replacement
    return bytes(content)


yaml_texts = (
    st.text()
    | st.binary()
    | st.builds(
        lambda name, tag, text: f'{name}: !!{tag} {text}\n',
        st.sampled_from(['seed', 'model', 'targets']),
        st.sampled_from(
            (
                'int float bool null timestamp binary set omap pairs merge python/name:os.system '
                'python/object/apply:os.system'
            ).split()
        ),
        st.sampled_from(['', 'x', '[ls]', '{}', '2020-99-99', '0b', '1:99', '~']),
    )
    | st.sampled_from(
        [
            '[' * 5_000,
            '{a: ' * 5_000,
            'seed: 2020-99-99',
            'a: *b',
            '? [1]\n: 2',
            '%YAML 9.9\n---\na: 1',
            'seed: 0x',
            'seed: 1_000',
            'a: "\\ud800"',
            '\ufeffseed: 1',
            'seed: ' + '9' * 10_000,
        ]
    )
)


@pytest.mark.slow
@OPTIONS
@given(cls=st.sampled_from(RECIPES), data=st.data())
def test_recipe_file_of_any_text(tmp_path, cls, data):
    values = st.dictionaries(st.sampled_from(list(cls.model_fields)) | words, json_values | st.dates())
    text = data.draw(yaml_texts | values.map(yaml.safe_dump))
    path = tmp_path / 'recipe.yaml'
    path.write_bytes(encoded(text))
    with guarded(tmp_path):
        recipe = fill(cls, read_yaml(path), source=str(path))
        assert fill(cls, to_dict(recipe)) == recipe


@pytest.mark.slow
@OPTIONS
@given(cls=st.sampled_from(RECIPES), data=st.data())
def test_any_command_line(tmp_path, cls, data):
    flags = st.sampled_from(['--' + name.replace('_', '-') for name in cls.model_fields])
    words_ = data.draw(st.lists(flags | words | st.builds('{}={}'.format, flags, words), max_size=8))
    with guarded(tmp_path):
        try:
            parse(
                cls, [word for word in words_ if not word.startswith('/')], description='Any.', example='any'
            )
        except SystemExit as end:
            assert end.code in (0, 2)


forms = st.sampled_from(
    (
        'bert_{} l{}_h{}_a{} l{}_h{}_a{}_k{}_v{}_f{}_e{} undivided_every_{} undivided_keep_{}_{} '
        'optbert_{}m uniform_{}m albert_e{} l{}_h{}_a{}_undivided_keep_{}'
    ).split()
)


@pytest.mark.slow
@OPTIONS
@given(
    name=st.builds(
        lambda form, values: form.format(*values),
        forms,
        st.lists(
            st.integers(0, 20) | st.sampled_from(['', '-1', '9' * 9, '9' * 30, '٣', '1e9', '0x1', ' 1']),
            min_size=7,
            max_size=7,
        ),
    )
    | words
)
def test_architecture_of_any_name(tmp_path, name):
    with guarded(tmp_path):
        if not os.path.exists(name.replace('\0', '').encode('utf-8', 'replace')):
            architecture = resolve(name)
            assert Architecture.from_json(architecture.to_json()) == architecture


class Payload:
    """Would leave a file behind if it were unpickled."""

    def __reduce__(self):
        return os.system, ('touch pickled',)


def members(good):
    """The content of one npy file: good values as others, a pickle, or a header that promises too much."""
    return st.one_of(
        mutated_bytes(npy(good)),
        st.just(npy(np.array([Payload()] * 4, object))),
        st.sampled_from('float32 int64 uint8 S3 >u2 complex64'.split()).map(
            lambda kind: npy(good.astype(kind))
        ),
        st.sampled_from([(-1,), (1, -1), (-1, 1)]).map(lambda shape: npy(good.reshape(shape))),
        st.sampled_from([b'9' * 12, b'-1', b'()', b'4L']).map(
            lambda side: npy(good).replace(b'(4,', b'(' + side)
        ),
    )


@pytest.fixture
def directory(tmp_path):
    """Shards, of which each case replaces the first and the manifest."""
    return write_shards(tmp_path / 'shards')


@pytest.mark.slow
@OPTIONS
@given(data=st.data())
def test_shard_of_any_members_that_the_manifest_vouches_for(directory, data):
    records = random_records(4)
    arrays = {name: np.ascontiguousarray(records[name]) for name in records.dtype.names}
    bad = data.draw(st.sets(st.sampled_from(records.dtype.names), max_size=2))
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, 'w', data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
    ) as npz:
        for name, values in arrays.items():
            npz.writestr(f'{name}.npy', data.draw(members(values)) if name in bad else npy(values))
        for name in data.draw(
            st.lists(st.sampled_from(['../../out', '/out.npy', 'input_ids.npy', 'x\0.npy']), max_size=1)
        ):
            npz.writestr(zipfile.ZipInfo(name), bytes(data.draw(st.sampled_from([0, 10, 20_000_000]))))
    content = data.draw(st.just(packed.getvalue()) | mutated_bytes(packed.getvalue()))
    write_signed_shard(directory, content)
    with guarded(directory):
        read = Shards.open(directory).read(0)
        assert (read.dtype, len(read)) == (records.dtype, 4)
    assert not Path('pickled').exists()


def encoded(text):
    """Text as UTF-8, lone surrogates too; bytes as they are."""
    return text if isinstance(text, bytes) else text.encode('utf-8', 'surrogatepass')


def changed(name, good):
    """Any bytes in place of those of a file of some name; most of them are like the good ones."""
    if name.endswith('.yaml'):
        return yaml_texts.map(encoded)
    if name.endswith('.json'):
        like = json.loads(good or '{"kind": "classification", "labels": ["a", "b"], "task": "T"}')
        return mutated_json(like).map(encoded)
    return mutated_bytes(good)


def _read_architecture(directory):
    architecture = resolve(directory)
    assert Architecture.from_json(architecture.to_json()) == architecture


def _read_shards(directory):
    for split in format_.SPLITS:
        shards = Shards.open(directory, split=split)
        shards.vocabulary()
        for number in range(len(shards.files)):
            shards.read(number)


def _read_parameters(directory):
    path = directory / 'model.params'
    assert sum(array.nbytes for array in read_arrays(path).values()) <= path.stat().st_size


def _read_model(directory):
    saved = read_model(directory)
    assert isinstance(saved.progress, Progress) and isinstance(saved.recipe, dict)
    assert isinstance(saved.progress.trained_steps, int)


def _add_code(directory):
    """The code that a directory for Transformers has is never run, for it would leave a file behind."""
    (directory / 'modeling_optbert.py').write_text("open('executed', 'w')\n")
    if (directory / 'tokenizer.json').exists():
        (directory / 'vocab.txt').unlink()


def _import(directory):
    params = next(directory.glob('*.params'), directory)
    model = convert(read_source(str(params))).model
    check_parameters(model.parameters, model.architecture, model.head)
    assert not Path('executed').exists()


def _seal(directory):
    """The digest of a manifest vouches for its values, where it has any."""
    path = directory / 'manifest.json'
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        seal(path, json.loads(path.read_bytes()))


SAFE = 'model.safetensors'
TENSORFLOW = ('bert_config.json', 'bert_model.ckpt.index', 'bert_model.ckpt.data-00000-of-00001')
VOUCH = partial(write_manifest, form=FORMAT, version=VERSION)
OF_A_MODEL = ('architecture.json', 'head.json', 'model.params', 'progress.json', 'recipe.yaml', 'vocab.txt')
READERS = {  # what makes a directory, its files, what reads it, and what vouches for them
    'manifest of shards': (write_shards, ('manifest.json',), _read_shards, _seal),
    'architecture': (write_saved_model, ('architecture.json',), _read_architecture, None),
    'parameters': (write_saved_model, ('model.params',), _read_parameters, None),
    'model directory': (write_saved_model, OF_A_MODEL, _read_model, VOUCH),
    'manifest of a model': (write_saved_model, ('manifest.json',), _read_model, _seal),
    'TensorFlow': (write_google, TENSORFLOW, _import, None),
    'GluonNLP': (write_gluonnlp, ('bert_2_8_2_tiny.params', 'tiny.vocab'), _import, None),
    'Transformers': (write_for_transformers, ('config.json', 'tokenizer.json', SAFE), _import, None),
    'Hugging Face': (write_hugging_face, ('config.json', 'vocab.txt', SAFE), _import, None),
}
for files, *shards in (
    (f'{SAFE}.index.json', 'model-00001-of-00002.safetensors'),
    ('pytorch_model.bin',),
    ('old pytorch_model.bin',),
    ('pytorch_model.bin.index.json', 'pytorch_model-00002-of-00002.bin'),
):
    write = partial(write_hugging_face, files=files)
    READERS[files] = (write, (files.removeprefix('old '), *shards), _import, None)


@pytest.mark.slow
@pytest.mark.parametrize('make, names, read, vouch', READERS.values(), ids=READERS)
def test_directory_of_which_a_file_is_anything(tmp_path, make, names, read, vouch):
    make(tmp_path / 'good')

    @OPTIONS
    @given(name=st.sampled_from(names), vouched=st.booleans(), data=st.data())
    def read_right_or_refused_clearly(name, vouched, data):
        with tempfile.TemporaryDirectory(dir=tmp_path) as case:
            directory = Path(shutil.copytree(tmp_path / 'good', Path(case) / 'case'))
            path = directory / name
            path.write_bytes(data.draw(changed(name, path.read_bytes() if path.exists() else b'')))
            if vouched and vouch:
                vouch(directory)
            if read is _import:
                _add_code(directory)
            before = contents(directory)
            with guarded(directory):
                read(directory)
            assert contents(directory) == before  # whatever is in it, reading changes nothing

    read_right_or_refused_clearly()


def fail(error):
    raise error


@pytest.mark.parametrize(
    'act',
    [
        lambda: fail(ValueError('')),
        lambda: fail(ValueError('one\ntwo')),
        lambda: fail(ValueError('x' * 30_000)),
        lambda: b'\xff'.decode(),
        lambda: Path('/proc/self/status').read_text(),
        lambda: subprocess.run(['true']),
        lambda: pickle.loads(pickle.dumps(OrderedDict())),
    ],
    ids=['empty', 'two lines', 'endless', 'of another type', 'read elsewhere', 'program', 'pickle'],
)
def test_guard_notices(tmp_path, act):
    with pytest.raises(AssertionError), guarded(tmp_path):
        act()
