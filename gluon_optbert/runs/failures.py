"""Failures whose input was good."""

from __future__ import annotations


class RunFailed(RuntimeError):
    """A run that could not go on, though its input was good; what there was is saved as the message says."""


class Interrupted(RunFailed, KeyboardInterrupt):
    """A run that was asked to stop (Ctrl-C, SIGINT, SIGTERM) and can be resumed."""


class NotInstalled(ImportError):
    """A library that is needed now is not there; the message has the command that installs it."""
