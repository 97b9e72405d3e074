"""A service that listens on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..runs.failures import RunFailed
from .app import refused
from .settings import ServiceSettings

_KEEP_ALIVE = 5  # seconds that a connection may be silent after an answer
_GRACE = 5  # seconds beyond the time of a request, to finish when the service stops


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; port 0 is any that is free. ValueError if it cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio sends small packets at once only where a socket names its protocol; otherwise each answer
        # waits 40 ms for the client's acknowledgement of its headers.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise ValueError(
            f'{host} port {port} cannot be listened on: {getattr(error, "strerror", None) or error}; '
            'give another --host or --port'
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The address of a bound socket, as browsers take it."""
    host, port = listener.getsockname()[:2]
    return f'http://[{host}]:{port}' if ':' in host else f'http://{host}:{port}'


def is_local(listener: socket.socket) -> bool:
    """Whether a bound socket is for this machine alone."""
    return ipaddress.ip_address(listener.getsockname()[0].partition('%')[0]).is_loopback


class _Impatient(H11Protocol):
    """A connection that is closed if a request's headers do not arrive in time; uvicorn waits for ever.

    What uvicorn answers itself, as text, is JSON as the other answers are.
    """

    patience = 30.0  # seconds
    most = 512  # connections
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            headers = {'Retry-After': '1', 'Connection': 'close'}
            self.app = refused(503, f'there are {self.most} connections already; try again later', headers)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer is on its way
            answer = refused(400, 'the request is not HTTP/1.1 that can be read', {'Connection': 'close'})
            response = h11.Response(status_code=400, headers=answer.raw_headers, reason=b'Bad Request')
            events = (response, h11.Data(data=answer.body), h11.EndOfMessage())
            self.transport.write(b''.join(map(self.conn.send, events)))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        super().connection_lost(error)

    def _watch(self) -> None:
        """Have a timer run while headers are awaited, and at no other time."""
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.patience, self.transport.close)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """A server that SIGTERM and SIGINT stop, the second one without waiting for requests.

    uvicorn's own ends the process by the signal, once it has stopped.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit:  # requests that are cut off are no errors
            logging.getLogger('uvicorn.error').disabled = True


def serve(
    app: Any, listener: socket.socket, *, settings: ServiceSettings, ready: Callable[[str], Any]
) -> None:
    """Serve an application until SIGTERM or SIGINT; requests that have arrived are answered first. RunFailed
    if it cannot start.

    The socket is from `listen`, and closed at the end. `ready` is called with the address, from when on it
    can be connected to.
    """
    limits = {'patience': settings.timeout, 'most': settings.max_connections}
    config = uvicorn.Config(
        app,
        http=type('_Patient', (_Impatient,), limits),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.timeout) + _GRACE,
        ws='none',
    )
    server = _Server(config, lambda: ready(address_of(listener)))
    app.state.forced = lambda: server.force_exit
    with listener, contextlib.suppress(SystemExit):  # which uvicorn raises if the application does not start
        server.run(sockets=[listener])
    if not server.started:
        raise RunFailed('the server could not start; its log says why')
