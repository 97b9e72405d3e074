"""The heads of tasks: shapes, scores, and the way to disk and back."""

import json

import numpy as np
import pytest
from helpers.networks import HEADS, UNEVEN
from helpers.tiny import random_inputs

from gluon_optbert.architecture.heads import Head
from gluon_optbert.network.model import build, read_parameters


@pytest.mark.parametrize('head', HEADS[1:], ids=lambda head: head.kind)
def test_only_output_is_the_scores_of_a_dense_layer(head):
    """On the pooled output, or on every token."""
    model = build(UNEVEN, head=head, initial_std=0.3)
    parameters = read_parameters(model)
    whole = {
        **read_parameters(build(UNEVEN)),
        **{name: value for name, value in parameters.items() if 'task' not in name},
    }
    inputs = random_inputs(UNEVEN)
    encoded, pooled, *_ = build(UNEVEN, whole)(*inputs)
    read = (pooled if head.pooled else encoded).asnumpy()
    wanted = read @ parameters['task.weight'].T + parameters['task.bias']
    np.testing.assert_allclose(model(*inputs[:3]).asnumpy(), wanted, atol=1e-6)  # float32, sums of six


def test_names_and_columns_are_kept_and_are_no_part_of_the_network(tmp_path):
    head = Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('sentence', 'label'))
    again = Head.from_dict(json.loads(json.dumps(head.to_dict())))
    assert (again.names, again.columns) == (head.names, head.columns)
    assert again.name_of('1') == 'positive'
    plain = Head('classification', ('0', '1'), 'SST-2')
    assert plain == head and hash(plain) == hash(head) and plain.name_of('1') == '1'
    assert set(plain.to_dict()) == {'kind', 'labels', 'task'}  # as files have always had it


BOTH = {'kind': 'classification', 'labels': ['0', '1']}


@pytest.mark.parametrize(
    'change',
    [
        *({'kind': 'sentence'}, {'labels': ['a', 'b']}, {**BOTH, 'labels': ['one']}),
        *({**BOTH, 'labels': ['a', 'a']}, {**BOTH, 'names': ['no', 'no']}, {**BOTH, 'columns': ['label']}),
        *({'embedding': {'pooling': 'cls'}}, {'labels': 'ab'}, {'labels': [1, 2]}, {'columns': 'ab'}),
        *({'more': []}, {'task': None}),
    ],
)
def test_what_is_no_head_is_refused(change):
    values = {'kind': 'regression', 'labels': [], 'task': ''}
    assert Head.from_dict(values) == Head('regression')
    for wrong in ([], {'kind': 'regression'}, {**values, **change}):
        with pytest.raises(ValueError, match='^head: '):
            Head.from_dict(wrong)


def test_a_head_of_another_spelling_fits_and_one_of_another_task_does_not():
    wanted = Head('classification', ('0', '1'), 'SST-2')
    assert all(Head('classification', ('0', '1'), name).fits(wanted) for name in ('SST-2', 'sst2', ''))
    assert not Head('classification', ('0', '1'), 'CoLA').fits(wanted)
    assert not Head('classification', ('no', 'yes'), 'sst2').fits(wanted)
    assert wanted.fits(Head('classification', ('0', '1'), ''))  # of data without a name
