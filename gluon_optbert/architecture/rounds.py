"""The rounds of a pruning run and their gates, as ``rounds.json`` and ``gates.json`` have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from ..runs.files import checked, parse_json, read_json, read_small
from ..runs.progress import CLEAR, CUT, GATES, Measured, Record
from .architecture import Architecture
from .cost import ParameterCost, count_flops
from .parameters import LETTERS

ROUNDS = 'rounds.json'
# of a round, as the `Progress` of its network says it
_OF_CUT = ('before', 'after_cut', 'after_reconstruction', 'started_from', 'kept_step', 'state_difference')
_OF_CUT += ('difference_errors',)
_AsJson = Annotated[
    InstanceOf[Architecture],
    BeforeValidator(lambda one: one if isinstance(one, Architecture) else Architecture.from_dict(one)),
    PlainSerializer(Architecture.to_dict),
]
_Known = Annotated[Measured | None, BeforeValidator(lambda one: one or None)]  # {} is None


@dataclass(frozen=True, repr=False)
class Round(Record):
    """Results of a round; round 0 is the network that went in.

    Parameters
    ----------
    flops : int
        Of one sequence of 128 tokens.
    before, after_cut, recovered : HeldOut or TaskScores, optional
        Measured before the cut, after it, and after recovery. Of round 0 there is only the last: what round
        1 measured before its cut, or what the network that went in says of itself.
    after_reconstruction : HeldOut or TaskScores, optional
        Measured before recovery, where the layers were fitted to those before the cut.
    kept_step : int, optional
        The step of recovery that the network is of, where it is not the last one; 0 is the network before it.
    state_difference : float, optional
        After recovery from states alone: that of held-out text, by which the step was chosen.
    started_from : str, optional
        `CUT` where the layers were fitted and that fit was left out.
    difference_errors : mapping of str to float, optional
        As of `Progress`.
    """

    round: int
    parameters: PositiveInt
    flops: PositiveInt
    architecture: _AsJson
    before: _Known = None
    after_cut: _Known = None
    after_reconstruction: _Known = None
    started_from: str | None = None
    kept_step: int | None = None
    recovered: _Known = None
    state_difference: float | None = None
    difference_errors: Mapping[str, float] | None = None

    def __repr__(self) -> str:
        measured = '' if self.recovered is None else f', {self.recovered.described}'
        return (
            f'<round {self.round}: {self.parameters / 1e6:.2f} M parameters, {self.architecture.widths_line}'
            f'{measured}>'
        )

    @property
    def start(self) -> Measured | None:
        """Measurement of the network that recovery started from."""
        return self.after_cut if self.started_from == CUT else self.after_reconstruction or self.after_cut

    @classmethod
    def of(cls, saved: Any, number: int) -> Round:
        """The round that a saved model came out of."""
        # What the network that went in says of a cut is of an earlier run.
        of_cut = {name: getattr(saved.progress, name) for name in _OF_CUT} if number else {}
        return cls(
            round=number,
            parameters=int(ParameterCost().cost(saved.architecture)),
            flops=sum(count_flops(saved.architecture, 128).values()),
            architecture=saved.architecture,
            recovered=saved.progress.measured,
            **of_cut,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = {'before': None, 'after_cut': None, 'recovered': {}, **super().to_dict()}
        return {field.name: values[field.name] for field in dataclasses.fields(self) if field.name in values}


@dataclass(frozen=True)
class GateRecord(Record):
    """Facts of a round's gates, as its ``gates.json`` has them; mappings are by the letter of a width.

    Parameters
    ----------
    steps : int
        Of their training.
    stopped : str
        ``settled`` or ``steps``.
    overlaps : sequence of (int, float)
        A step, and the smallest overlap of selections in the window before it.
    units : mapping of str to int
        Gates in all.
    closed, open : mapping of str to int
        Gates below and above a share of their start.
    alpha_at_cut : mapping of str to float or None
        The largest gate that went.
    split_half : mapping of str to float or None
        The rank correlation within a width between trainings on two halves of the data; None where it is not
        known.
    split_half_error : mapping of str to float or None
        Its standard error without any correlation.
    """

    round: int
    steps: int
    stopped: str
    overlaps: tuple[tuple[int, float], ...]
    units: Mapping[str, int]
    closed: Mapping[str, int]
    open: Mapping[str, int]
    alpha_at_cut: Mapping[str, float | None]
    split_half: Mapping[str, float | None]
    split_half_error: Mapping[str, float | None]

    @model_validator(mode='after')
    def _has_every_width(self) -> GateRecord:
        mappings = (self.closed, self.open, self.alpha_at_cut, self.split_half, self.split_half_error)
        if not all(set(self.units) <= set(mapping) for mapping in mappings):
            raise ValueError(f'wanted every one of {", ".join(self.units)}')
        return self

    def letters(self) -> list[str]:
        """The widths that have gates, in the order of all tables."""
        return [letter for letter in LETTERS if letter in self.units]

    def noise(self) -> list[str]:
        """The widths whose units the two halves of the data rank as if by chance."""
        correlations = ((letter, self.split_half[letter]) for letter in self.letters())
        return [
            letter
            for letter, correlation in correlations
            if correlation is not None and correlation < CLEAR * (self.split_half_error[letter] or 0.0)
        ]


def read_gate_records(run: Path, rounds: Iterable[int]) -> list[GateRecord]:
    """The records of gates of some rounds of a run; rounds without trained gates are left out.

    Raises
    ------
    ValueError
        If a file is no such record.
    """
    paths = [Path(run) / f'round-{number}' / GATES for number in rounds]
    return [GateRecord.from_dict(read_json(path), source=str(path)) for path in filter(Path.is_file, paths)]


def read_rounds(run: Path) -> tuple[Round, ...]:
    """The rounds of a finished run, the network that went in first.

    Raises
    ------
    FileNotFoundError, ValueError
        If the run is not finished, or its rounds are not what pruning writes.
    """
    path = run / ROUNDS
    if not path.is_file():
        raise FileNotFoundError(f'{path}: not there; a pruning run writes it when it is finished')
    rows = checked(tuple[Round, ...], parse_json(read_small(path), source=path), source=path)
    if not rows:
        raise ValueError(f'{path}: wanted a list of rounds')
    return rows
