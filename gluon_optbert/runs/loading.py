"""Loads MXNet with the threads of `machine.settings`, for programs that import it or a room that does.

``import gluon_optbert.runs.loading`` goes before such imports. Commands and the functions of the package see
to it themselves."""

from .machine import load_mxnet

load_mxnet()
