"""NVIDIA's libraries are linked to where MXNet's library is told to look."""

import os
import shutil
import subprocess

import pytest

from gluon_optbert.runs import cuda_libraries


@pytest.fixture
def site(tmp_path):
    """A site-packages with MXNet and two wheels of NVIDIA."""
    for name in ('mxnet/libmxnet.so', 'nvidia/cublas/lib/libcublas.so.11', 'nvidia/nccl/lib/libnccl.so.2'):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def links(site):
    """The links in MXNet's directory, and where they lead."""
    return {path.name: os.readlink(path) for path in (site / 'mxnet').iterdir() if path.is_symlink()}


def test_every_library_is_linked_once_and_links_to_what_is_gone_are_removed(site):
    for _ in range(2):
        names = cuda_libraries.link_libraries(site / 'mxnet', site / 'nvidia')
        assert names == ['libcublas.so.11', 'libnccl.so', 'libnccl.so.2']
        assert links(site) == {
            'libcublas.so.11': '../nvidia/cublas/lib/libcublas.so.11',
            'libnccl.so': '../nvidia/nccl/lib/libnccl.so.2',
            'libnccl.so.2': '../nvidia/nccl/lib/libnccl.so.2',
        }
    assert (site / 'mxnet' / 'libmxnet.so').read_text() == 'mxnet/libmxnet.so'
    shutil.rmtree(site / 'nvidia' / 'cublas')
    cuda_libraries.link_libraries(site / 'mxnet', site / 'nvidia')
    assert 'libcublas.so.11' not in links(site) and len(links(site)) == 2
    shutil.rmtree(site / 'nvidia')
    assert cuda_libraries.link_libraries(site / 'mxnet', site / 'nvidia') == [] and links(site) == {}


def test_links_of_others_stay(site):
    """An installer may link every file of a wheel, MXNet's library too; links that it made elsewhere go."""
    mxnet = site / 'mxnet'
    (mxnet / 'libmxnet.so').rename(site / 'cached.so')
    (mxnet / 'libmxnet.so').symlink_to(site / 'cached.so')
    (mxnet / 'libcublas.so.11').symlink_to(site / 'cached.so')
    cuda_libraries.link_libraries(mxnet, site / 'nvidia')
    assert links(site)['libmxnet.so'] == str(site / 'cached.so')
    assert links(site)['libcublas.so.11'] == '../nvidia/cublas/lib/libcublas.so.11'


@pytest.mark.skipif(shutil.which('cc') is None, reason='needs a C compiler')
def test_library_finds_what_is_linked_beside_it(site):
    """With MXNet's search path, and no LD_LIBRARY_PATH."""
    mxnet, lib = site / 'mxnet', site / 'nvidia' / 'cublas' / 'lib'

    def build(output, *words):
        subprocess.run(['cc', '-shared', '-x', 'c', '/dev/null', '-o', output, *map(str, words)], check=True)

    build(lib / 'libcublas.so.11', '-Wl,-soname,libcublas.so.11')
    build(
        mxnet / 'libmxnet.so',
        *('-x', 'none', '-Wl,--no-as-needed', '-Wl,-rpath,${ORIGIN}', lib / 'libcublas.so.11'),
    )
    assert cuda_libraries.unresolved(mxnet / 'libmxnet.so') == ['libcublas.so.11']
    cuda_libraries.link_libraries(mxnet, site / 'nvidia')
    assert cuda_libraries.unresolved(mxnet / 'libmxnet.so') == []


def test_what_is_still_missing_is_said(site, monkeypatch, capsys):
    spec = type('Spec', (), {'submodule_search_locations': [str(site / 'mxnet')]})
    monkeypatch.setattr(cuda_libraries.importlib.util, 'find_spec', lambda name: spec)
    monkeypatch.setattr(cuda_libraries, 'unresolved', lambda path: ['libcuda.so.1'])
    assert cuda_libraries.main() == 1
    shown = capsys.readouterr()
    assert '3 libraries of NVIDIA are linked' in shown.out and "with NVIDIA's driver" in shown.err
    monkeypatch.setattr(cuda_libraries, 'unresolved', lambda path: [])
    assert cuda_libraries.main() == 0
