"""The inputs and outputs of ONNX files by name: those of Transformers, or those of the exported network.

It needs neither MXNet nor ONNX."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

import numpy as np

from ..architecture.heads import Head
from ..network.inputs import INPUTS
from .description import inputs_of, outputs_of

ONNX, DYNAMIC, QUANTISED = 'model.onnx', 'model_dynamic.onnx', 'model_quantized.onnx'
MASKED_LM = 'masked_lm'  # a network of pre-training, of which only the scores of tokens are computed
NAMES = ('transformers', 'gluon')
TRANSFORMERS_INPUTS = ('input_ids', 'attention_mask', 'token_type_ids')
_TRANSFORMERS_OUTPUTS = {
    'encoded': 'last_hidden_state',
    'pooled': 'pooler_output',
    'next_sentence_scores': 'seq_relationship_logits',
    'masked_scores': 'prediction_logits',  # of every token, not of the masked ones alone
    'scores': 'logits',
}


def onnx_inputs(kind: str, names: str = 'transformers') -> Dict[str, Tuple]:
    """The shapes of an ONNX file's inputs by name; all are int64.

    Parameters
    ----------
    kind : str
        One of `description.KINDS`, or `MASKED_LM`.
    names : str
        One of `NAMES`. ``transformers``: an attention mask says which tokens are padding, wherever it is.
        ``gluon``: ``valid_length`` counts the tokens before the padding.
    """
    if names == 'transformers':
        return dict.fromkeys(TRANSFORMERS_INPUTS, ('batch', 'length'))
    return {name: INPUTS[name] for name in inputs_of(kind)}


def onnx_outputs(kind: str, head: Head, names: str = 'transformers') -> Dict[str, Tuple]:
    """The shapes of an ONNX file's outputs by name; all are float32.

    With the names of Transformers, the encoded tokens are not set to zero at padding, and the scores of a
    question's answer are two outputs.
    """
    if kind == MASKED_LM:
        return {'logits': ('batch', 'length', 'vocab_size')}
    shapes = outputs_of(kind, head)
    if names == 'gluon':
        return shapes
    if kind == 'task' and not head.pooled:
        return dict.fromkeys(('start_logits', 'end_logits'), ('batch', 'length'))
    shapes = {_TRANSFORMERS_OUTPUTS[name]: shape for name, shape in shapes.items()}
    if kind == 'pretraining':
        shapes['prediction_logits'] = ('batch', 'length', 'vocab_size')
    return shapes


def onnx_feed(feed: Mapping[str, np.ndarray], names: Sequence[str]) -> Dict[str, np.ndarray]:
    """The inputs of an ONNX file, by its names, from those of a network with padding at the end."""
    length = np.shape(feed['input_ids'])[1]
    valid = np.asarray(feed['valid_length'])
    every = {
        **feed,
        'token_type_ids': feed['token_types'],
        'attention_mask': np.arange(length) < valid[:, np.newaxis],
    }
    return {name: np.asarray(every[name], dtype=np.int64) for name in names}


def network_outputs(
    outputs: Mapping[str, np.ndarray], feed: Mapping[str, np.ndarray]
) -> Dict[str, np.ndarray]:
    """The outputs of an ONNX file by the names of `outputs_of`, whatever names the file has.

    Parameters
    ----------
    outputs : mapping of name to np.ndarray
    feed : mapping of input name to np.ndarray
        What the network would read. Masked positions are needed for the scores of pre-training only.
    """
    named = dict(outputs)
    if 'start_logits' in named:
        named['scores'] = np.stack([named.pop('start_logits'), named.pop('end_logits')], axis=-1)
    if 'prediction_logits' in named:
        places = np.asarray(feed['masked_positions'], dtype=np.int64)[:, :, np.newaxis]
        named['masked_scores'] = np.take_along_axis(named.pop('prediction_logits'), places, axis=1)
    theirs = {theirs: ours for ours, theirs in _TRANSFORMERS_OUTPUTS.items()}
    return {theirs.get(name, name): value for name, value in named.items()}


def onnx_entry(kind: str, head: Head, precision: str, names: str) -> Dict[str, Any]:
    """What a manifest says of an ONNX file: ``inputs`` and ``outputs`` with their shapes and types in the
    order of the file, ``precision`` (``float32``, ``int8`` or ``int8 dynamic``), and ``names``.
    """
    inputs, outputs = onnx_inputs(kind, names), onnx_outputs(kind, head, names)
    return {
        'inputs': {name: {'shape': shape, 'dtype': 'int64'} for name, shape in inputs.items()},
        'outputs': {name: {'shape': shape, 'dtype': 'float32'} for name, shape in outputs.items()},
        'precision': precision,
        'names': names,
    }
