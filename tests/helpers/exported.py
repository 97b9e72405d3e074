"""Networks that are exported in several ways."""

import json
import os
import subprocess

import numpy as np

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.deployment.description import (
    FORMAT,
    NETWORK_FILES,
    VERSION,
    inputs_of,
    outputs_of,
    read_description,
)
from gluon_optbert.deployment.engines import network_outputs
from gluon_optbert.deployment.export import relative_difference
from gluon_optbert.deployment.library_exports import export_transformers
from gluon_optbert.deployment.mxnet_network import load_network
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import run
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.runs.files import write_manifest
from helpers.tiny import network, saved_model, vocabulary

UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9))
ARCHITECTURES = {
    'even': network(),
    'uneven': UNEVEN,
    'factorised': network((2, 3, 5, 7), e=5),
    'rows of 4,096 bytes': network((2, 3, 512, 1024)),
}
CASES = {
    'encoder': ('encoder', PRETRAINING),
    'pretraining': ('pretraining', PRETRAINING),
    'classification': ('task', Head('classification', ('no', 'yes', 'maybe'))),
    'regression': ('task', Head('regression')),
    'question answering': ('task', Head('question_answering')),
    'several labels': ('task', Head('multi_label', ('news', 'sport', 'town'))),
    'tags': ('task', Head('token_classification', ('O', 'B-town', 'I-town'))),
}
HEADS = {
    'encoder': PRETRAINING,
    'classification': Head('classification', ('no', 'yes')),
    'regression': Head('regression'),
    'question_answering': Head('question_answering'),
}
# All widths with the heads of pre-training, and all heads with uneven widths.
EVERY = [(widths, 'pretraining') for widths in ARCHITECTURES]
EVERY += [('uneven', case) for case in CASES if case != 'pretraining']


def saved_with(widths, case):
    """A model with the widths and the head of a case, its network in memory, and the kind of its export."""
    architecture, (kind, head) = ARCHITECTURES[widths], CASES[case]
    model = build(architecture, head=head, initial_std=0.3, trainable=False)
    return SavedModel(architecture, read_parameters(model), vocabulary(), head=head), model, kind


def differences(outputs, model, case, feed):
    """Distance of the outputs of an ONNX file, or some of them, from those of a network, without padding."""
    kind, head = CASES[case]
    wanted = run(model, feed, inputs_of(kind) if head.outputs else list(INPUTS))
    valid = np.arange(feed['input_ids'].shape[1]) < feed['valid_length'][:, np.newaxis]
    outputs = network_outputs(outputs, feed)
    found = []
    for (name, shape), value in zip(outputs_of(kind, head).items(), wanted):
        if name in outputs:
            tokens = valid if shape[1] == 'length' else slice(None)
            found.append(relative_difference(outputs[name][tokens], value[tokens]))
    return found


def outside(python, *words, place):
    """Output of a finished program of another environment, which cannot import this package."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith('PYTHON')}
    done = subprocess.run(
        [python, *map(str, words)],
        env={**environment, 'HF_HUB_OFFLINE': '1', 'HF_MODULES_CACHE': str(place / 'modules')},
        cwd=str(place),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def load_deployment(directory):
    """The network for MXNet in the directory of an export, and its description."""
    deployment = read_description(directory, needs=NETWORK_FILES)
    return load_network(directory, deployment), deployment


def vouched(directory, **changes):
    """Write the manifest of an export anew, as an attacker would, so that every checksum fits."""
    values = json.loads((directory / 'manifest.json').read_text())
    for name in ('format', 'version', 'gluon_optbert', 'files', 'sha256'):
        del values[name]
    write_manifest(directory, form=FORMAT, version=VERSION, **{**values, **changes})


def with_head(architecture, head, *, seed=0):
    """A model with random weights and the head of a task, or with the heads of pre-training."""
    if not head.outputs:
        return saved_model(architecture, seed=seed)
    parameters = read_parameters(build(architecture, head=head, initial_std=0.5))
    return SavedModel(architecture, parameters, vocabulary(), head=head)


def write_for_transformers(directory, architecture=UNEVEN, head=Head('classification', ('no', 'yes'))):
    """A directory for Transformers, by default one of a classifier with uneven widths."""
    export_transformers(
        with_head(architecture, head), directory, head=None if head.outputs else 'pretraining'
    )
    return directory
