"""Serve an export over HTTP: POST /predict or /embed, GET /health, and GET / with a page to try texts in.

The service listens on this machine alone unless --host says otherwise. It checks what it is sent, but it asks
for no password and does not encrypt: put a reverse proxy before it on any other network."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from .. import Predictor
from ..deployment.engines import ENGINES
from ..front_door import remedied
from ..runs.command_line import parse
from ..runs.recipe import option
from ..serving.settings import ServiceSettings
from .starting import command, line, what_to_export

CARD, _LARGEST_CARD = 'README.md', 1 << 20  # bytes


class ServeRecipe(ServiceSettings):
    """What to serve, where, and within which limits."""

    deployment: Path = option('deployment directory of an export')
    host: str = option('address to listen on; 0.0.0.0 is every address of this machine', '127.0.0.1')
    port: Annotated[int, Field(ge=0, lt=2**16)] = option(
        'port to listen on; 0 is any free one, which is printed', 8000
    )
    engine: str | None = option(
        'library that computes; by default onnxruntime where it is installed and the export has model.onnx, '
        'else mxnet, else openvino',
        None,
        choices=ENGINES,
    )
    threads: PositiveInt | None = option(
        'threads of a forward pass; by default one for each core that no other program uses', None
    )
    precision: Literal['float32', 'bfloat16'] | None = option(
        'bfloat16, for openvino on a processor that has it; by default that of the export', None
    )
    null_threshold: float | None = option(
        'for question answering: "no answer" is predicted if its score exceeds that of the best answer by '
        'more than this; by default as in fine-tuning',
        None,
    )


def card_of(directory: Path) -> str:
    """The model card of an export; empty if there is none."""
    path = directory / CARD
    if not path.is_file() or path.stat().st_size > _LARGEST_CARD:
        return ''
    return path.read_text(encoding='utf-8', errors='replace')


@command
def main(argv=None):
    """Serve until SIGTERM or SIGINT."""
    example = line('optbert-serve', 'deploy', '--port', 8000)
    recipe = parse(ServeRecipe, argv, description=__doc__, positional='deployment', example=example)
    with remedied():
        from ..serving import server
        from ..serving.app import make_app

    remedy = what_to_export(recipe.deployment)
    if remedy is not None:
        raise ValueError(remedy)
    listener = server.listen(recipe.host, recipe.port)
    with listener:
        predictor = Predictor(
            recipe.deployment,
            engine=recipe.engine,
            threads=recipe.threads,
            precision=recipe.precision,
            null_threshold=recipe.null_threshold,
        )
        name = recipe.deployment.absolute().name
        app = make_app(predictor, name=name, card=card_of(recipe.deployment), settings=recipe)

        def ready(address: str) -> None:
            print(f'engine: {predictor.engine}, {predictor.choice}', file=sys.stderr)
            print(f'serving {recipe.deployment} at {address}; Ctrl-C stops it', flush=True)

        server.run(app, listener, settings=recipe, ready=ready)
    print('stopped')
