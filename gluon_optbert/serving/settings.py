"""What a service allows, and how it gathers texts into batches."""

from __future__ import annotations

import dataclasses
from typing import List

from ..deployment.predictor import POOLINGS
from ..runs.recipe import option


@dataclasses.dataclass(frozen=True)
class ServiceSettings:
    """The limits of a service, its batches, and the kind of its embeddings."""

    batch_size: int = option('texts of a batch at most', 32)
    wait: float = option('milliseconds that the first text of a batch waits for others', 2.0)
    queue: int = option(
        'texts that may wait; while there is no place for those of a request, it is refused with status 503',
        512,
    )
    timeout: float = option(
        "seconds for a request's headers to arrive, then for its body, and then for its answer", 30.0
    )
    max_texts: int = option('texts, pairs or questions of a request at most', 64)
    max_characters: int = option('characters of one text at most', 20_000)
    max_body: int = option('bytes of a request at most', 1 << 20)
    max_connections: int = option('connections at the same time at most; others get status 503', 512)
    pooling: str = option(
        'for embeddings: the mean of the tokens of a text, or its first token, [CLS]',
        'mean',
        choices=POOLINGS,
    )
    normalise: bool = option(
        'for embeddings: whether they are scaled to length 1, so that their dot products are cosines', True
    )

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = [
            f'{name} must be at least 1, found {getattr(self, name)}'
            for name in ('batch_size', 'queue', 'max_texts', 'max_characters', 'max_body', 'max_connections')
            if getattr(self, name) < 1
        ]
        if self.wait < 0:
            problems.append(f'wait must be at least 0 milliseconds, found {self.wait:g}')
        if self.timeout <= 0:
            problems.append(f'timeout must be above 0 seconds, found {self.timeout:g}')
        if self.queue < self.max_texts:
            problems.append(
                f'queue must be at least max_texts, or no request of {self.max_texts} texts would ever find '
                f'a place; found {self.queue}'
            )
        return problems
