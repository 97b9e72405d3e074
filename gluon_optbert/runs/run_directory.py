"""The directory of a run: whether the run is new, goes on, is done, or may not begin at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from .files import Ranks, check_place, check_room, new_directory, refuse_existing
from .recipe import check_same, save

T = TypeVar('T')
RECIPE = 'recipe.yaml'
UNFINISHED = '.training'  # behind the name of a run's output, until it is finished


def work_directory(output: Path) -> Path:
    """Directory of the checkpoints and metrics of an unfinished run: beside its output."""
    if not output.name:
        raise ValueError(f'{output}: has no name that a run could have; give another --output')
    return output.with_name(output.name + UNFINISHED)


class RunDirectory(Generic[T]):
    """The directory that a run writes to, until it is done to its `path`.

    A run either writes to its output from the beginning, and knows itself what is done. Or it works beside
    its output, in `work_directory`, and the output is there when the run is finished; what `read` gives of it
    then is the `result`. A run is `new` if neither is there.

    Raises
    ------
    FileExistsError
        If there is something at the output, or a run that is not finished, and ``resume`` is not set.
    ValueError
        If the run was begun with other settings.
    FileNotFoundError
        If the output can have no place, or what is there is no run.
    NotADirectoryError
        If there is a file.
    """

    def __init__(
        self,
        recipe: Any,
        *,
        read: Callable[[Path], T] | None = None,
        may_change: Sequence[str] = (),  # fields of the recipe that may differ when the run goes on
        name: str = '',  # in front of the names of barriers, where runs stand inside each other
    ):
        self._recipe, self._may_change, self._name = recipe, may_change, name
        output = recipe.output
        self.path = output if read is None else work_directory(output)
        self.new = False
        self.result: T | None = None
        for place in (output, self.path):
            if place.exists() and not place.is_dir():
                raise NotADirectoryError(f'{place} is a file; give another --output')
        if output.exists() and recipe.resume:
            self.result = None if read is None else read(output)
            self._check_recipe(output)
            return
        check_place(output)
        going_on = '' if read is not None else 'go on with --resume, or '
        refuse_existing(output, remedy=f'{going_on}give another --output')
        self.new = not self.path.exists()
        if not self.new:
            if not recipe.resume:
                raise FileExistsError(
                    f'{self.path} holds an unfinished run; go on with --resume, or give another --output'
                )
            self._check_recipe(self.path)

    def _check_recipe(self, directory: Path) -> None:
        check_same(self._recipe, directory / RECIPE, but=self._may_change)

    def lay_out(
        self, workers: Ranks, write: Callable[[Path], Any] | None = None, *, needed: float = 0
    ) -> None:
        """Make the directory of a new run, whole or not at all. The first worker does so when all have opened
        it, and the others wait. `write` writes what it holds beside the recipe. OSError if fewer bytes than
        `needed` are free.
        """
        if self.new:
            check_room(self.path, needed)
        workers.barrier(f'{self._name}checked')
        if workers.first and self.new:
            with new_directory(self.path) as staged:
                save(self._recipe, staged / RECIPE)
                if write is not None:
                    write(staged)
        workers.barrier(f'{self._name}laid out')
