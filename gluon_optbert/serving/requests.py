"""Requests to instances: what a body may hold, and what is said of one that holds something else."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional

from ..architecture.heads import Head
from ..deployment.instances import Instance, check_texts
from .settings import ServiceSettings

KEYS = ('text', 'pair', 'question', 'context', 'id')
SEVERAL = 'instances'
_FORMS = (
    "an object with 'text', with 'text' and 'pair', or with 'question' and 'context'; several of them, or "
    f"sentences, are a list called '{SEVERAL}'"
)
_LONGEST_NUMBER = 30  # digits; an id is the only number that is read
LONGEST_ID = 200  # characters


class BadRequest(ValueError):
    """A request that cannot be answered, with its HTTP status and what is wrong with it."""

    def __init__(self, status: int, message: str, headers: Optional[Mapping[str, str]] = None):
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def read_json(body: bytes) -> Any:
    """The values of a body.

    Raises
    ------
    BadRequest
        400 if it is not JSON in UTF-8. NaN and Infinity are no JSON.
    """
    try:
        return json.loads(body.decode('utf-8'), parse_constant=_no_number, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise BadRequest(400, f'the body is not UTF-8: {error.reason} at byte {error.start}') from None
    except RecursionError:
        raise BadRequest(400, 'the body is not JSON that can be read: it is nested too deeply') from None
    except ValueError as error:
        raise BadRequest(400, f'the body is not JSON: {error!s:.100}') from None


def _no_number(word: str) -> None:
    raise ValueError(f'{word} is no number in JSON')


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f'a number of {len(digits)} digits')
    return int(digits)


def read_instances(body: bytes, head: Head, settings: ServiceSettings) -> List[Instance]:
    """The instances of a request's body, in their order, none of them empty or too long.

    Raises
    ------
    BadRequest
        400 if it is not JSON, 413 if there are too many texts or a text is too long, 422 for any other form.
    """
    values = read_json(body)
    if not isinstance(values, dict) or SEVERAL not in values:
        return [_instance(values, head, settings, '')]
    several = values[SEVERAL]
    if not isinstance(several, list) or not several:
        raise BadRequest(422, f"'{SEVERAL}' must be a list of at least one, found {_kind(several)}")
    if len(values) > 1:
        raise BadRequest(422, f"'{SEVERAL}' stands alone, found {_listed(set(values) - {SEVERAL})} beside it")
    if len(several) > settings.max_texts:
        raise BadRequest(
            413,
            f'{len(several)} instances, and a request may have {settings.max_texts}; send several requests',
        )
    return [_instance(item, head, settings, f'{SEVERAL}[{number}]: ') for number, item in enumerate(several)]


def _instance(item: Any, head: Head, settings: ServiceSettings, place: str) -> Instance:
    if place and isinstance(item, str):
        item = {'text': item}
    if not isinstance(item, dict):
        raise BadRequest(422, f'{place}wanted {_FORMS}; found {_kind(item)}')
    unknown = set(item) - set(KEYS)
    if unknown:
        raise BadRequest(422, f'{place}unknown {_listed(unknown)}; known are {", ".join(KEYS)}')
    texts = {key: item[key] for key in KEYS[:-1] if item.get(key) is not None}
    if set(texts) not in ({'text'}, {'text', 'pair'}, {'question', 'context'}):
        raise BadRequest(422, f'{place}wanted {_FORMS}; found {_listed(texts) if texts else "no text"}')
    for key, text in texts.items():
        _check_text(text, f'{place}{key}', settings)
    instance = Instance(*texts.values(), id=_identifier(item.get('id'), place))
    if head.kind != 'question_answering' and 'question' in texts:
        raise BadRequest(422, f"{place}this network answers no questions; its texts are 'text' and 'pair'")
    try:
        check_texts(instance, head)
    except ValueError as error:
        raise BadRequest(422, f'{place}{error}') from None
    return instance


def _check_text(text: Any, place: str, settings: ServiceSettings) -> None:
    if not isinstance(text, str):
        raise BadRequest(422, f'{place} must be a text, found {_kind(text)}')
    if not text.strip():
        raise BadRequest(422, f'{place} is empty')
    if len(text) > settings.max_characters:
        raise BadRequest(
            413, f'{place} has {len(text)} characters, and a text may have {settings.max_characters}'
        )
    _check_unicode(text, place)


def _check_unicode(text: str, place: str) -> None:
    try:
        text.encode('utf-8')
    except UnicodeEncodeError as error:
        raise BadRequest(
            422, f'{place} has half of a character, a lone surrogate, at {error.start}; send whole characters'
        ) from None


def _identifier(value: Any, place: str) -> Optional[str]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)) or len(str(value)) > LONGEST_ID:
        raise BadRequest(
            422,
            f'{place}id must be a text of at most {LONGEST_ID} characters or a whole number, found '
            f'{_kind(value)}',
        )
    _check_unicode(str(value), f'{place}id')
    return str(value)


def _listed(keys: Any) -> str:
    """Names that a client chose, for a message."""
    return ', '.join(sorted(ascii(key[:40]) for key in keys)[:5])


def _kind(value: Any) -> str:
    """What a value of JSON is, in words."""
    words: Dict[type, str] = {
        dict: 'an object',
        list: f'a list of {len(value)}' if isinstance(value, list) else '',
        str: 'a text',
        bool: 'true or false',
        int: 'a number',
        float: 'a number',
        type(None): 'null',
    }
    return words[type(value)]
