"""The service: its routes, its limits, and the errors that it answers with."""

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

from .. import __version__
from ..deployment.instances import Instance
from ..deployment.predictor import record
from .batching import Batcher, Closed, QueueFull
from .bodies import Embeddings, Error, Predictions, body_of, instances_of, refusal_of, texts_of
from .page import page_of
from .settings import ServiceSettings

HEADERS = {
    'X-Content-Type-Options': 'nosniff',
    'Content-Security-Policy': "default-src 'none'; frame-ancestors 'none'",
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
}
_RETRY_AFTER = {'Retry-After': '1'}  # seconds
_ERRORS = {
    400: 'The body is not JSON in UTF-8.',
    404: 'The network computes something else.',
    408: 'The body did not arrive in time.',
    413: 'The body or a text is too large, or there are too many texts.',
    415: 'The body is not application/json, or compressed.',
    421: 'The Host header names another host.',
    422: 'The texts are not those that the network reads.',
    500: 'The service failed.',
    503: 'Too many texts wait. Retry-After says when to try again.',
    504: 'The answer took too long.',
}


def refused(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error in one sentence, as JSON."""
    return JSONResponse({'error': message}, status, headers={**HEADERS, **(headers or {})})


class Service:
    """A network behind routes: its facts, and the thread that computes, which alone calls the predictor."""

    def __init__(self, predictor: Any, *, name: str, settings: ServiceSettings):
        self._predictor, self._name, self._settings = predictor, name, settings
        self.embeds = not predictor.head.outputs
        self.batcher: Batcher | None = None

    def facts(self) -> dict[str, Any]:
        """The network and the limits, as JSON values."""
        head, settings, engine = self._predictor.head, self._settings, self._predictor.engine
        limits = ('max_texts', 'max_characters', 'max_body', 'timeout')
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
            'texts': texts_of(head, pairs=self._predictor.pairs),
            'labels': [{'label': label, 'name': head.name_of(label)} for label in head.labels],
            'reads': {'tokens': self._predictor.max_length, 'long': self._predictor.long},
            'limits': {name: getattr(settings, name) for name in limits},
            'version': __version__,
        }

    def health(self) -> Response:
        """Whether texts are taken, or what is wrong; the facts, and how many texts wait and were computed."""
        problem = self._predictor.problem
        status = 'failed' if problem else 'ok' if self.batcher.alive else 'stopping'
        values = {
            'status': status,
            **({'problem': problem} if problem else {}),
            **self.facts(),
            'waiting': self.batcher.waiting,
            'computed': {
                'texts': self.batcher.texts,
                'batches': self.batcher.batches,
                'cut': self._predictor.cut,
            },
        }
        return JSONResponse(values, 200 if status == 'ok' else 503)

    def start(self) -> None:
        """Start the thread that computes."""
        size, wait_ms, queue = self._settings.batch_size, self._settings.wait, self._settings.queue
        self.batcher = Batcher(self._compute, batch_size=size, wait_ms=wait_ms, queue=queue)

    def _compute(self, instances: list[Instance]) -> list[Any]:
        """The embeddings or predictions of a batch, as JSON values."""
        settings, size = self._settings, self._settings.batch_size
        if not self.embeds:
            predictions = self._predictor.predict(instances, batch_size=size)
            return [record(instance, prediction) for instance, prediction in zip(instances, predictions)]
        return self._predictor.encode(
            instances, pooling=settings.pooling, normalise=settings.normalise, batch_size=size
        ).tolist()

    async def results(self, instances: list[Instance]) -> list[Any]:
        """The results of a request's instances, in their order; HTTPException if there are none."""
        try:
            future = self.batcher.submit(instances)
        except (QueueFull, Closed) as error:
            raise HTTPException(503, f'{error}', _RETRY_AFTER) from None
        timeout = self._settings.timeout
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout)
        except asyncio.TimeoutError:
            raise HTTPException(504, f'there was no answer within {timeout:g} seconds') from None


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request; HTTPException with status 413 if it has more than `most` bytes, which are not
    all read then, and 400 if the client has gone.
    """
    too_large = HTTPException(413, f'the body has more than {most} bytes', {'Connection': 'close'})
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
        raise HTTPException(400, 'the client has gone') from None
    return b''.join(parts)


def bounded_route(settings: ServiceSettings) -> type[APIRoute]:
    """The class of routes whose body has a type, a largest size and a time to arrive in."""

    class BoundedRoute(APIRoute):
        def get_route_handler(self) -> Callable:
            handle = super().get_route_handler()

            async def bounded(request: Request) -> Response:
                kind = request.headers.get('content-type', '').partition(';')[0].strip().lower()
                if kind != 'application/json':
                    found = ascii(kind[:60]) if kind else 'no type'
                    raise HTTPException(415, f'the body must be application/json, found {found}')
                coding = request.headers.get('content-encoding', 'identity').strip().lower()
                if coding != 'identity':
                    message = f'the body must not be encoded, found Content-Encoding {ascii(coding[:60])}'
                    raise HTTPException(415, message, {'Accept-Encoding': 'identity'})
                try:
                    body = await asyncio.wait_for(read_body(request, settings.max_body), settings.timeout)
                except asyncio.TimeoutError:
                    message = f'the request did not arrive within {settings.timeout:g} seconds'
                    raise HTTPException(408, message) from None

                async def receive() -> dict[str, Any]:
                    return {'type': 'http.request', 'body': body, 'more_body': False}

                return await handle(Request(request.scope, receive))

            return bounded

    return BoundedRoute


def is_answered(host: str, names: Collection[str]) -> bool:
    """Whether a Host header has one of these names, or names this machine."""
    try:
        name = (urlsplit(f'//{host}').hostname or '').rstrip('.')
        return name in ('localhost', *names) or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Safe:
    """Adds `HEADERS` to every answer that does not set them itself, and refuses requests for other hosts.

    The page of another host could otherwise have a browser of this machine ask, once its name leads here.
    """

    def __init__(self, app: Callable, names: Collection[str] | None):
        self._app, self._names = app, names

    def _refusal(self, scope: Any) -> JSONResponse | None:
        host = dict(scope['headers']).get(b'host')
        if self._names is None or host is None or is_answered(host.decode('latin-1').lower(), self._names):
            return None
        return refused(421, f'Host {ascii(host[:60])[1:]} is not served here; --host-names says what is')

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        async def send_with_headers(message: Any) -> None:
            if message['type'] == 'http.response.start':
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope['type'] == 'http':
            await (self._refusal(scope) or self._app)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send)


async def _say(request: Request, error: Exception) -> Response:
    """The answer that an error is."""
    if isinstance(error, RequestValidationError):
        return refused(*refusal_of(error.errors()))
    if not isinstance(error, HTTPException):
        return refused(500, 'the service failed; its log says why')
    path = request.scope['path'][:100]  # request.url needs a sound Host
    words = {
        'Not Found': f'there is no {path}',
        'Method Not Allowed': f'{path} has no such method',
        'There was an error parsing the body': 'the body is not JSON that can be read: nested too deeply, or '
        'with a number of too many digits',
    }
    return refused(error.status_code, words.get(error.detail, error.detail), error.headers)


def make_app(
    predictor: Any,
    *,
    name: str = 'model',
    card: str = '',
    settings: ServiceSettings | None = None,
    host_names: Collection[str] | None = None,
) -> FastAPI:
    """The service of a `Predictor`, as an ASGI application; ValueError if the settings say how embeddings are
    made, and the network gives none.

    Clients see the name and the model card, which is in Markdown. `host_names` in Host headers are answered,
    beside those of this machine; by default all are.
    """
    settings = settings or ServiceSettings()
    if predictor.head.outputs and settings.of_embeddings():
        raise ValueError(f'--{settings.of_embeddings()[0]} goes with an encoder; {name} gives no embeddings')
    service = Service(predictor, name=name, settings=settings)
    page = page_of(service.facts(), card)
    Body = body_of(predictor.head, settings, pairs=predictor.pairs)
    embedding = predictor.head.embedding.changed(pooling=settings.pooling, normalise=settings.normalise)

    async def predict(body: Body) -> Predictions:
        """Predictions of the texts, pairs or questions, in their order."""
        return JSONResponse({'predictions': await service.results(instances_of(body))})

    async def embed(body: Body) -> Embeddings:
        """Embeddings of the texts or pairs, in their order."""
        embeddings = await service.results(instances_of(body))
        kind = {'pooling': embedding.pooling, 'normalised': embedding.normalise}
        return JSONResponse({'embeddings': embeddings, **kind})

    async def elsewhere() -> None:
        embeds, predicts = 'predicts nothing, it gives embeddings', 'gives no embeddings, it predicts'
        raise HTTPException(404, f'this network {embeds if service.embeds else predicts}: POST {here}')

    async def health() -> Response:
        """Whether texts are taken, what the network computes, and the limits."""
        return service.health()

    async def show_page() -> Response:
        return HTMLResponse(page.html, headers={'Content-Security-Policy': page.content_security_policy})

    @contextlib.asynccontextmanager
    async def running(app: FastAPI):
        service.start()
        yield
        end = time.monotonic() + settings.timeout
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(None, service.batcher.close, 0.1):
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
        exception_handlers=dict.fromkeys((RequestValidationError, HTTPException, Exception), _say),
    )
    app.state.forced = lambda: False  # whether to end without waiting
    app.add_middleware(_Safe, names=host_names)
    app.add_api_route('/health', health, response_model=None)
    app.add_api_route('/health', health, methods=['HEAD'], response_model=None, include_in_schema=False)
    app.add_api_route('/', show_page, methods=['GET', 'HEAD'], include_in_schema=False)
    here, there = ('/embed', '/predict') if service.embeds else ('/predict', '/embed')
    app.add_api_route(there, elsewhere, methods=['POST'], include_in_schema=False)
    app.router.route_class = bounded_route(settings)
    app.add_api_route(
        here,
        embed if service.embeds else predict,
        methods=['POST'],
        responses={status: {'model': Error, 'description': words} for status, words in _ERRORS.items()},
    )
    return app
