"""Networks that are exported in several ways."""

import json

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.deployment.description import FORMAT, VERSION
from gluon_optbert.deployment.library_exports import export_transformers
from gluon_optbert.network.model import build, read_parameters
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
# All widths with the heads of pre-training, and all heads with uneven widths.
EVERY = [(widths, 'pretraining') for widths in ARCHITECTURES]
EVERY += [('uneven', case) for case in CASES if case != 'pretraining']


def saved_with(widths, case):
    """A model with the widths and the head of a case, its network in memory, and the kind of its export."""
    architecture, (kind, head) = ARCHITECTURES[widths], CASES[case]
    model = build(architecture, head=head, initial_std=0.3, trainable=False)
    return SavedModel(architecture, read_parameters(model), vocabulary(), head=head), model, kind


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
