"""The losses of pre-training and of the tasks, as sums over a batch."""

from __future__ import annotations

from mxnet.gluon import HybridBlock

from ..architecture.heads import Head
from .encoder import MASKED_SCORE, padding


class PretrainingLoss(HybridBlock):
    """MLM and NSP cross entropies of one worker's share of a batch (optBERT, equation (1)).

    Parameters
    ----------
    accuracy : bool
        Whether to count correct predictions too, and to give the MLM loss of every instance.

    Inputs:
        - **next_sentence_scores** : shape (batch, 2)
        - **masked_scores** : shape (batch, masked, vocab_size)
        - **masked_ids**, **masked_weights** : shape (batch, masked)
        - **next_sentence_labels**, **instance_weights** : shape (batch,)

    Outputs:
        - **mlm** : sum over masked tokens, shape (1,), float32
        - **nsp** : sum over instances, shape (1,), float32
        - **mlm_correct**, **nsp_correct** : numbers of correct predictions, shape (1,); with `accuracy` only
        - **mlm_by_instance** : sum over an instance's masked tokens, shape (batch,); with `accuracy` only
    """

    def __init__(self, accuracy: bool = False, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._accuracy = accuracy

    def hybrid_forward(
        self,
        F,
        next_sentence_scores,
        masked_scores,
        masked_ids,
        masked_weights,
        next_sentence_labels,
        instance_weights,
    ):
        logs, correct = [], []
        for scores, labels, weights in (
            (masked_scores, masked_ids, masked_weights),
            (next_sentence_scores, next_sentence_labels, instance_weights),
        ):
            logs.append(F.pick(F.log_softmax(scores, axis=-1), labels, axis=-1) * weights)
            if self._accuracy:
                correct.append(F.sum((F.argmax(scores, axis=-1) == labels) * weights))
        entropies = [-F.sum(log) for log in logs]
        return (*entropies, *correct, -F.sum(logs[0], axis=1)) if self._accuracy else tuple(entropies)


class TaskLoss(HybridBlock):
    """The loss of a task's head, summed over a worker's share of a batch (Devlin et al., 2018, section 4).

    It is the squared error for a regression and the cross entropy for a classification. For question
    answering it is the mean of two cross entropies: of the positions of the answer's first and last token.
    For several labels at a time it is the mean of the binary cross entropies of all labels. For tokens it is
    the mean of the cross entropies of an instance's tokens that have a label.

    Inputs:
        - **scores** : shape (batch, outputs), or (batch, length, outputs) where the head is not pooled
        - **labels** : shape (batch,); (batch, 2) for question answering; (batch, outputs), zeros and ones,
          for several labels; (batch, length), -1 for no label, for tokens
        - **weights** : shape (batch,)
        - **valid_length** : shape (batch,), for question answering

    Outputs:
        - **loss** : shape (1,), float32
    """

    def __init__(self, head: Head, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._kind = head.kind

    def hybrid_forward(self, F, scores, labels, weights, valid_length=None):
        if self._kind == 'regression':
            return F.sum(F.square(F.reshape(scores, shape=(-1,)) - labels) * weights)
        if self._kind == 'classification':
            return -F.sum(F.pick(F.log_softmax(scores, axis=-1), labels, axis=-1) * weights)
        if self._kind == 'multi_label':
            entropies = F.Activation(scores, act_type='softrelu') - scores * labels
            return F.sum(F.mean(entropies, axis=1) * weights)
        if self._kind == 'token_classification':
            known = labels >= 0  # `pick` takes the first class elsewhere
            entropies = F.pick(F.log_softmax(scores, axis=-1), labels, axis=-1) * known
            means = F.sum(entropies, axis=1) / F.maximum(F.sum(known, axis=1), 1)
            return -F.sum(means * weights)
        padded = padding(F, F.contrib.arange_like(scores, axis=1), valid_length)  # (batch, length)
        entropies = F.log_softmax(
            F.broadcast_add(scores, F.expand_dims(padded * MASKED_SCORE, axis=2)), axis=1
        )
        both = F.pick(F.transpose(entropies, axes=(0, 2, 1)), labels, axis=2)  # (batch, 2)
        return -F.sum(F.mean(both, axis=1) * weights)
