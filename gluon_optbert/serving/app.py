"""The service: its routes, its limits, and what it says of errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

from .. import __version__
from ..architecture.heads import Head
from ..deployment.instances import Instance
from ..deployment.predictions import record
from .batching import Batcher, Closed, QueueFull
from .description import described
from .page import page_of
from .requests import BadRequest, read_instances
from .settings import ServiceSettings

LOG = logging.getLogger(__name__)
HEADERS = {
    'X-Content-Type-Options': 'nosniff',
    'Content-Security-Policy': "default-src 'none'; frame-ancestors 'none'",
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
}
_RETRY_AFTER = {'Retry-After': '1'}  # seconds


def refused(status: int, message: str, headers: Optional[Mapping[str, str]] = None) -> JSONResponse:
    """An error in one sentence, as JSON."""
    return JSONResponse({'error': message}, status, headers={**HEADERS, **(headers or {})})


def wanted_texts(head: Head) -> str:
    """What the texts of an instance are: ``question``, ``one``, ``two``, or ``either`` one or two."""
    if head.kind == 'question_answering':
        return 'question'
    return {2: 'one', 3: 'two'}.get(len(head.columns), 'either')


class Service:
    """What the routes answer.

    Parameters
    ----------
    predictor : Predictor
        Its `head`, `engine` and `threads`, and its `predict` or its `encode`, which one thread alone calls.
    name : str
        What the service calls the network.
    card : str
        The model card, in Markdown.
    settings : ServiceSettings
    """

    def __init__(self, predictor: Any, *, name: str, card: str, settings: ServiceSettings):
        self._predictor, self._name, self._card, self._settings = predictor, name, card, settings
        self.head: Head = predictor.head
        self.embeds = not self.head.outputs
        self.texts = 'either' if self.embeds else wanted_texts(self.head)
        self._page = page_of(self.facts(), card)
        self.batcher: Optional[Batcher] = None

    def facts(self) -> Dict[str, Any]:
        """What a client may want to know of the network and of the limits, as JSON values."""
        head, settings, engine = self.head, self._settings, self._predictor.engine
        return {
            'model': self._name,
            'engine': {
                'name': engine.name,
                'version': engine.version,
                'precision': engine.precision,
                'threads': self._predictor.threads,
            },
            'computes': 'embeddings' if self.embeds else head.kind,
            'task': head.task,
            'texts': self.texts,
            'labels': [{'label': label, 'name': head.name_of(label)} for label in head.labels],
            'limits': {
                name: getattr(settings, name)
                for name in ('max_texts', 'max_characters', 'max_body', 'timeout')
            },
            'version': __version__,
        }

    def start(self) -> None:
        """Start the thread that computes."""
        settings = self._settings
        self.batcher = Batcher(
            self._encode if self.embeds else self._predict,
            batch_size=settings.batch_size,
            wait_ms=settings.wait,
            queue=settings.queue,
        )

    def _predict(self, instances: List[Instance]) -> List[Any]:
        predictions = self._predictor.predict(instances, batch_size=self._settings.batch_size)
        return [record(instance, prediction) for instance, prediction in zip(instances, predictions)]

    def _encode(self, instances: List[Instance]) -> List[Any]:
        settings = self._settings
        return self._predictor.encode(
            instances, pooling=settings.pooling, normalise=settings.normalise, batch_size=settings.batch_size
        ).tolist()

    async def predict(self, request: Request) -> Response:
        """Predictions of the texts, pairs or questions in the body, in their order."""
        if self.embeds:
            raise BadRequest(404, 'this network predicts nothing, it gives embeddings: POST /embed')
        return JSONResponse({'predictions': await self._results(request)})

    async def embed(self, request: Request) -> Response:
        """Embeddings of the texts or pairs in the body, in their order."""
        if not self.embeds:
            raise BadRequest(404, 'this network gives no embeddings, it predicts: POST /predict')
        settings = self._settings
        embeddings = await self._results(request)
        return JSONResponse(
            {'embeddings': embeddings, 'pooling': settings.pooling, 'normalised': settings.normalise}
        )

    async def _results(self, request: Request) -> List[Any]:
        """What the network computes of a request; BadRequest if nothing."""
        assert self.batcher is not None
        settings = self._settings
        kind = request.headers.get('content-type', '').partition(';')[0].strip().lower()
        if kind != 'application/json':
            raise BadRequest(
                415, f'the body must be application/json, found {ascii(kind[:60]) if kind else "no type"}'
            )
        try:
            body = await asyncio.wait_for(read_body(request, settings.max_body), settings.timeout)
        except asyncio.TimeoutError:
            raise BadRequest(408, f'the request did not arrive within {settings.timeout:g} seconds') from None
        instances = read_instances(body, self.head, settings)
        try:
            future = self.batcher.submit(instances)
        except QueueFull as error:
            raise BadRequest(503, f'{error}; try again later', _RETRY_AFTER) from None
        except Closed as error:
            raise BadRequest(503, f'{error}', _RETRY_AFTER) from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), settings.timeout)
        except asyncio.TimeoutError:
            raise BadRequest(504, f'there was no answer within {settings.timeout:g} seconds') from None

    async def health(self) -> Response:
        """Whether texts are taken, what the network computes, and the limits."""
        assert self.batcher is not None
        alive = self.batcher.alive
        values = {
            'status': 'ok' if alive else 'stopping',
            **self.facts(),
            'waiting': self.batcher.waiting,
            'computed': {'texts': self.batcher.texts, 'batches': self.batcher.batches},
        }
        return JSONResponse(values, 200 if alive else 503)

    async def page(self) -> Response:
        """A page to try texts in, with the model card."""
        return HTMLResponse(
            self._page.html, headers={'Content-Security-Policy': self._page.content_security_policy}
        )


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises
    ------
    BadRequest
        413 if it has more than `most` bytes, which are not all read then; 400 if the client has gone.
    """
    too_large = BadRequest(413, f'the body has more than {most} bytes', {'Connection': 'close'})
    stated = request.headers.get('content-length', '')
    if stated.isdigit() and (len(stated) > 18 or int(stated) > most):
        raise too_large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise BadRequest(400, 'the client has gone') from None
    return b''.join(parts)


class _SafeHeaders:
    """Adds `HEADERS` to every answer that does not set them itself."""

    def __init__(self, app: Callable):
        self._app = app

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        async def send_with_headers(message: Any) -> None:
            if message['type'] == 'http.response.start':
                known = {name.lower() for name, _ in message['headers']}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {
                    **message,
                    'headers': [*message['headers'], *(pair for pair in more if pair[0] not in known)],
                }
            await send(message)

        await self._app(scope, receive, send_with_headers if scope['type'] == 'http' else send)


async def _say_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return refused(error.status, str(error), error.headers)


async def _say_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope['path'][:100]  # request.url needs a sound Host
    message = {404: f'there is no {path}', 405: f'{path} has no method {request.method[:20]}'}.get(
        error.status_code, str(error.detail)
    )
    return refused(error.status_code, message, error.headers)


async def _say_failure(request: Request, error: Exception) -> Response:
    return refused(500, 'the service failed; its log says why')


def make_app(
    predictor: Any, *, name: str = 'model', card: str = '', settings: Optional[ServiceSettings] = None
) -> FastAPI:
    """The service of a predictor, as an ASGI application.

    Parameters
    ----------
    predictor : Predictor
    name : str
        What the service calls the network.
    card : str
        The model card in Markdown; the page shows it.
    settings : ServiceSettings, optional

    Raises
    ------
    ValueError
        If the settings are out of range.
    """
    settings = settings or ServiceSettings()
    if settings.problems():
        raise ValueError('; '.join(settings.problems()))
    service = Service(predictor, name=name, card=card, settings=settings)

    @contextlib.asynccontextmanager
    async def running(app: FastAPI):
        service.start()
        yield
        batcher, end = service.batcher, time.monotonic() + settings.timeout
        assert batcher is not None
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(None, batcher.close, 0.1):
            if time.monotonic() > end or app.state.forced():
                break

    # The pages /docs and /redoc of FastAPI load scripts of other hosts.
    app = FastAPI(
        title=f'gluon_optbert: {name}',
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=running,
        exception_handlers={BadRequest: _say_refusal, HTTPException: _say_http, Exception: _say_failure},
    )
    app.state.forced = lambda: False  # whether to end without waiting
    app.add_middleware(_SafeHeaders)
    for path, method, route in (
        ('/predict', 'POST', service.predict),
        ('/embed', 'POST', service.embed),
        ('/health', 'GET', service.health),
        ('/', 'GET', service.page),
    ):
        app.add_api_route(
            path,
            route,
            methods=[method],
            response_model=None,
            include_in_schema=path not in ('/', '/predict' if service.embeds else '/embed'),
            openapi_extra=described(path, service.texts, settings),
        )
    return app
