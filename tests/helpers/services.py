"""A predictor without a network, for tests of the service."""

import threading
import types

import numpy as np

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.deployment.predictor import Label, Value
from gluon_optbert.tasks.squad import Answer

HEADS = {
    'sentences': Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('sentence', 'label')),
    'pairs': Head('regression', (), 'STS-B', (), ('sentence1', 'sentence2', 'score')),
    'questions': Head('question_answering', task='SQuAD2.0'),
    'embeddings': PRETRAINING,
}


class FakePredictor:
    """Answers by the lengths of texts; `batches` has the texts of every pass, which waits for `let_go`."""

    def __init__(self, head=HEADS['sentences'], *, failing=None):
        self.head, self.failing, self.batches = head, failing, []
        self.engine = types.SimpleNamespace(name='none', version='1', precision='float32')
        self.threads, self.problem, self.pairs, self.cut = 1, None, True, 0
        self.max_length, self.long = 128, 'cut'
        self.let_go, self.began = threading.Event(), threading.Event()
        self.let_go.set()

    def _pass(self, instances):
        texts = [instance.first for instance in instances]
        self.batches.append(texts)
        self.began.set()
        assert self.let_go.wait(30)
        if self.failing is not None and self.failing in texts:
            raise RuntimeError('a secret of the server')

    def predict(self, instances, *, batch_size):
        """A prediction of each instance."""
        self._pass(instances)
        assert len(instances) <= batch_size
        for instance in instances:
            share = 1 / (1 + len(instance.first))
            if self.head.kind == 'question_answering':
                yield Answer(instance.second[:3], 1.5, 0, 3)
            elif self.head.kind == 'regression':
                yield Value(float(len(instance.first) + len(instance.second)))
            else:
                yield Label('1', {'0': share, '1': 1 - share}, 'positive')

    def encode(self, instances, *, pooling, normalise, batch_size):
        """An embedding of each instance."""
        self._pass(instances)
        return np.array([[len(instance.first), 1.0] for instance in instances], np.float32)
