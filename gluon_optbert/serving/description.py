"""What /openapi.json says of requests and answers."""

from __future__ import annotations

from typing import Any, Dict, List

from .requests import LONGEST_ID, SEVERAL
from .settings import ServiceSettings

# the keys of an instance, by what the texts of the network are
FORMS = {
    'one': [('text',)],
    'two': [('text', 'pair')],
    'either': [('text',), ('text', 'pair')],
    'question': [('question', 'context'), ('text', 'pair')],
}


def _request(texts: str, settings: ServiceSettings) -> Dict[str, Any]:
    """The body of a request."""
    text = {'type': 'string', 'maxLength': settings.max_characters, 'pattern': r'\S'}
    identifier = {'anyOf': [{'type': 'string', 'maxLength': LONGEST_ID}, {'type': 'integer'}]}
    one: List[Dict[str, Any]] = [
        {
            'type': 'object',
            'required': list(keys),
            'properties': {**dict.fromkeys(keys, text), 'id': identifier},
            'additionalProperties': False,
        }
        for keys in FORMS[texts]
    ]
    items = [*one, text] if ('text',) in FORMS[texts] else one
    several = {
        'type': 'object',
        'required': [SEVERAL],
        'properties': {
            SEVERAL: {
                'type': 'array',
                'minItems': 1,
                'maxItems': settings.max_texts,
                'items': {'anyOf': items},
            }
        },
        'additionalProperties': False,
    }
    return {'anyOf': [*one, several]}


_PREDICTION: Dict[str, Any] = {
    'type': 'object',
    'description': 'The texts and the id of the request. Of a classification: label, name, probabilities. Of '
    'a regression: value. Of a question: text, which is empty if there is no answer, start and end in the '
    'context, score, probability.',
}
_COUNT = {'type': 'integer'}
_ANSWERS: Dict[str, Any] = {
    '/predict': {'predictions': {'type': 'array', 'items': _PREDICTION}},
    '/embed': {
        'embeddings': {'type': 'array', 'items': {'type': 'array', 'items': {'type': 'number'}}},
        'pooling': {'type': 'string'},
        'normalised': {'type': 'boolean'},
    },
    '/health': {
        'status': {'type': 'string'},
        'waiting': {'type': 'integer'},
        'computed': {'type': 'object', 'properties': {'texts': _COUNT, 'batches': _COUNT}},
    },
    '/': {},
}
_ERRORS = {
    '400': 'The body is not JSON in UTF-8.',
    '404': 'The network computes something else.',
    '408': 'The body did not arrive in time.',
    '413': 'The body or a text is too large, or there are too many texts.',
    '415': 'The body is not application/json.',
    '422': 'The texts are not those that the network reads.',
    '500': 'The service failed.',
    '503': 'Too many texts wait. Retry-After says when to try again.',
    '504': 'The answer took too long.',
}
_ERROR = {'type': 'object', 'properties': {'error': {'type': 'string'}}, 'required': ['error']}


def described(path: str, texts: str, settings: ServiceSettings) -> Dict[str, Any]:
    """The operation of a path, as OpenAPI describes it.

    Parameters
    ----------
    path : str
    texts : str
        What the texts of the network are, a key of `FORMS`.
    settings : ServiceSettings
    """
    operation: Dict[str, Any] = {
        'responses': {'200': _response('The answer.', {'type': 'object', 'properties': _ANSWERS[path]})}
    }
    if path in ('/predict', '/embed'):
        operation['requestBody'] = {
            'required': True,
            'content': {'application/json': {'schema': _request(texts, settings)}},
        }
        for status, words in _ERRORS.items():
            operation['responses'][status] = _response(words, _ERROR)
    return operation


def _response(description: str, schema: Dict[str, Any]) -> Dict[str, Any]:
    return {'description': description, 'content': {'application/json': {'schema': schema}}}
