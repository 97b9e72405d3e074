"""How an ONNX file of an export is fed: by the names of Transformers, or by those of the exported network."""

from __future__ import annotations

from typing import Dict, Mapping, Sequence

import numpy as np

ONNX = 'model.onnx'
TRANSFORMERS_OUTPUTS = {
    'encoded': 'last_hidden_state',
    'pooled': 'pooler_output',
    'next_sentence_scores': 'seq_relationship_logits',
    'masked_scores': 'prediction_logits',  # of every token, not of the masked ones alone
    'scores': 'logits',
}


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
    """The outputs of an ONNX file by the names of the network's, whatever names the file has.

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
    theirs = {theirs: ours for ours, theirs in TRANSFORMERS_OUTPUTS.items()}
    return {theirs.get(name, name): value for name, value in named.items()}
