"""The embedding of a text: how one vector is made of the states of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

POOLINGS = ('mean', 'cls', 'max', 'mean_sqrt_len')
ACTIVATIONS = ('identity', 'tanh', 'relu', 'sigmoid')
SIMILARITIES = ('cosine', 'dot', 'euclidean', 'manhattan')
MOST_DENSE, MOST_UNITS = 8, 1 << 16  # layers behind a pooling, and units of each: more than any encoder has
LONGEST_NAME = 200  # characters of the name of a network
SHORTEST = 3  # tokens of a text: [CLS], one of its own, [SEP]


@dataclasses.dataclass(frozen=True)
class Embedding:
    """What follows the encoder of a network that gives embeddings, as in sentence-transformers.

    The default is that of a network of which nothing is known.

    Parameters
    ----------
    pooling : str
        One of `POOLINGS`: the mean of the encoded tokens, [CLS] and [SEP] included; the first one, [CLS]; the
        largest value of every unit; or the sum over the square root of the number of tokens.
    max_length : int, optional
        Tokens that a text is cut to, with [CLS] and [SEP]; the positions of the network unless given.
    normalise : bool
        Whether every embedding is divided by its length at the end, so that products are cosines.
    dense : tuple of (int, str)
        Dense layers behind the pooling: the units of each, and its activation, one of `ACTIVATIONS`.
    similarity : str
        By which embeddings are compared, one of `SIMILARITIES`.
    prompts : tuple of (str, str)
        Names and texts of what may be put before a text; nothing is put there by itself.
    index : str
        The name of the network whose embeddings these come near, number by number, for a query encoder: it
        searches an index that was made with that network. Empty for all others.

    Raises
    ------
    ValueError
        If a value is none of these.
    """

    pooling: str = 'mean'
    max_length: int | None = None
    normalise: bool = True
    dense: tuple[tuple[int, str], ...] = ()
    similarity: str = 'cosine'
    prompts: tuple[tuple[str, str], ...] = ()
    index: str = ''

    def __post_init__(self):
        def need(right: bool, name: str, wanted: str) -> None:
            if not right:
                raise ValueError(f'{name} must be {wanted}, found {getattr(self, name)!r:.200}')

        def pairs(name: str, first: type) -> bool:
            value = getattr(self, name)
            return isinstance(value, tuple) and all(
                isinstance(item, tuple) and tuple(map(type, item)) == (first, str) for item in value
            )

        need(self.pooling in POOLINGS, 'pooling', f'one of {", ".join(POOLINGS)}')
        length = self.max_length
        need(
            length is None or type(length) is int and length >= SHORTEST,
            'max_length',
            f'a whole number of tokens from {SHORTEST}',
        )
        need(isinstance(self.normalise, bool), 'normalise', 'true or false')
        need(
            pairs('dense', int)
            and len(self.dense) <= MOST_DENSE
            and all(0 < units <= MOST_UNITS and name in ACTIVATIONS for units, name in self.dense),
            'dense',
            f'at most {MOST_DENSE} pairs of a number of units and one of {", ".join(ACTIVATIONS)}',
        )
        need(self.similarity in SIMILARITIES, 'similarity', f'one of {", ".join(SIMILARITIES)}')
        need(pairs('prompts', str), 'prompts', 'pairs of a name and a text')
        need(
            isinstance(self.index, str) and len(self.index) <= LONGEST_NAME, 'index', 'the name of a network'
        )

    def width(self, h: int) -> int:
        """The numbers of an embedding of a network with the hidden size h."""
        return self.dense[-1][0] if self.dense else h

    def length(self, positions: int) -> int:
        """The tokens that a text is cut to by a network with so many positions."""
        return min(self.max_length or positions, positions)

    def changed(self, **changes: Any) -> Embedding:
        """The embedding with other fields; None leaves a field as it is."""
        return dataclasses.replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )

    @property
    def described(self) -> str:
        """A line for people."""
        steps = [f'{self.pooling} of the tokens']
        steps += [f'a dense layer to {units} with {activation}' for units, activation in self.dense]
        steps += ['length 1'] if self.normalise else []
        cut = f'; texts are cut to {self.max_length} tokens' if self.max_length else ''
        return (
            ', '.join(steps) + cut + (f'; a query encoder for an index of {self.index}' if self.index else '')
        )

    def to_dict(self) -> dict[str, Any]:
        """The embedding as JSON values."""
        values = {
            **dataclasses.asdict(self),
            'dense': [list(layer) for layer in self.dense],
            'prompts': dict(self.prompts),
        }
        return {name: value for name, value in values.items() if name != 'index' or value}

    @classmethod
    def from_dict(cls, values: Any) -> Embedding:
        """The inverse of `to_dict`; raises ValueError if the values are something else."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not set(values) <= names:
            raise ValueError(f'wanted some of {", ".join(sorted(names))}, found {values!r:.200}')
        values = dict(values)
        if isinstance(values.get('dense'), list):
            values['dense'] = tuple(
                tuple(layer) if isinstance(layer, list) else layer for layer in values['dense']
            )
        if isinstance(values.get('prompts'), Mapping):
            values['prompts'] = tuple(values['prompts'].items())
        return cls(**values)
