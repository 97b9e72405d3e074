# Where the Makefiles of the studies find things. Relative paths are those from the root of the repository.
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/..)
WORK ?= $(ROOT)/work
DATA ?= $(ROOT)/data
PYTHON ?= $(ROOT)/.venv/bin/python
from_root = $(abspath $(if $(filter /%,$(1)),$(1),$(ROOT)/$(1)))
override WORK := $(call from_root,$(WORK))
override DATA := $(call from_root,$(DATA))
