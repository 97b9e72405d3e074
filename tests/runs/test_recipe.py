"""Recipes: filled from YAML and flags, checked whole, saved and read back."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st
from pydantic import NonNegativeFloat, PositiveInt, ValidationError

from gluon_optbert.finetuning.recipes import GlueRecipe, SquadRecipe
from gluon_optbert.network.settings import AUTO, fast_precision
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe
from gluon_optbert.runs.command_line import parse, parser_of
from gluon_optbert.runs.recipe import (
    Recipe,
    RecipeError,
    fill,
    option,
    packaged_recipes,
    read_yaml,
    to_dict,
    with_options_of,
)
from gluon_optbert.runs.starting import flag
from gluon_optbert.training.recipe import PretrainRecipe


class Bread(Recipe):
    """A recipe with a field of every kind."""

    ALTERNATIVES = (('hours', 'sizes', 'the hours follow from the sizes'),)

    flour: Path = option('where the flour is')
    loaves: PositiveInt = option('how many, at 100 % each', 2, metavar='N')
    salt: NonNegativeFloat = option('grams', 9.5)
    sieve: bool = option('whether to sieve', False)
    kind: str = option('of bread', 'rye', choices={'rye': 1, 'wheat': 2})
    hours: PositiveInt | Literal['auto'] | None = option('in the oven', None)
    seeds: tuple[str, ...] = option('on top', ('poppy', 'sesame'))
    sizes: tuple[float, ...] = option('of loaves, kg', ())
    shares: dict[str, NonNegativeFloat] = option('of the dough', {'water': 0.4, 'rest': 0.6})

    GROUPS = {'dough': ('flour', 'shares', 'salt')}

    def problems(self):
        return ['salt needs seeds', 'seeds need salt'] if self.salt == 7 and not self.seeds else []


def refusal(values, cls=Bread, **more):
    with pytest.raises(RecipeError) as error:
        fill(cls, values, **more)
    return error.value.problems


def test_a_recipe_can_have_some_options_of_another():
    class Cake(with_options_of(Bread, ('hours', 'flour', 'kind'))):
        sugar: float = option('grams', 1.0)

    assert list(to_dict(fill(Cake, {'flour': 'mill'}))) == ['hours', 'flour', 'kind', 'sugar']
    assert len(refusal({'kind': 'nut', 'loaves': 3}, Cake)) == 3  # a choice, an unknown option, no flour


def test_all_problems_are_reported_at_once():
    values = {'loafs': 3, 'salt': 'much', 'sieve': 'perhaps', 'kind': 'spelt', 'loaves': 2.5, 'hours': 0}
    problems = refusal({**values, 'sizes': [1, 'x']}, source='bread.yaml')
    assert len(problems) == 8 and all(problem.startswith('bread.yaml: ') for problem in problems)
    for name, found in (('loafs', 'did you mean loaves?'), ('flour', 'missing'), *values.items()):
        assert any(name in problem and (name == 'loafs' or str(found) in problem) for problem in problems)


def test_contradictions_are_reported_when_every_field_is_sound():
    assert refusal({'flour': 'mill', 'salt': 7, 'seeds': ''}) == ['salt needs seeds', 'seeds need salt']
    recipe = Bread(flour='mill', salt=7)
    assert recipe.replace(loaves='7') == Bread(flour='mill', loaves=7, salt=7) and recipe.loaves == 2
    with pytest.raises(ValidationError, match='salt needs seeds'):
        recipe.replace(seeds=())
    with pytest.raises(ValidationError):
        recipe.loaves = 3


OTHERS = {
    'salt': [float('nan'), 'nan', '-inf', '1e400', {}, None, True, '1,5', -1, '010', 10**400],
    'loaves': ['3.5', 1.5, 'four', '', None, False, [3], '1e3', '010', '-07', 0, np.float32(2.5)]
    + [Fraction(5, 2), float('inf'), 2**63, -(2**63), '99999999999999999999999999', 1e30],
    'sieve': ['perhaps', 'on', 1, None, []],
    'flour': [3, True, None, ['mill'], ''],
    'kind': [True, None, 'spelt', ['rye']],
    'hours': ['never', 2.5, True, 0, 2**63],
    'sizes': [None, [None], 'a', True, ['1', '010'], {'a': 1}],
    'seeds': [None, [True], [[]]],
    'shares': [None, ['water'], 'water', 'water=much', 'water=-1', 'milk=1', {'water': True}],
}


@pytest.mark.parametrize('name', OTHERS)
def test_value_of_another_kind_is_refused(name):
    for value in OTHERS[name]:
        (problem,) = refusal({'flour': 'mill', name: value})
        assert problem.startswith(f'recipe: {name} ') and 'found' in problem, value


@pytest.mark.parametrize(
    'name, value, wanted',
    [
        ('loaves', 1000.0, 1000),  # YAML reads 1e3 as a word and 1.0e+3 as a float
        ('loaves', np.int64(3), 3),
        ('loaves', '1_000', 1000),
        ('salt', '1e-3', 0.001),
        ('salt', np.float32(0.5), 0.5),
        ('sieve', 'No', False),
        ('sieve', 'TRUE', True),
        ('hours', 'auto', 'auto'),
        ('hours', '4', 4),
        ('seeds', 'flax, oats,', ('flax', 'oats')),
        ('seeds', 2.0, ('2.0',)),
        ('sizes', 0.5, (0.5,)),
        ('sizes', '', ()),
        ('shares', {'rest': 0}, {'water': 0.4, 'rest': 0.0}),
        ('shares', ' rest = 1, water=2', {'water': 2.0, 'rest': 1.0}),
    ],
)
def test_value_written_in_another_way_is_read(name, value, wanted):
    read = getattr(fill(Bread, {'flour': 'mill', name: value}), name)
    assert read == wanted and type(read) is type(wanted)


WHOLE = st.integers(1, 2**63 - 1)


@given(
    st.builds(
        Bread,
        flour=st.sampled_from([Path('a'), Path('b/c d')]),
        loaves=WHOLE,
        salt=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
        sieve=st.booleans(),
        kind=st.sampled_from(['rye', 'wheat']),
        hours=st.none() | WHOLE | st.just('auto'),
        seeds=st.lists(st.sampled_from(['poppy', 'yes', '12', '']), min_size=1).map(tuple),
        sizes=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
        shares=st.dictionaries(st.sampled_from(['water', 'rest']), st.floats(0, 9)),
    )
)
def test_saved_recipe_reads_back_equal(recipe):
    assert fill(Bread, to_dict(recipe)) == recipe
    assert fill(Bread, yaml.safe_load(yaml.safe_dump(to_dict(recipe)))) == recipe


# Files


@pytest.mark.parametrize(
    'content, said',
    [
        (b'- flour\n', ''),
        (b'\xff\xfe\x00flour', ''),
        (b'a: !!python/object:os.system {}\n', ''),
        (b'# later\n', 'is empty'),
        (b'loaves: 2\nsalt: 1\nloaves: 3\n', "line 3: the key 'loaves' is on line 1 already"),
        (b'flour: mill\n\tsalt: 1\n', 'line 2: '),
        (b'yes: 4\n', 'found True'),
        (b'loaves: 010\n', "found '010'"),
        (b'loaves: 1:00\n', "found '1:00'"),
    ],
)
def test_file_that_is_no_recipe_is_refused_by_name_and_place(tmp_path, content, said):
    path = tmp_path / 'bread.yaml'
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        fill(Bread, {'flour': 'mill', **read_yaml(path)}, source=str(path))
    assert said in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    'name, said',
    [('prune.yml', 'did you mean .*prune.yaml'), ('a\nb.yaml', 'no such'), ('x' * 5000, 'no such')],
)
def test_missing_recipe_file_is_named_in_a_short_line(tmp_path, name, said):
    (tmp_path / 'prune.yaml').write_text('{}')
    with pytest.raises(FileNotFoundError, match=said) as caught:
        read_yaml(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 600


def test_merged_mappings_may_have_the_same_keys(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, x: 4}\n')
    values = read_yaml(path)
    assert (values['b'], values['c']) == ({'x': 3, 'y': 2}, {'x': 4, 'y': 2})


# Command lines


def parsed(argv, cls=Bread):
    return parse(cls, argv, description='Bake.', example='python bake.py')


def test_flags_override_yaml_and_yaml_overrides_defaults(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('flour: mill\nloaves: 5\nsalt: 1.0e-3\nseeds: [oats]\nhours: 3\n')
    written = Bread(flour='mill', loaves=5, salt=0.001, seeds=('oats',), hours=3)
    assert parsed([str(path)]) == written
    changed = parsed([str(path), '--loaves', '7', '--seeds', 'flax, oats', '--sieve'])
    assert changed == written.replace(loaves=7, sieve=True, seeds=('flax', 'oats'))
    for number, salt in (('5e-5', 5e-5), ('0x10', 16.0), ('1_000', 1000.0)):
        path.write_text(f'flour: mill\nsalt: {number}\n')
        assert parsed([str(path)]).salt == salt
    # of a mapping, a flag replaces what it names
    path.write_text('flour: mill\nshares: {water: 1, rest: 2}\n')
    assert parsed([str(path), '--shares', 'rest=3']).shares == {'water': 1.0, 'rest': 3.0}
    # one that excludes a field of the file takes its place
    path.write_text('flour: mill\nhours: 3\n')
    assert parsed([str(path), '--sizes', '0.5,1']) == Bread(flour='mill', sizes=(0.5, 1.0))
    with pytest.raises(RecipeError, match='--hours and --sizes exclude each other'):
        parsed([str(path), '--sizes', '1', '--hours', '2'])


def test_problems_of_yaml_and_flags_come_together_and_blame_what_has_them(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('flour: mill\nloafs: 5\nkind: spelt\nsieve: 3\n')
    with pytest.raises(RecipeError) as error:
        parsed([str(path), '--salt', 'much', '--kind', 'barley'])
    blamed = {problem.split()[0] for problem in error.value.problems}
    assert len(error.value.problems) == 4 and blamed == {f'{path}:', '--salt', '--kind'}


@pytest.mark.parametrize('cls', [Bread, PretrainRecipe, PruneRecipe])
def test_help_shows_the_example_first_and_every_field_with_its_default(cls):
    text = ' '.join(parser_of(cls, description='Bake.', example='python bake.py').format_help().split())
    assert text.index('example: python bake.py') < text.index('recipe: a YAML file')
    for name, field in cls.model_fields.items():
        assert f'{flag(name)} ' in text and ' '.join(field.description.split()) in text
        if field.is_required():
            assert f'{field.description} [required]' in text
        elif field.default not in (None, ()) and not isinstance(field.default, (tuple, dict)):
            assert f'[default: {field.default}]' in text


@pytest.mark.parametrize('cls', [PretrainRecipe, PruneRecipe, TaskPruneRecipe, GlueRecipe, SquadRecipe])
def test_groups_name_every_field_at_most_once(cls):
    names = [name for group in cls.GROUPS.values() for name in group]
    assert len(names) == len(set(names)) and set(names) <= set(cls.model_fields)
    assert set(names) == set(cls.model_fields) or cls not in (PruneRecipe, TaskPruneRecipe)


@pytest.mark.parametrize(
    'words, said',
    [
        (['--flour', 'mill', '--kinf=rye'], 'unknown flag --kinf, did you mean --kind?'),
        (['--flour', 'mill', '--qqqq', '1'], 'unknown flag --qqqq; --help lists the flags'),
        (['--flour'], 'argument --flour: expected one argument'),
        (['one.yaml', 'two.yaml'], 'too many words: two.yaml'),
    ],
)
def test_words_that_are_no_flags_are_refused_with_the_flag_that_was_meant(words, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        parsed(words)


class Basket(Recipe):
    """A recipe that is filled from all the words of its command line."""

    loaves: tuple[Path, ...] = option('what goes in')
    covered: bool = option('with a cloth', False)


def test_positional_tuple_takes_all_words():
    words = {'description': 'Fill.', 'example': 'fill a b', 'positional': 'loaves'}
    assert parse(Basket, ['a', 'b', '--covered'], **words) == Basket(loaves=('a', 'b'), covered=True)
    assert parse(Basket, ['a'], **words).loaves == (Path('a'),)
    with pytest.raises(RecipeError, match='command line: LOAVES is missing'):
        parse(Basket, [], **words)


# What is packaged


def kind_of(path):
    """The recipe that a packaged file fills, and what it leaves to flags."""
    folder, name = path.parts[-2:]
    if 'prune' in name or path.stem in ('paper', 'best', 'encoder', 'sentences'):
        return (PruneRecipe, 'shards') if folder == 'pretrain' else (TaskPruneRecipe, 'data')
    if folder == 'pretrain':
        return (PretrainRecipe, 'shards', *(['model'] if name == 'imported_heads.yaml' else []))
    return (SquadRecipe,) if name.startswith('squad') else (GlueRecipe, 'task')


@pytest.mark.parametrize('name, path', packaged_recipes().items())
def test_packaged_recipe_is_read(name, path):
    (cls, *lacking), values = kind_of(path), read_yaml(path)
    lacking += ['output'] if cls is PretrainRecipe else ['output', 'model']
    recipe = fill(cls, {**dict.fromkeys(lacking, 'somewhere'), **values}, source=str(path))
    for key, value in values.items():
        value = fast_precision() if (key, value) == ('precision', AUTO) else value
        read = to_dict(recipe)[key]
        assert read == ({**read, **value} if isinstance(value, dict) else value)
