"""Bodies of requests and answers as pydantic models, from which FastAPI writes /openapi.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    Tag,
    create_model,
    model_validator,
)

from ..architecture.heads import Head
from ..deployment.instances import Instance
from .settings import ServiceSettings

LONGEST_ID = 200  # characters
SEVERAL = 'instances'
_SHOWN_KEY = 40  # characters of a key that a client chose
_TAGS = frozenset(('#question', '#pair', '#one', '#several'))  # of the forms of a body
# of pydantic's errors, those with status 413, and those that are said in plainer words
_TOO_LARGE = {'string_too_long', 'too_long'}
_WORDS = {
    'missing': 'is missing',
    'extra_forbidden': 'is not read by this network; /openapi.json says which keys are',
    'model_attributes_type': 'must be an object with a text, or with the two texts of a pair or question',
    'string_pattern_mismatch': 'is empty',
    'string_unicode': 'has half of a character, a lone surrogate; send whole characters',
}


class Item(BaseModel):
    """One text, pair or question of a request, and what the client calls it."""

    model_config = ConfigDict(extra='forbid')

    id: Annotated[str, Field(max_length=LONGEST_ID)] | StrictInt | None = None

    @model_validator(mode='before')
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None}

    def instance(self) -> Instance:
        """The texts in the order in which the network reads them."""
        texts = [value for name, value in self if name != 'id' and value is not None]
        return Instance(*texts, id=self.id)


class Error(BaseModel):
    """An error in one sentence."""

    error: str


class Prediction(BaseModel):
    """The texts and the id of the request. Of a classification: label, name, probabilities; of several labels
    at a time: labels, names, probabilities. Of words: entities, each with label, text, start, end and
    probability, then words and tags. Of a regression: value. Of a question: text, which is empty if there is
    no answer, start and end in the context, score, probability."""

    model_config = ConfigDict(extra='allow')


class Predictions(BaseModel):
    predictions: list[Prediction]


class Embeddings(BaseModel):
    embeddings: list[list[float]]
    pooling: str
    normalised: bool


def texts_of(head: Head, *, pairs: bool = True) -> str:
    """The texts of an instance: ``question``, ``one``, ``two``, or ``either`` one or two; `pairs` says
    whether the network can tell two apart.
    """
    either = 'either' if pairs else 'one'
    if not head.outputs:
        return either
    if head.kind == 'question_answering':
        return 'question'
    if head.kind == 'token_classification':
        return 'one'
    return {2: 'one', 3: 'two'}.get(len(head.columns), either)


def body_of(head: Head, settings: ServiceSettings, *, pairs: bool = True) -> Any:
    """The type of a request's body: one item with the texts of `texts_of`, or a list of items or sentences
    called ``instances``.
    """
    text = Annotated[str, Field(max_length=settings.max_characters, pattern=r'\S')]
    pair = create_model('Pair', __base__=Item, text=text, pair=text)
    texts = texts_of(head, pairs=pairs)
    if texts == 'question':
        question = create_model('Question', __base__=Item, question=text, context=text)
        tagged = Annotated[question, Tag('#question')] | Annotated[pair, Tag('#pair')]
        item = Annotated[tagged, Discriminator(_has('question', 'context', yes='#question', no='#pair'))]
    elif texts == 'two':
        item = pair
    elif texts == 'one':
        item = create_model('Sentence', __base__=Item, text=text)
    else:
        item = create_model('Texts', __base__=Item, text=text, pair=(text | None, None))
    listed = item
    if texts in ('one', 'either'):
        listed = Annotated[item, BeforeValidator(_sentence, json_schema_input_type=item | text)]
    several = create_model(
        'Several',
        __config__=ConfigDict(extra='forbid'),
        **{SEVERAL: Annotated[list[listed], Field(min_length=1, max_length=settings.max_texts)]},
    )
    body = Annotated[item, Tag('#one')] | Annotated[several, Tag('#several')]
    return Annotated[body, Discriminator(_has(SEVERAL, yes='#several', no='#one'))]


def _has(*keys: str, yes: str, no: str) -> Callable[[Any], str]:
    """A discriminator of a union: the tag `yes` for objects that have one of the keys."""
    return lambda value: yes if isinstance(value, dict) and not value.keys().isdisjoint(keys) else no


def _sentence(value: Any) -> Any:
    return {'text': value} if isinstance(value, str) else value


def instances_of(body: Any) -> list[Instance]:
    """The instances of a body that was checked, in their order."""
    return [item.instance() for item in getattr(body, SEVERAL, [body])]


def refusal_of(errors: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """The status and the sentence of a body that does not fit, from pydantic's errors.

    Status 400 is for what is no JSON, 413 for too many or too long texts, 422 for any other form."""
    first = errors[0]
    kind, parts = first['type'], first['loc'][1:]  # the first one is 'body'
    if kind == 'json_invalid':
        return 400, f'the body is not JSON: {first["ctx"]["error"]:.100}'
    if 'id' in parts:
        parts = parts[: parts.index('id') + 1]
    place = ''
    for part in parts:
        if isinstance(part, int):
            place += f'[{part}]'
        elif part not in _TAGS:
            place += ('.' if place else '') + (part if part.isidentifier() else ascii(part[:_SHOWN_KEY]))
    words = _WORDS.get(kind, first['msg'])
    return 413 if kind in _TOO_LARGE else 422, f'{place[:200] or "the body"}: {words}'
