"""Fixtures of the tests of pages."""

import pytest

from gluon_optbert.reporting import sections


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Figures are made, and their pictures are empty: `tests/commands` draws whole pages."""
    monkeypatch.setattr(sections, 'drawn', lambda *_: b'')
