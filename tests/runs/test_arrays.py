"""Parameter files: the bytes of MXNet's own, and nothing that a damaged one states is believed."""

import mxnet as mx
import numpy as np
import pytest

from gluon_optbert.runs.mxnet_arrays import check_arrays, read_arrays, write_arrays

ARRAYS = {
    'weight': np.arange(12, dtype=np.float32).reshape(3, 4),
    'none': np.zeros((0, 3), np.float32),
    'ü': np.array([-7], np.int64),
    'half': np.ones((1, 2, 1), np.float16),
}
WANTED = {name: (array.shape, array.dtype) for name, array in ARRAYS.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'some.params'


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'float16', 'uint8', 'int32', 'int8', 'int64'])
def test_bytes_are_those_of_mxnet_and_read_back(path, tmp_path, dtype):
    arrays = {
        name: np.random.RandomState(0).uniform(0, 100, shape).astype(dtype)
        for name, shape in (('a', (1,)), ('b.c', (2, 3)), ('', (1, 2, 3, 4)))
    }
    arrays['turned'] = arrays['b.c'].T
    write_arrays(path, arrays)
    mx.nd.save(
        str(tmp_path / 'theirs'), {name: mx.nd.array(one, dtype=dtype) for name, one in arrays.items()}
    )
    assert path.read_bytes() == (tmp_path / 'theirs').read_bytes()
    result = read_arrays(path)
    assert list(result) == list(arrays)
    for name, value in arrays.items():
        assert result[name].dtype == value.dtype and result[name].flags.writeable
        assert np.array_equal(result[name], value)


@pytest.mark.parametrize(
    'wanted, message',
    [
        ({**WANTED, 'more': ((1,), np.dtype('f4'))}, 'the number of arrays is not'),
        ({**WANTED, 'weight': ((4, 3), np.dtype('f4'))}, r'weight \(4, 3\) is not'),
        ({**WANTED, 'half': ((1, 2, 1), np.dtype('f4'))}, r'half \(1, 2, 1\) is not'),
        ({'other' if name == 'ü' else name: form for name, form in WANTED.items()}, 'the name other is not'),
    ],
)
def test_file_of_other_arrays_is_refused(path, wanted, message):
    write_arrays(path, ARRAYS)
    with pytest.raises(ValueError, match='some.params: ' + message):
        check_arrays(path, wanted)


def test_arrays_that_are_sparse_or_have_no_names_are_refused(path):
    ones = mx.nd.ones((4, 2))
    for arrays, said in (([ones], 'no names'), ({'a': ones.tostype('row_sparse')}, 'storage 1')):
        mx.nd.save(str(path), arrays)
        with pytest.raises(ValueError, match=f'some.params: .*{said}'):
            read_arrays(path)


def test_file_cut_anywhere_is_refused(path):
    """By the reader, and by the check, which reads no values: a file that ends in them lacks what follows."""
    write_arrays(path, ARRAYS)
    check_arrays(path, WANTED)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match='some.params: not a parameter file'):
            read_arrays(path)
        with pytest.raises(ValueError, match='some.params: .* is not the wanted one'):
            check_arrays(path, WANTED)
    path.write_bytes(whole + b'\0')
    with pytest.raises(ValueError, match='more bytes follow'):
        read_arrays(path)
    with pytest.raises(ValueError, match='something stands behind'):
        check_arrays(path, WANTED)
