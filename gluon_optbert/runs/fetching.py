"""What a library fetches from the network: a line before it, and one line if it cannot be had."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import Iterator

_LONGEST = 160  # characters of a reason


@contextlib.contextmanager
def fetching(what: object) -> Iterator[None]:
    """While a library fetches something: say what, and leave out the library's words on every attempt."""
    print(f'fetching {what}', file=sys.stderr, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def reason(error: BaseException) -> str:
    """Why something could not be fetched, in a short line: of a connection that failed, the host alone."""
    host = re.search(r"HTTPS?ConnectionPool\(host='([^']+)'", str(error))
    if host:
        return f'no connection to {host.group(1)}'
    return f'{type(error).__name__}: {str(error).strip()}'.split('\n')[0][:_LONGEST]
