"""Exports that several files of tests predict with."""

import pytest
from helpers.exported import HEADS, UNEVEN, with_head
from helpers.tiny import saved_model

from gluon_optbert.deployment.export import export


@pytest.fixture(scope='session')
def exports(tmp_path_factory):
    """An export of an encoder and one of each head, by kind, with an ONNX file, and ``bare``, an encoder's
    without one; only read.
    """
    place = tmp_path_factory.mktemp('exports')
    for kind, head in HEADS.items():
        export(with_head(UNEVEN, head), place / kind, onnx=True)
    export(saved_model(UNEVEN), place / 'bare')
    return place
