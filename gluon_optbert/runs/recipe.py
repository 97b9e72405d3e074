"""A run as a dataclass: filled from YAML, then from flags, checked whole, saved with what it made."""

from __future__ import annotations

import dataclasses
import difflib
import numbers
import re
import reprlib
import typing
from pathlib import Path
from typing import (
    Any,
    Collection,
    Dict,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

import yaml

from .files import write_file

R = TypeVar('R')
RECIPES = Path(__file__).resolve().parents[1] / 'recipes'  # of the package, in folders by what they are for
_LARGEST = 2**63 - 1  # of a whole number, as NumPy's
_LEADING_ZERO = re.compile(r'[-+]?0[0-9_]+$')  # octal in YAML 1.1, decimal in YAML 1.2


class RecipeError(ValueError):
    """Everything that is wrong with a recipe, in one message."""

    def __init__(self, problems: Sequence[str]):
        super().__init__('; '.join(problems))
        self.problems = list(problems)


REQUIRED = object()


def option(
    help: str,
    default: Any = REQUIRED,
    *,
    choices: Optional[Collection[Any]] = None,
    metavar: Optional[str] = None,
) -> Any:
    """One field of a recipe.

    Parameters
    ----------
    help : str
        What the value means, with its unit; shown by ``--help``.
    default : optional
        Without it the field has to be given.
    choices : collection, optional
        The values allowed; those of a mapping are its keys at the time of asking.
    metavar : str, optional
        The placeholder in ``--help``.
    """
    required = default is REQUIRED  # the field itself has a default, so that recipes can extend each other
    return dataclasses.field(
        default=None if required else default,
        metadata={'help': help, 'choices': choices, 'metavar': metavar, 'required': required},
    )


def with_options_of(cls: type, names: Collection[str]) -> type:
    """A recipe to derive from, which has some options of another one: their types, defaults and help.

    Parameters
    ----------
    cls : type
        The recipe that has them.
    names : collection of str
        In the order in which the new recipe has them.
    """
    fields, hints = {field.name: field for field in dataclasses.fields(cls)}, typing.get_type_hints(cls)
    options = [
        (name, hints[name], dataclasses.field(default=fields[name].default, metadata=fields[name].metadata))
        for name in names
    ]
    return dataclasses.make_dataclass(f'OptionsOf{cls.__name__}', options, frozen=True)


def _unwrapped(annotation: Any) -> Any:
    """`int` of `Optional[int]`; what may not be None as it is."""
    arguments = typing.get_args(annotation) if typing.get_origin(annotation) is Union else ()
    if type(None) not in arguments:
        return annotation
    return Union[tuple(a for a in arguments if a is not type(None))]


def _alternatives(annotation: Any) -> Tuple[Any, Tuple[str, ...]]:
    """`int` and ``('auto',)`` of `Union[int, Literal['auto']]`."""
    literals = [a for a in typing.get_args(annotation) if typing.get_origin(a) is Literal]
    (other,) = (a for a in typing.get_args(annotation) if a not in literals)
    return other, tuple(word for literal in literals for word in typing.get_args(literal))


def _convert(value: Any, annotation: Any) -> Any:
    """`value`, from YAML or from the command line, as the type that `annotation` names.

    Raises
    ------
    ValueError
        If it is not one; numbers are never rounded and words never taken for truth values.
    """
    optional = _unwrapped(annotation) is not annotation
    annotation = _unwrapped(annotation)
    if value is None:
        if optional:
            return None
        raise ValueError('null')
    if typing.get_origin(annotation) is Union:  # of a type and the words that may stand for it
        other, words = _alternatives(annotation)
        return value if isinstance(value, str) and value in words else _convert(value, other)
    if typing.get_origin(annotation) is tuple:
        item = typing.get_args(annotation)[0]
        if isinstance(value, str):
            value = [part.strip() for part in value.split(',') if part.strip()]
        if not isinstance(value, (list, tuple)):
            value = [value]
        return tuple(_convert(part, item) for part in value)
    if annotation is bool:
        words = {'true': True, 'yes': True, 'false': False, 'no': False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError('a truth value')
    if isinstance(value, (bool, list, dict)):
        raise ValueError(type(value).__name__)
    if annotation in (int, float) and isinstance(value, str) and _LEADING_ZERO.match(value.strip()):
        raise ValueError('octal or decimal')
    if annotation is int and isinstance(value, numbers.Real):
        if int(value) != value:
            raise ValueError('a fraction')
        return int(value)
    if annotation is float:
        number = float(value)
        if number != number or number in (float('inf'), float('-inf')):
            raise ValueError('not finite')
        return number
    return annotation(value)


def _shown(value: Any) -> str:
    """A value as a message shows it: cut, for a few lines of YAML can stand for a list of billions."""
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict, short.maxstring, short.maxother = 2, 6, 6, 100, 100
    return short.repr(value)


_KIND = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a word', Path: 'a path'}


def _kind(annotation: Any) -> str:
    inner = _unwrapped(annotation)
    if typing.get_origin(inner) is Union:
        other, words = _alternatives(inner)
        return f'{_kind(other)} or {" or ".join(words)}'
    if typing.get_origin(inner) is tuple:
        return 'a list, each ' + _kind(typing.get_args(inner)[0])
    return _KIND.get(inner, getattr(inner, '__name__', str(inner)))


def fill(
    cls: Type[R],
    values: Dict[str, Any],
    *,
    source: str = 'recipe',
    flags: Collection[str] = (),
    positional: Optional[str] = None,
) -> R:
    """The recipe of type `cls` that `values` describe; every problem is reported at once.

    Parameters
    ----------
    cls : type
        A dataclass of fields made by `option`.
    values : dict
        By the names of the fields.
    source : str
        Where the values are from, for messages.
    flags : collection of str
        The fields whose values come from flags instead; messages name the flag.
    positional : str, optional
        The field that a command takes as a word without a flag, as its help names it.

    A class may have a method ``problems(self) -> list of str`` that says what is contradictory about its
    fields.

    Raises
    ------
    RecipeError
        Unknown or missing fields, values of the wrong type or out of their choices, contradictions.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    problems, filled = [], {}
    for name, value in values.items():
        shown = flag(name) if name in flags else f'{source}: {name}'
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            problems.append(
                f'{source}: unknown field {_shown(name)}' + (f', did you mean {near[0]!r}?' if near else '')
            )
            continue
        try:
            filled[name] = _convert(value, hints[name])
        except (ValueError, TypeError, OverflowError):
            problems.append(f'{shown} must be {_kind(hints[name])}, found {_shown(value)}')
            continue
        choices = fields[name].metadata.get('choices')
        chosen = filled[name] if isinstance(filled[name], tuple) else (filled[name],)
        if any(isinstance(item, int) and abs(item) > _LARGEST for item in chosen):
            problems.append(f'{shown} must be a whole number below 2^63, found {_shown(value)}')
            del filled[name]
            continue
        for item in chosen:
            if choices and item is not None and item not in choices:
                problems.append(
                    f'{shown} must be one of {", ".join(map(str, choices))}, found {_shown(item)}'
                )
    for name, f in fields.items():
        if f.metadata['required'] and name not in values:
            shown = name.upper() if name == positional else flag(name)
            problems.append(f'{source}: {shown} is missing: {f.metadata["help"]}')
    # with the defaults of fields that were wrong, to find what is wrong with the others
    recipe = cls(**filled)
    problems += recipe.problems() if hasattr(recipe, 'problems') else []
    if problems:
        raise RecipeError(problems)
    return recipe


def check_alternatives(cls: Type[R], values: Mapping[str, Any]) -> None:
    """Raise RecipeError if one of the values makes another one useless.

    The class lists such fields in ``ALTERNATIVES``, as pairs with the reason. Only values from one place are
    compared: those of a recipe file, or the flags that override it.
    """
    problems = [
        f'{flag(one)} and {flag(other)} exclude each other: {reason}'
        for one, other, reason in getattr(cls, 'ALTERNATIVES', ())
        if _stated(values, one) and _stated(values, other)
    ]
    if problems:
        raise RecipeError(problems)


def _stated(values: Mapping[str, Any], name: str) -> bool:
    return values.get(name) not in (None, (), [])


def overridden(cls: Type[R], values: Mapping[str, Any], by: Mapping[str, Any]) -> Dict[str, Any]:
    """The values of a recipe with those of flags or keywords in their place.

    If flags state one of two fields in ``ALTERNATIVES``, the other one of the recipe gets its default, where
    that is none.

    Raises
    ------
    RecipeError
        As `check_alternatives`, of the flags.
    """
    unset = {field.name for field in dataclasses.fields(cls) if field.default in (None, ())}
    check_alternatives(cls, by)
    dropped = {
        other
        for pair in getattr(cls, 'ALTERNATIVES', ())
        for one, other in (pair[:2], pair[1::-1])
        if _stated(by, one) and other in unset and other not in by
    }
    return {**{name: value for name, value in values.items() if name not in dropped}, **by}


def checked(recipe: R, *, source: str = 'recipe') -> R:
    """The same recipe with every value in its field's type, however it was made; every problem is reported at
    once.

    A dataclass takes any value. Every public function that takes a recipe therefore passes it through here
    first: strings become paths, lists become tuples, and what the command line refuses is refused as well.

    Raises
    ------
    RecipeError
        As `fill`.
    """
    values = {
        f.name: getattr(recipe, f.name)
        for f in dataclasses.fields(recipe)
        if not (f.metadata['required'] and getattr(recipe, f.name) is None)
    }
    return fill(type(recipe), values, source=source)


def seed_problems(seed: int) -> List[str]:
    """What is wrong with a random seed: one line, or none. NumPy's generators take 32 bits."""
    return [] if 0 <= seed < 2**32 else [f'seed must be from 0 to 2^32 - 1, found {seed}']


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return '--' + name.replace('_', '-')


def to_dict(recipe: Any) -> Dict[str, Any]:
    """The recipe as plain YAML and JSON values, the inverse of `fill`."""
    return {f.name: _plain(getattr(recipe, f.name)) for f in dataclasses.fields(recipe)}


def _plain(value: Any) -> Any:
    """A field's value in YAML and JSON."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def packaged_recipes() -> Dict[str, Path]:
    """The recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob('*/*.yaml'))}


def find_recipe(name: Union[str, Path]) -> Path:
    """The recipe file at a path; where there is none, the packaged recipe of that name, as ``small_prune``.

    Raises
    ------
    FileNotFoundError
        If it is neither; the message lists the names.
    """
    path = Path(name)
    try:
        is_name = not path.is_file() and path.name == str(name)
    except OSError:  # a path that cannot be; `read_yaml` says why
        is_name = False
    if not is_name:
        return path
    known = packaged_recipes()
    stem = path.stem if path.suffix == '.yaml' else path.name
    if stem not in known:
        shown = name if str(name).isprintable() else repr(str(name))
        raise FileNotFoundError(
            f'{shown}: no such recipe file, and no recipe of the package, which has {", ".join(known)}; '
            'several values of a flag have commas between them'
        )
    return known[stem]


def read_yaml(path: Path) -> Dict[str, Any]:
    """The fields in a recipe file.

    Raises
    ------
    FileNotFoundError, RecipeError
        If there is no such file, it is empty, or it is not a mapping in YAML.
    """
    path = Path(path)
    try:
        is_file = path.is_file()
    except OSError as error:  # a name that is too long, for one
        raise FileNotFoundError(f'{str(path)[:200]}: no recipe file ({error.strerror})') from error
    if not is_file:
        raise FileNotFoundError(
            f'{path if str(path).isprintable() else repr(str(path))}: no such recipe file'
        )
    values = load_yaml(path.read_bytes(), source=str(path))
    if values is None:
        raise RecipeError([f'{path}: is empty; write {{}} if every field shall have its default'])
    if not isinstance(values, dict):
        raise RecipeError([f'{path}: a recipe is a mapping of field: value, found {type(values).__name__}'])
    unnamed = [key for key in values if not isinstance(key, str)]
    if unnamed:
        raise RecipeError(
            [f'{path}: the key {_shown(key)} is no word, so it names no field' for key in unnamed]
        )
    return values


class _Loader(yaml.SafeLoader):
    """PyYAML's, where a key twice is an error and `010` and `1:00`, 8 and 60 in YAML 1.1, are words."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        lines: Dict[Tuple[str, str], int] = {}
        for key, _ in node.value:
            known = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if known in lines:
                problem = f'the key {_shown(key.value)} is on line {lines[known]} already'
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            if known:
                lines[known] = key.start_mark.line + 1
        return node

    def _decimal(self, node):
        text = self.construct_scalar(node)
        if ':' in text or _LEADING_ZERO.match(text):
            return text
        number = yaml.SafeLoader.yaml_constructors[node.tag]
        return number(self, node)


for _tag in ('tag:yaml.org,2002:int', 'tag:yaml.org,2002:float'):
    _Loader.add_constructor(_tag, _Loader._decimal)


def load_yaml(content: bytes, *, source: str) -> Any:
    """The values in a YAML file; RecipeError, with the line, if it is none."""
    try:
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


def save(recipe: Any, path: Path) -> None:
    """Write a resolved recipe as YAML, for `check_same` and for people."""
    write_file(path, yaml.safe_dump(to_dict(recipe), sort_keys=False).encode('utf-8'))


def differing(recipe: Any, path: Path, *, but: Sequence[str]) -> List[str]:
    """The fields, sorted, in which a recipe differs from one in a file, as `save` wrote it.

    Fields named in `but` are not compared. A field that the file lacks, because an older version wrote it,
    has its default there.
    """
    begun = {field.name: _plain(field.default) for field in dataclasses.fields(recipe)}
    begun.update(read_yaml(path))
    return sorted(name for name, value in to_dict(recipe).items() if name not in but and begun[name] != value)


def check_same(recipe: Any, path: Path, *, but: Sequence[str] = ('resume',)) -> None:
    """Raise ValueError unless a run that is resumed has the settings that it was begun with, as `save` wrote
    them.

    Fields named in `but` may differ, and so may ``output``: a run may have been moved. A field that the file
    lacks, because an older version wrote it, has its default there.
    """
    changed = differing(recipe, path, but=(*but, 'output'))
    if changed:
        raise ValueError(
            f'{Path(path).parent} was begun with other settings of {", ".join(changed)}; use the same, or '
            'another --output'
        )
