"""A run as a pydantic model: filled from YAML, then from flags, checked whole, saved with what it made."""

from __future__ import annotations

import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union

import pydantic
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from .failures import meant, shown
from .files import read_small, write_file
from .limits import MOST_NODES, MOST_YAML_BYTES, within
from .programs import YAML
from .starting import flag

RECIPES = Path(__file__).resolve().parents[1] / 'recipes'  # of the package, in folders by what they are for
_LARGEST = 2**63 - 1  # of a whole number, as NumPy's
_LEADING_ZERO = re.compile(r'[-+]?0[0-9_]+$')  # octal in YAML 1.1, decimal in YAML 1.2

# types of fields, beside pydantic's PositiveInt and its fellows
Share = Annotated[float, pydantic.Field(gt=0, lt=1)]
ShareOrZero = Annotated[float, pydantic.Field(ge=0, lt=1)]
Seed = Annotated[int, pydantic.Field(ge=0, lt=2**31)]  # with the number of a round or a trial added, NumPy's


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, in one message."""

    def __init__(self, problems: Sequence[str]):
        super().__init__('; '.join(problems))
        self.problems = list(problems)


def option(
    help: str, default: Any = ..., *, choices: Collection[Any] | None = None, metavar: str | None = None
) -> Any:
    """One field of a recipe: what it means, with its unit, for ``--help``, and perhaps how that calls the
    value. Without a default it has to be given. Choices are the values allowed; those of a registry are its
    keys at the time of asking.
    """
    more = {'choices': choices, 'metavar': metavar}
    return pydantic.Field(default, description=help, json_schema_extra=more)


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of: int and str of ``tuple[int, ...] | str | None``."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _leaves(typing.get_args(annotation)[0])
    elif origin in (Union, types.UnionType, tuple, dict):
        for argument in typing.get_args(annotation):
            yield from _leaves(argument)
    elif annotation not in (None, type(None), ...):
        yield annotation


def takes(field: FieldInfo, kind: Any) -> bool:
    """Whether a field takes values of a type, or several of them."""
    return kind in _leaves(field.annotation)


def takes_several(field: FieldInfo) -> bool:
    """Whether a field takes a list of values."""
    annotations = (field.annotation, *typing.get_args(field.annotation))
    return any(typing.get_origin(annotation) is tuple for annotation in annotations)


def choices_of(field: FieldInfo) -> list[Any]:
    """The values that a field is restricted to, by a registry or by its type; none if it is not."""
    named = field.json_schema_extra['choices']
    if named is not None:
        return list(named)
    leaves = list(_leaves(field.annotation))
    words = [word for leaf in leaves if typing.get_origin(leaf) is typing.Literal for word in leaf.__args__]
    return words if all(typing.get_origin(leaf) is typing.Literal for leaf in leaves) else []


class Recipe(pydantic.BaseModel):
    """Base of recipes; its fields are made by `option`.

    Strings become paths and numbers; what has commas between becomes a tuple, or a mapping where the field is
    one. Numbers are never rounded, and words are never taken for truth values.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra='forbid', allow_inf_nan=False, coerce_numbers_to_str=True
    )
    # pairs of fields of which one makes the other useless, with the reason
    ALTERNATIVES: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    # fields by what they are about, as ``--help`` lists them; those that are in none come first
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # told to one call and no setting of the run, so not saved: a resumed run leaves the same files
    OF_THE_CALL: ClassVar[tuple[str, ...]] = ('resume',)

    def problems(self) -> list[str]:
        """Contradictions between fields whose values are right in themselves."""
        return []

    def unread(self) -> Mapping[str, str]:
        """The fields that nothing reads beside the values of the others, and why. A recipe for several runs
        may have them; a flag or a keyword that is one is a mistake, see `check_read`.
        """
        return {}

    def replace(self: R, **values: Any) -> R:
        """The recipe with other values of some fields, checked again."""
        return type(self)(**{**dict(self), **values})

    def is_default(self, name: str) -> bool:
        """Whether a field has its default."""
        return getattr(self, name) == type(self).model_fields[name].default

    @pydantic.field_validator('*', mode='before')
    @classmethod
    def _as_written(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Read what YAML and the command line write in another way than pydantic does."""
        field = cls.model_fields[info.field_name]
        if isinstance(field.default, Mapping):
            value = _pairs(value)
            value = {**field.default, **value} if isinstance(value, Mapping) else value
        elif takes_several(field):
            if isinstance(value, str):
                value = [part.strip() for part in value.split(',') if part.strip()]
            elif value is not None and not isinstance(value, (list, tuple)):
                value = [value]
        is_number = takes(field, int) or takes(field, float)
        for item in _items(value):
            if takes(field, bool):
                if item is not None and str(item).lower() not in ('true', 'yes', 'false', 'no'):
                    raise ValueError('must be true or false')
            elif isinstance(item, bool):
                raise ValueError('must not be a truth value')
            elif is_number and isinstance(item, str) and _LEADING_ZERO.match(item.strip()):
                raise ValueError('must not begin with 0: is it octal or decimal?')
            elif takes(field, Path) and item == '':
                raise ValueError('must name a file or a directory, and is empty')
        return value

    @pydantic.field_validator('*')
    @classmethod
    def _is_allowed(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name]
        choices = choices_of(field)
        if isinstance(value, Mapping) and len(value) > len(field.default):
            raise ValueError(f'must name some of {", ".join(field.default)}')
        for item in _items(value):
            if isinstance(item, int) and abs(item) > _LARGEST:
                raise ValueError('must be a whole number below 2^63')
            if choices and item is not None and item not in choices:
                raise ValueError(f'must be one of {", ".join(map(str, choices))}')
        return value

    @pydantic.model_validator(mode='after')
    def _is_consistent(self: R) -> R:
        problems = self.problems()
        if problems:
            raise PydanticCustomError('contradiction', 'Contradictions: {listed}', {'listed': problems})
        return self


R = TypeVar('R', bound=Recipe)


def _pairs(value: Any) -> Any:
    """The mapping that ``a=1,b=2`` stands for; all else as it is."""
    if not isinstance(value, str):
        return value
    parts = [part.partition('=') for part in value.split(',') if part.strip()]
    return {name.strip(): number.strip() for name, _, number in parts}


def _items(value: Any) -> Collection[Any]:
    """The values that a field holds, one or several."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else [value]


def with_options_of(cls: type[Recipe], names: Collection[str]) -> type[Recipe]:
    """A recipe to derive from, which has some options of another one, with their defaults and help."""
    options = {name: (cls.model_fields[name].annotation, cls.model_fields[name]) for name in names}
    return pydantic.create_model(f'OptionsOf{cls.__name__}', __base__=Recipe, **options)


def _shown(value: Any) -> str:
    """A value as a message shows it: cut, for a few lines of YAML can stand for a list of billions."""
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict, short.maxstring, short.maxother = 2, 6, 6, 100, 100
    return short.repr(value)


def fill(
    cls: type[R],
    values: Mapping[str, Any],
    *,
    source: str = 'recipe',
    flags: Collection[str] = (),
    positional: str | None = None,
) -> R:
    """The recipe of type `cls` that `values` describe; RecipeError with every problem at once.

    Messages name the `source` of a value; the flag of a field in `flags`; and the field `positional`, which
    a command takes as a word without a flag, as its help does.
    """
    try:
        return cls.model_validate(dict(values))
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False)
    problems: dict[Any, str] = {}  # by field and value, for each type of a union has a complaint of its own
    for one in errors:
        name = one['loc'][0] if one['loc'] else ''
        place = flag(name) if name in flags else f'{source}: {name}'
        reason = (
            one['msg'].removeprefix('Value error, ').replace('Input should', 'must').replace('Input ', '')
        )
        key = (name, id(one['input']))
        if one['type'] == 'contradiction':
            problems.update(enumerate(one['ctx']['listed']))
        elif one['type'] == 'extra_forbidden':
            problems[key] = f'{source}: unknown field {_shown(name)}{meant(name, cls.model_fields)}'
        elif one['type'] == 'missing':
            asked = name.upper() if name == positional else flag(name)
            problems[name] = f'{source}: {asked} is missing: {cls.model_fields[name].description}'
        elif key in problems and reason not in problems[key]:
            problems[key] = problems[key].replace(', found', f', or {reason}, found')
        else:
            problems[key] = f'{place} {reason}, found {_shown(one["input"])}'
    raise RecipeError(list(problems.values()))


def check_alternatives(cls: type[Recipe], values: Mapping[str, Any]) -> None:
    """Raise RecipeError if a value makes another one useless, as ``ALTERNATIVES`` of the class says.

    Only values from one place are compared: those of a recipe file, or the flags that override it.
    """
    problems = [
        f'{flag(one)} and {flag(other)} exclude each other: {reason}'
        for one, other, reason in cls.ALTERNATIVES
        if _is_stated(values, one) and _is_stated(values, other)
    ]
    if problems:
        raise RecipeError(problems)


def check_read(recipe: R, stated: Collection[str]) -> R:
    """The recipe; RecipeError if one of the fields that flags or keywords state is read by nothing."""
    unread = {name: why for name, why in recipe.unread().items() if name in stated}
    if unread:
        raise RecipeError([f'nothing would read {flag(name)}: {why}' for name, why in unread.items()])
    return recipe


def _is_stated(values: Mapping[str, Any], name: str) -> bool:
    return values.get(name) not in (None, (), [])


def overridden(cls: type[Recipe], values: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe with those of flags or keywords in their place.

    If flags state one of two fields in ``ALTERNATIVES``, the other one of the recipe gets its default, where
    that is none. Of a mapping, flags replace what they name. Errors are those of `check_alternatives`.
    """
    check_alternatives(cls, by)
    dropped = {
        other
        for pair in cls.ALTERNATIVES
        for one, other in (pair[:2], pair[1::-1])
        if _is_stated(by, one) and cls.model_fields[other].default in (None, ()) and other not in by
    }
    kept = {name: value for name, value in values.items() if name not in dropped}
    merged = {
        name: {**_pairs(kept[name]), **_pairs(by[name])}
        for name in {*kept} & {*by} & {*cls.model_fields}
        if isinstance(cls.model_fields[name].default, Mapping)
        if isinstance(_pairs(kept[name]), Mapping) and isinstance(_pairs(by[name]), Mapping)
    }
    return {**kept, **by, **merged}


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe as plain YAML and JSON values, for `fill`."""
    return recipe.model_dump(mode='json', exclude=set(recipe.OF_THE_CALL))


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob('*/*.yaml'))}


def find_recipe(name: str | Path) -> Path:
    """The recipe file at a path; where there is none, the packaged recipe of that name, as ``small_prune``;
    FileNotFoundError that lists the names, if it is neither.
    """
    path = Path(name)
    if path.name != str(name) or os.path.isfile(path):
        return path
    known = packaged_recipes()
    stem = path.stem if path.suffix in YAML else path.name
    if stem not in known:
        raise FileNotFoundError(
            f'{shown(name)}: no such recipe file, and no recipe of the package, which has {", ".join(known)}'
            f'; several values of a flag have commas between them{meant(stem, known)}'
        )
    return known[stem]


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields in a recipe file; FileNotFoundError, or RecipeError if it is no mapping in YAML."""
    path = Path(path)
    if not os.path.isfile(path):  # also where the name is too long for the file system
        beside = [file.name for file in path.parent.glob('*.y*ml')]
        raise FileNotFoundError(f'{shown(path)}: no such recipe file{meant(path.name, beside)}')
    values = load_yaml(read_small(path), source=str(path))
    if values is None:
        raise RecipeError([f'{path}: is empty; write {{}} if every field shall have its default'])
    if not isinstance(values, dict):
        raise RecipeError([f'{path}: a recipe is a mapping of field: value, found {type(values).__name__}'])
    return values


class _Loader(yaml.SafeLoader):
    """PyYAML's, where a key twice is an error and `010` and `1:00`, 8 and 60 in YAML 1.1, are words."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            known = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if known in lines:
                problem = f'the key {_shown(key.value)} is on line {lines[known]} already'
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            if known:
                lines[known] = key.start_mark.line + 1
        return node

    def compose_document(self):
        node = super().compose_document()
        within(_count(node, {}), MOST_NODES, 'values, aliases and merges written out', source='the file')
        return node

    def _decimal(self, node):
        text = self.construct_scalar(node)
        if ':' in text or _LEADING_ZERO.match(text):
            return text
        number = yaml.SafeLoader.yaml_constructors[node.tag]
        return number(self, node)


for _tag in ('tag:yaml.org,2002:int', 'tag:yaml.org,2002:float'):
    _Loader.add_constructor(_tag, _Loader._decimal)


def _count(node: yaml.Node, known: dict[int, float]) -> float:
    """The values of a node of YAML, with aliases written out; inf for one within itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]


def load_yaml(content: bytes, *, source: str) -> Any:
    """The values in a YAML file; RecipeError, with the line, if it is none."""
    try:
        within(len(content), MOST_YAML_BYTES, 'bytes', source='the file')
        return yaml.load(content.decode('utf-8'), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise RecipeError([f'{source}: not readable as YAML: {_where_and_what(error)}']) from error
    except Exception as error:  # PyYAML also lets through what int, datetime, a dict or recursion raise
        reason = ' '.join(str(error).split('\n')[0][:200].split())
        raise RecipeError([f'{source}: not readable as YAML ({type(error).__name__}: {reason})']) from error


def _where_and_what(error: yaml.MarkedYAMLError) -> str:
    """The line and the cause of an error of PyYAML's."""
    context = error.context if error.context and not error.context.startswith('while ') else ''
    reason = ' '.join(f'{context} {error.problem}'.split())[:200]
    if r'\t' in reason:
        reason += ' (a tab? write spaces)'
    return reason if error.problem_mark is None else f'line {error.problem_mark.line + 1}: {reason}'


def save(recipe: Recipe, path: Path) -> None:
    """Write a resolved recipe as YAML, for `check_same` and for people."""
    write_file(path, yaml.safe_dump(to_dict(recipe), sort_keys=False).encode('utf-8'))


def differing(recipe: Recipe, path: Path, *, but: Sequence[str] = ()) -> list[str]:
    """The fields, sorted, in which a recipe differs from one that `save` wrote; those in `but` are not
    compared.
    """
    begun = read_yaml(path)
    values = to_dict(recipe)
    return sorted(name for name in values if name not in but and begun.get(name) != values[name])


def check_same(recipe: Recipe, path: Path, *, but: Sequence[str] = ()) -> None:
    """Raise ValueError unless a run that is resumed has the settings that it was begun with, as `save` wrote
    them.

    Fields named in `but` may differ, and so may ``output``: a run may have been moved.
    """
    changed = differing(recipe, path, but=(*but, 'output'))
    if changed:
        begun = read_yaml(path)
        settings = ', '.join(f'{name} (then {_shown(begun.get(name))})' for name in changed)
        raise ValueError(
            f'{Path(path).parent} was begun with other settings of {settings}; use the same, or another '
            '--output'
        )
