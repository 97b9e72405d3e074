"""Settings of a service: limits, and gathering texts into batches."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from ..architecture.embedding import POOLINGS
from ..runs.recipe import Recipe, option


class EmbeddingOptions(Recipe):
    """The kind of the embeddings of an encoder."""

    pooling: str | None = option(
        'how the tokens of a text become its embedding; by default as the network says',
        None,
        choices=POOLINGS,
    )
    normalise: bool | None = option(
        'whether embeddings are scaled to length 1, so that their dot products are cosines; by default as '
        'the network says',
        None,
    )

    def of_embeddings(self) -> list[str]:
        """The fields of embeddings that are stated."""
        return [name for name in EmbeddingOptions.model_fields if not self.is_default(name)]


class ServiceSettings(EmbeddingOptions):
    """The limits of a service, its batches, and the kind of its embeddings."""

    batch_size: PositiveInt = option('texts of a batch at most', 32)
    wait: NonNegativeFloat = option('milliseconds that the first text of a batch waits for others', 2.0)
    queue: PositiveInt = option(
        'texts that may wait; while there is no place for those of a request, it is refused with status 503',
        512,
    )
    timeout: PositiveFloat = option(
        "seconds for a request's headers to arrive, then for its body, and then for its answer", 30.0
    )
    max_texts: PositiveInt = option('texts, pairs or questions of a request at most', 64)
    max_characters: PositiveInt = option('characters of one text at most', 20_000)
    max_body: PositiveInt = option('bytes of a request at most', 1 << 20)
    max_connections: PositiveInt = option('connections at the same time at most; others get status 503', 512)

    def problems(self) -> list[str]:
        """Contradictions between fields whose values are right in themselves."""
        if self.queue >= self.max_texts:
            return []
        return [
            f'queue must be at least max_texts, or no request of {self.max_texts} texts would ever find a '
            f'place; found {self.queue}'
        ]
