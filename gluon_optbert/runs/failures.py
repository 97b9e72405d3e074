"""Failures of a run whose input was good."""

from __future__ import annotations


class RunFailed(RuntimeError):
    """A run that could not go on, though its input was good; what there was is saved as the message says."""
