"""Transformers' BertForPreTraining, in NumPy at double precision."""

import numpy as np
from scipy.special import erf


class BertByHand:
    """A network of the arrays and the configuration of a Hugging Face directory.

    Parameters
    ----------
    arrays : dict of name to np.ndarray
        By Transformers' names, with the heads of pre-training.
    config : dict
        As in ``config.json``.
    """

    def __init__(self, arrays, config):
        self._arrays = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
        self._heads, self._layers = config['num_attention_heads'], config['num_hidden_layers']
        self._eps = config['layer_norm_eps']

    def _norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self._eps)
        return scaled * self._arrays[name + '.LayerNorm.weight'] + self._arrays[name + '.LayerNorm.bias']

    def _dense(self, x, name):
        return x @ self._arrays[name + '.weight'].T + self._arrays[name + '.bias']

    def _attend(self, x, name):
        def heads(part):
            return np.stack(np.split(self._dense(x, f'{name}.self.{part}'), self._heads, axis=-1))

        query, key, value = heads('query'), heads('key'), heads('value')
        powers = np.exp(query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1]))
        context = powers / powers.sum(-1, keepdims=True) @ value
        attended = self._dense(np.concatenate(context, axis=-1), name + '.output.dense')
        return self._norm(attended + x, name + '.output')

    def __call__(self, ids, types, positions):
        """Encoded tokens, pooled units, NSP and MLM scores of one sequence without padding."""
        embedding, arrays = 'bert.embeddings.', self._arrays
        x = arrays[embedding + 'word_embeddings.weight'][ids]
        x = x + arrays[embedding + 'token_type_embeddings.weight'][types]
        x = self._norm(x + arrays[embedding + 'position_embeddings.weight'][: len(ids)], embedding[:-1])
        for i in range(self._layers):
            layer = f'bert.encoder.layer.{i}'
            x = self._attend(x, layer + '.attention')
            inner = gelu(self._dense(x, layer + '.intermediate.dense'))
            x = self._norm(self._dense(inner, layer + '.output.dense') + x, layer + '.output')
        pooled = np.tanh(self._dense(x[0], 'bert.pooler.dense'))
        transform = 'cls.predictions.transform'
        masked = self._norm(gelu(self._dense(x[positions], transform + '.dense')), transform)
        words, bias = arrays[embedding + 'word_embeddings.weight'], arrays['cls.predictions.decoder.bias']
        return {
            'encoded': x,
            'pooled': pooled,
            'next_sentence': self._dense(pooled, 'cls.seq_relationship'),
            'masked': masked @ words.T + bias,
        }


def gelu(x):
    """GELU with the error function."""
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))
