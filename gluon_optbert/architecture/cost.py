"""The cost of an architecture and the worth of one unit of each width: the one cost model of the package.

The published sizes count the embeddings (word, position, token type, LayerNorm) and the encoder, without the
pooler and the pre-training heads; so does `ParameterCost.cost`. A unit of h also leaves the pooler and the
heads when it goes, and its price says so: that is how the published beta of h, 0.73, comes about (the
embeddings and the encoder alone make 0.72)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from ..runs.files import checked, read_json
from .architecture import Architecture
from .parameters import parameter_table


def count_parameters(architecture: Architecture) -> dict[str, int]:
    """Parameters by part: ``embeddings``, ``attention``, ``feed_forward``, ``pooler`` and ``heads`` (MLM and
    NSP).

    The encoder's LayerNorms are counted with the block that they follow, an embedding projection with the
    embeddings; the MLM decoder's tied matrix is counted once, as the embedding."""
    counts = {'embeddings': 0, 'attention': 0, 'feed_forward': 0, 'pooler': 0, 'heads': 0}
    for spec in parameter_table(architecture).values():
        counts['heads' if spec.part in ('mlm', 'nsp') else spec.part] += math.prod(spec.shape)
    return counts


def count_flops(architecture: Architecture, length: int) -> dict[str, int]:
    """Floating-point operations of one forward pass over one sequence, two for each multiply-add.

    Matrix products only: they are what is left at any real width; softmax, GELU, LayerNorm and look-ups are
    not counted, nor are the pooler and the heads."""
    h = architecture.h
    attention = feed_forward = 0
    for layer in architecture.layers:
        projections = 2 * length * h * layer.a * (2 * layer.k + 2 * layer.v)
        attention += projections + 2 * length * length * layer.a * (layer.k + layer.v)
        feed_forward += 2 * length * 2 * h * layer.f
    projection = 0 if architecture.e is None else 2 * length * architecture.e * h
    return {'embeddings': projection, 'attention': attention, 'feed_forward': feed_forward}


class CostModel:
    """An objective: prices are differences of the cost at one unit more or less.

    A subclass says what a network costs, and sets `unit`, the word for it in messages and reports. A network
    with fewer units must not cost more."""

    unit = ''

    def cost(self, architecture: Architecture) -> float:
        """The cost that budgets and tables count."""
        raise NotImplementedError

    def whole(self, architecture: Architecture) -> float:
        """The cost of everything that a unit takes with it; the same as `cost` unless a part is left out
        there.
        """
        return self.cost(architecture)

    def prices(self, architecture: Architecture) -> dict[str, float]:
        """The worth of one unit of each width in this architecture.

        Returns
        -------
        dict of width key to float
            In the objective's unit. For a width of one unit it is the price of a second unit; for f = 0 it is
            0.0.
        """
        prices = {}
        for key, width in architecture.widths().items():
            low = max(1, width - 1)
            more, fewer = (architecture.with_widths({key: size}) for size in (low + 1, low))
            prices[key] = self.whole(more) - self.whole(fewer) if width else 0.0
        return prices


@dataclasses.dataclass(frozen=True)
class ParameterCost(CostModel):
    """Parameters of embeddings and encoder."""

    unit = 'parameters'

    def cost(self, architecture: Architecture) -> float:
        counts = count_parameters(architecture)
        return float(counts['embeddings'] + counts['attention'] + counts['feed_forward'])

    def whole(self, architecture: Architecture) -> float:
        return float(sum(count_parameters(architecture).values()))


@dataclasses.dataclass(frozen=True)
class FlopsCost(CostModel):
    """Floating-point operations of the encoder for one sequence of `length` tokens."""

    length: int = 128
    unit = 'FLOPs'

    def cost(self, architecture: Architecture) -> float:
        return float(sum(count_flops(architecture, self.length).values()))


@dataclass(frozen=True)
class LatencyCost(CostModel):
    """Milliseconds of the encoder's forward pass, by a linear model fitted to measurements on one machine.

    Parameters
    ----------
    coefficients : dict of feature to float
        Milliseconds per unit of each of `latency_features`, none negative.
    batch, length : int
        The shape that was measured.
    engine : str
        What computed it, ``mxnet`` or ``onnxruntime``.
    """

    coefficients: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    batch: int
    length: int
    engine: Literal['mxnet', 'onnxruntime'] = 'mxnet'
    unit = 'ms'

    @model_validator(mode='after')
    def _has_every_feature(self) -> LatencyCost:
        if set(self.coefficients) != set(LATENCY_FEATURES):
            raise ValueError(f'wanted a coefficient for each of {", ".join(LATENCY_FEATURES)}')
        return self

    def cost(self, architecture: Architecture) -> float:
        features = latency_features(architecture)
        return sum(self.coefficients[name] * value for name, value in features.items())

    @classmethod
    def read(cls, path: Path) -> LatencyCost:
        """The model that tools/fit_latency.py wrote.

        Raises
        ------
        FileNotFoundError, ValueError
            If there is no such file, or it is another.
        """
        try:
            values = read_json(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f'{path}: no such latency model; make one with tools/fit_latency.py'
            ) from error
        return checked(cls, values, source=f'{path}: not a latency model')


LATENCY_FEATURES = ('network', 'layers', 'blocks', 'h', 'a', 'a k', 'a v', 'f', 'h a k', 'h a v', 'h f')


def latency_features(architecture: Architecture) -> dict[str, float]:
    """The quantities that the time of a forward pass is linear in, at a fixed shape: sums over the layers of
    widths and their products.

    ``network`` is one, ``layers`` and ``blocks`` count layers and intermediate blocks; the products stand for
    the matrix products, single widths for what is done element by element (LayerNorm, softmax, GELU,
    transposes)."""
    features = dict.fromkeys(LATENCY_FEATURES, 0.0)
    features['network'], h = 1.0, architecture.h
    for layer in architecture.layers:
        a, f, keys, values = layer.a, layer.f, layer.a * layer.k, layer.a * layer.v
        of_layer = (1, f > 0, h, a, keys, values, f, h * keys, h * values, h * f)
        for name, value in zip(LATENCY_FEATURES[1:], of_layer):
            features[name] += float(value)
    return features


def shares_of_rounds(target: float, rounds: int) -> list[float]:
    """The share of the cost that is left after each round, in equal steps to the last one, `target`."""
    return [1 - (1 - target) * number / rounds for number in range(1, rounds)] + [target]


# An objective's cost model, made from the recipe's `length` and `latency_model`.
OBJECTIVES: dict[str, Callable[[int, Path | None], CostModel]] = {
    'parameters': lambda length, latency_model: ParameterCost(),
    'flops': lambda length, latency_model: FlopsCost(length),
    'latency': lambda length, latency_model: LatencyCost.read(latency_model),
}


def cost_model(objective: str, *, length: int = 128, latency_model: Path | None = None) -> CostModel:
    """The cost model of an objective's name, one of `OBJECTIVES`; latency needs a latency model."""
    return OBJECTIVES[objective](length, latency_model)


def beta(architecture: Architecture, cost: CostModel) -> dict[str, float]:
    """The weights of equation (2): the prices over the price of the dearest head, or of the dearest unit if
    heads cost nothing.

    Published for BERT-base and parameters (optBERT, section 5): a 1.0, h 0.73, k and v 0.093, f 0.0078.

    Raises
    ------
    ValueError
        If no unit costs anything.
    """
    prices = cost.prices(architecture)
    heads = [price for key, price in prices.items() if key.startswith('a')]
    dearest = max(heads, default=0.0) or max(prices.values())
    if dearest <= 0:
        raise ValueError(
            f'no unit of any width costs {cost.unit}, so the penalty has no weights; fit the latency model '
            'anew, or take another objective'
        )
    return {key: price / dearest for key, price in prices.items()}
