"""The embedding of a text: how one vector is made of the states of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, StrictBool, StrictInt
from pydantic.dataclasses import dataclass

from ..runs.files import checked

Pooling = Literal['mean', 'cls', 'max', 'mean_sqrt_len']
Activation = Literal['identity', 'tanh', 'relu', 'sigmoid']
Similarity = Literal['cosine', 'dot', 'euclidean', 'manhattan']
POOLINGS, ACTIVATIONS, SIMILARITIES = map(get_args, (Pooling, Activation, Similarity))
MOST_DENSE, MOST_UNITS = 8, 1 << 16  # layers behind a pooling, and units of each: more than any encoder has
LONGEST_NAME = 200  # characters of the name of a network
SHORTEST = 3  # tokens of a text: [CLS], one of its own, [SEP]
Units = Annotated[StrictInt, Field(ge=1, le=MOST_UNITS)]
Prompts = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(lambda prompts: tuple(prompts.items()) if isinstance(prompts, Mapping) else prompts),
]


@dataclass(frozen=True)
class Embedding:
    """The part behind the encoder of a network that gives embeddings, as in sentence-transformers.

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
    """

    pooling: Pooling = 'mean'
    max_length: Annotated[StrictInt, Field(ge=SHORTEST)] | None = None
    normalise: StrictBool = True
    dense: Annotated[tuple[tuple[Units, Activation], ...], Field(max_length=MOST_DENSE)] = ()
    similarity: Similarity = 'cosine'
    prompts: Prompts = ()
    index: Annotated[str, Field(max_length=LONGEST_NAME)] = ''

    def width(self, h: int) -> int:
        """The numbers of an embedding of a network with the hidden size h."""
        return self.dense[-1][0] if self.dense else h

    def length(self, positions: int) -> int:
        """The tokens that a text is cut to by a network with so many positions."""
        return min(self.max_length or positions, positions)

    def changed(self, **changes: Any) -> Embedding:
        """The embedding with other fields; None leaves a field as it is. ValueError as of `from_dict`."""
        given = {name: value for name, value in changes.items() if value is not None}
        return self.from_dict({**dataclasses.asdict(self), **given})

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
        values = {**dataclasses.asdict(self), 'dense': list(map(list, self.dense))}
        values['prompts'] = dict(self.prompts)
        return {name: value for name, value in values.items() if name != 'index' or value}

    @classmethod
    def from_dict(cls, values: Any, *, source: str = 'embedding') -> Embedding:
        """The inverse of `to_dict`; ValueError that names what is wrong if the values are something else."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not set(values) <= names:
            raise ValueError(f'{source}: wanted some of {", ".join(sorted(names))}, found {values!r:.200}')
        return checked(cls, values, source=source)
