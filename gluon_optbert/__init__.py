"""optBERT on MXNet: prune all five widths of BERT, and train, verify and export what is left."""

from .runs import threads as _threads

_threads.use_physical_cores()  # before anything imports MXNet, which reads the setting once

__version__ = '0.1.0'
