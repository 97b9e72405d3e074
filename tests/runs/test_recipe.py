"""Recipes: filled from YAML and flags, checked whole, saved and read back."""

import dataclasses
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Optional, Tuple

import numpy as np
import pytest
import yaml
from helpers.commands import call
from helpers.tiny import ROOT, environment
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.command_line import command, parse, parser_of
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.recipe import (
    RecipeError,
    checked,
    fill,
    flag,
    option,
    read_yaml,
    to_dict,
    with_options_of,
)
from gluon_optbert.training.recipe import PretrainRecipe


@dataclasses.dataclass(frozen=True)
class Bread:
    """A recipe with a field of every kind."""

    flour: Path = option('where the flour is')
    loaves: int = option('how many, at 100 % each', 2, metavar='N')
    salt: float = option('grams', 9.5)
    sieve: bool = option('whether to sieve', False)
    kind: str = option('of bread', 'rye', choices=('rye', 'wheat'))
    hours: Optional[int] = option('in the oven', None)
    seeds: Tuple[str, ...] = option('on top', ('poppy', 'sesame'))
    sizes: Tuple[float, ...] = option('of loaves, kg', ())

    def problems(self):
        return [f'salt must not be negative, found {self.salt}'] if self.salt < 0 else []


@dataclasses.dataclass(frozen=True)
class Rolls(Bread):
    """A recipe that extends another, with a required field after optional ones."""

    tin: Path = option('to bake in')


def test_defaults_stand_where_nothing_is_given():
    assert fill(Bread, {'flour': 'mill'}) == Bread(flour=Path('mill'))
    assert Bread(flour=Path('mill')).loaves == 2


def test_a_recipe_can_have_some_options_of_another():
    @dataclasses.dataclass(frozen=True)
    class Cake(with_options_of(Bread, ('hours', 'flour', 'kind'))):
        sugar: float = option('grams', 1.0)

    assert list(to_dict(fill(Cake, {'flour': 'mill'}))) == ['hours', 'flour', 'kind', 'sugar']
    assert fill(Cake, {'flour': 'mill', 'hours': 2}).flour == Path('mill')
    with pytest.raises(RecipeError) as error:
        fill(Cake, {'kind': 'nut', 'loaves': 3})
    assert len(error.value.problems) == 3  # a choice, an option of the other one alone, and no flour


def test_all_problems_are_reported_at_once():
    with pytest.raises(RecipeError) as error:
        fill(
            Bread,
            {
                'loafs': 3,
                'salt': 'much',
                'sieve': 'perhaps',
                'kind': 'spelt',
                'loaves': 2.5,
                'hours': True,
                'sizes': [1, 'x'],
            },
            source='bread.yaml',
        )
    problems = error.value.problems
    assert len(problems) == 8
    for named in (
        "unknown field 'loafs', did you mean 'loaves'?",
        '--flour is missing: where the flour is',
        "salt must be a number, found 'much'",
        "sieve must be true or false, found 'perhaps'",
        "kind must be one of rye, wheat, found 'spelt'",
        'loaves must be a whole number, found 2.5',
        'hours must be a whole number, found True',
        "sizes must be a list, each a number, found [1, 'x']",
    ):
        assert sum(named in problem for problem in problems) == 1
        assert all('bread.yaml' in problem for problem in problems)


def test_contradictions_are_reported_when_every_field_is_sound():
    with pytest.raises(RecipeError, match='salt must not be negative, found -1.0'):
        fill(Bread, {'flour': 'mill', 'salt': -1})


@pytest.mark.parametrize(
    'value',
    [float('nan'), float('inf'), 'nan', '-inf', [], {}, None, True, '1,5', pytest.param(10**400, id='huge')],
)
def test_value_that_is_no_number_is_refused(value):
    with pytest.raises(RecipeError, match='salt must be a number'):
        fill(Bread, {'flour': 'mill', 'salt': value})


@pytest.mark.parametrize('value', ['3.5', 1.5, 'four', '', None, False, [3], '1e3', '010', '-07'])
def test_value_that_is_no_whole_number_is_refused(value):
    with pytest.raises(RecipeError, match='loaves must be a whole number'):
        fill(Bread, {'flour': 'mill', 'loaves': value})


def test_whole_numbers_may_be_written_as_floats():
    """YAML reads 1e3 as a word and 1.0e+3 as a float."""
    assert fill(Bread, {'flour': 'mill', 'loaves': 1000.0}).loaves == 1000


def test_required_fields_may_follow_optional_ones():
    with pytest.raises(RecipeError) as error:
        fill(Rolls, {'loaves': 1})
    assert ['--flour' in problem or '--tin' in problem for problem in error.value.problems] == [True, True]
    assert fill(Rolls, {'flour': 'a', 'tin': 'b'}).tin == Path('b')


WHOLE = st.integers(1 - 2**63, 2**63 - 1)


@given(
    st.builds(
        Bread,
        flour=st.sampled_from([Path('a'), Path('b/c d')]),
        loaves=WHOLE,
        salt=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
        sieve=st.booleans(),
        kind=st.sampled_from(['rye', 'wheat']),
        hours=st.none() | WHOLE,
        seeds=st.lists(st.sampled_from(['poppy', 'yes', '12', ''])).map(tuple),
        sizes=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
    )
)
def test_saved_recipe_reads_back_equal(recipe):
    assert fill(Bread, to_dict(recipe)) == recipe
    assert fill(Bread, yaml.safe_load(yaml.safe_dump(to_dict(recipe)))) == recipe
    assert checked(recipe) == recipe


def test_recipe_made_by_hand_is_converted_when_it_is_checked():
    by_hand = Rolls(flour='mill', loaves=np.int64(3), salt=1, hours=2.0, seeds=['oats'], sizes=0.5, tin='tin')
    assert checked(by_hand) == Rolls(
        Path('mill'), 3, 1.0, hours=2, seeds=('oats',), sizes=(0.5,), tin=Path('tin')
    )
    assert [type(value) for value in dataclasses.astuple(checked(by_hand))[:3]] == [type(Path()), int, float]


def test_recipe_made_by_hand_is_refused_with_what_the_command_line_says():
    values = {'loaves': 2.5, 'salt': -1, 'kind': 'spelt', 'sieve': 'perhaps'}
    with pytest.raises(RecipeError) as by_hand:
        checked(Rolls(**values), source='rolls')
    with pytest.raises(RecipeError) as filled:
        fill(Rolls, values, source='rolls')
    assert sorted(by_hand.value.problems) == sorted(filled.value.problems) and len(filled.value.problems) == 6


@pytest.mark.parametrize('value', [np.float32(2.5), Fraction(5, 2), float('inf')])
def test_no_number_is_rounded_to_a_whole_one(value):
    with pytest.raises(RecipeError, match='loaves must be a whole number'):
        checked(Bread('mill', loaves=value))


def parsed(argv, cls=Bread):
    return parse(cls, argv, description='Bake.', example='python bake.py')


def test_flags_override_yaml_and_yaml_overrides_defaults(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('flour: mill\nloaves: 5\nsalt: 1.0e-3\nseeds: [oats]\n')
    assert parsed([str(path)]) == Bread(Path('mill'), 5, 0.001, seeds=('oats',))
    result = parsed([str(path), '--loaves', '7', '--seeds', 'flax, oats', '--sieve', '--sizes', '0.5,1'])
    assert result == Bread(Path('mill'), 7, 0.001, True, seeds=('flax', 'oats'), sizes=(0.5, 1.0))
    assert parsed(['--flour', 'here', '--sieve', 'false']).sieve is False


def test_problems_of_yaml_and_flags_come_together(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('loafs: 5\nkind: spelt\n')
    with pytest.raises(RecipeError) as error:
        parsed([str(path), '--salt', 'much'])
    assert len(error.value.problems) == 4


@pytest.mark.parametrize(
    'text', ['- flour\n', 'flour: [\n', 'just words\n', '3: 4\n', '\x00', 'a: !!python/object:os.system {}\n']
)
def test_file_that_is_no_recipe_is_refused_by_name(tmp_path, text):
    path = tmp_path / 'bread.yaml'
    path.write_text(text)
    with pytest.raises(RecipeError, match='bread.yaml'):
        read_yaml(path)


def test_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / 'bread.yaml').write_bytes(b'\xff\xfe\x00flour')
    with pytest.raises(RecipeError, match='bread.yaml'):
        read_yaml(tmp_path / 'bread.yaml')


def test_missing_recipe_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='none.yaml'):
        parsed([str(tmp_path / 'none.yaml')])


def test_recipe_name_with_a_line_break_is_quoted(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        read_yaml(tmp_path / 'a\nb.yaml')
    assert len(str(caught.value).splitlines()) == 1 and r'a\nb.yaml' in str(caught.value)


def test_name_that_no_file_can_have_is_refused_by_a_short_message():
    with pytest.raises(FileNotFoundError, match='x: no recipe file') as caught:
        read_yaml(Path('x' * 5000))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize('text', ['', '\n', '# later\n', '---\n'])
def test_empty_recipe_file_is_refused(tmp_path, text):
    path = tmp_path / 'bread.yaml'
    path.write_text(text)
    with pytest.raises(RecipeError, match='bread.yaml: is empty; write {} if'):
        read_yaml(path)
    path.write_text(text + '{}\n')
    assert read_yaml(path) == {}


@pytest.mark.parametrize(
    'text, said',
    [
        ('loaves: 2\nsalt: 1\nloaves: 3\n', "line 3: the key 'loaves' is on line 1 already"),
        ('sizes: {a: 1, "a": 2}\n', "line 1: the key 'a' is on line 1 already"),
        ('flour: mill\n\tsalt: 1\n', r"line 2: found character '\t' that cannot start any token (a tab? "),
        ('salt: 1\nflour: a: b\n', 'line 2: mapping values are not allowed here'),
        ('salt: 1\n---\nsalt: 2\n', 'line 2: expected a single document in the stream but found another'),
        ('salt: 1\n3: 4\n', 'bread.yaml: the key 3 is no word, so it names no field'),
        ('yes: 4\n', 'bread.yaml: the key True is no word, so it names no field'),
    ],
)
def test_what_is_wrong_with_a_recipe_file_is_said_with_its_place(tmp_path, text, said):
    path = tmp_path / 'bread.yaml'
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        read_yaml(path)
    assert said in str(caught.value) and str(path) in str(caught.value)


def test_merged_mappings_may_have_the_same_keys(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, x: 4}\n')
    values = read_yaml(path)
    assert (values['b'], values['c']) == ({'x': 3, 'y': 2}, {'x': 4, 'y': 2})


@pytest.mark.parametrize('written', ['010', '-010', '0_7', '1:00', '1:00.5'])
def test_octal_and_sexagesimal_numbers_are_refused(tmp_path, written):
    path = tmp_path / 'bread.yaml'
    path.write_text(f'flour: mill\nloaves: {written}\nsalt: {written}\n')
    with pytest.raises(RecipeError) as caught:
        parsed([str(path)])
    assert caught.value.problems == [
        f'{path}: {name} must be a {kind}, found {written!r}'
        for name, kind in (('loaves', 'whole number'), ('salt', 'number'))
    ]


@pytest.mark.parametrize(
    'written, value',
    [('5e-5', 5e-5), ('1.0e-5', 1e-5), ('0', 0.0), ('0.5', 0.5), ('0x10', 16.0), ('1_000', 1000.0)],
)
def test_other_numbers_of_yaml_stay_what_they_are(tmp_path, written, value):
    path = tmp_path / 'bread.yaml'
    path.write_text(f'flour: mill\nsalt: {written}\n')
    assert parsed([str(path)]).salt == value


@pytest.mark.parametrize('value', [2**63, -(2**63), '99999999999999999999999999', 1e30])
def test_whole_numbers_beyond_63_bits_are_refused(value):
    with pytest.raises(RecipeError, match=r'loaves must be a whole number below 2\^63, found'):
        fill(Bread, {'flour': 'mill', 'loaves': value})


@pytest.mark.parametrize('cls', [Bread, Rolls, PretrainRecipe, PruneRecipe])
def test_help_shows_the_example_and_every_field_with_its_default(cls):
    text = ' '.join(parser_of(cls, description='Bake.', example='python bake.py').format_help().split())
    assert 'example: python bake.py' in text
    for field in dataclasses.fields(cls):
        assert flag(field.name) in text
        assert ' '.join(field.metadata['help'].split()) in text
        if (
            not field.metadata['required']
            and field.default not in (None, ())
            and not isinstance(field.default, tuple)
        ):
            assert f'[default: {field.default}]' in text


def test_help_shows_the_example_before_the_options():
    text = parser_of(Bread, description='Bake.', example='python bake.py').format_help()
    assert text.index('python bake.py') < text.index('where the flour is')


@pytest.mark.parametrize(
    'error, status',
    [
        (RecipeError(['one', 'two']), 2),
        (ValueError('one'), 2),
        (FileNotFoundError('one'), 2),
        (FileExistsError('one'), 2),
        (PermissionError('one'), 2),
        (OSError(36, 'one'), 2),
        (OSError(40, 'one'), 2),
        (RunFailed('one'), 1),
        (OSError(28, 'one'), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_command_turns_errors_into_lines_and_a_status(error, status, capsys):
    @command
    def main(argv=None):
        raise error

    assert main([]) == status
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (2 if isinstance(error, RecipeError) else 1)
    assert all(line.startswith('error: ') for line in said)


def test_command_lets_a_bug_through():
    @command
    def main(argv=None):
        raise KeyError('ours')

    with pytest.raises(KeyError):
        main([])


def test_command_that_succeeds_returns_zero():
    assert command(lambda argv: None)([]) == 0


def recipe_files():
    """Every recipe of pretrain/ with the dataclass of the script that reads it."""
    result = sorted((ROOT / 'pretrain' / 'recipes').glob('*.yaml'))
    assert result
    return [(path, PruneRecipe if 'prune' in path.stem else PretrainRecipe) for path in result]


@pytest.mark.parametrize(
    'path, cls', recipe_files(), ids=lambda value: getattr(value, 'stem', getattr(value, '__name__', ''))
)
def test_recipe_file_fills_its_dataclass(path, cls):
    values = read_yaml(path)
    needed = {field.name: 'somewhere' for field in dataclasses.fields(cls) if field.metadata['required']}
    if values.get('train') == 'heads':
        needed['model'] = 'somewhere'
    recipe = fill(cls, {**needed, **values}, source=str(path))
    for name, value in values.items():
        assert to_dict(recipe)[name] == value


@pytest.mark.parametrize('script', ['run_pretraining.py', 'run_prune.py'])
def test_script_shows_help_and_refuses_nonsense(script):
    shown = call(ROOT / 'pretrain' / script, '--help')
    assert shown.returncode == 0 and 'example:' in shown.stdout and '--batch-size' in shown.stdout
    refused = call(ROOT / 'pretrain' / script, '--batch-size', 'many', '--rate', '3')
    assert refused.returncode == 2
    assert 'Traceback' not in refused.stderr


def test_abbreviated_flags_are_refused():
    with pytest.raises(RecipeError, match='unknown flag --flo, did you mean --flour'):
        parsed(['--flo', 'mill'])


@pytest.mark.parametrize(
    'words, said',
    [
        (['--flour', 'mill', '--kinf', 'rye'], 'unknown flag --kinf, did you mean --kind?'),
        (['--flour', 'mill', '--kinf=rye'], 'unknown flag --kinf, did you mean --kind?'),
        (['--flour', 'mill', '--qqqq', '1'], 'unknown flag --qqqq; --help lists the flags'),
        (['--flour'], 'argument --flour: expected one argument'),
        (['one.yaml', 'two.yaml'], 'too many words: two.yaml'),
    ],
)
def test_words_that_are_no_flags_are_one_line_with_the_flag_that_was_meant(words, said, capsys):
    assert command(lambda argv: parsed(argv))(words) == 2
    assert capsys.readouterr().err == f'error: {said}\n'


def test_value_is_blamed_on_the_flag_or_the_file_that_has_it(tmp_path):
    path = tmp_path / 'bread.yaml'
    path.write_text('flour: mill\nkind: spelt\nsalt: much\n')
    with pytest.raises(RecipeError) as caught:
        parsed([str(path), '--kind', 'barley'])
    assert sorted(caught.value.problems) == [
        "--kind must be one of rye, wheat, found 'barley'",
        f"{path}: salt must be a number, found 'much'",
    ]


@pytest.mark.parametrize('lines', [3, 100_000])
def test_command_whose_reader_has_gone_ends_quietly(lines):
    program = (
        'import sys\nfrom gluon_optbert.runs.command_line import command\n'
        f'main = command(lambda argv: [print("line") for _ in range({lines})] and None)\nsys.exit(main())'
    )
    words = [sys.executable, '-c', program]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == '' and process.wait() == 128 + signal.SIGPIPE


def test_wrong_fields_and_contradictions_are_reported_together():
    with pytest.raises(RecipeError) as caught:
        fill(
            PretrainRecipe,
            {'shards': 'here', 'output': 'there', 'stepz': 5, 'batch_size': 'many', 'warmup': 3},
        )
    assert len(caught.value.problems) == 3
    assert all(
        any(name in problem for problem in caught.value.problems)
        for name in ('stepz', 'batch_size', 'warmup')
    )


@dataclasses.dataclass(frozen=True)
class Basket:
    """A recipe that is filled from all the words of its command line."""

    loaves: Tuple[Path, ...] = option('what goes in')
    covered: bool = option('with a cloth', False)


def test_positional_tuple_takes_all_words():
    words = {'description': 'Fill.', 'example': 'fill a b', 'positional': 'loaves'}
    assert parse(Basket, ['a', 'b', '--covered'], **words) == Basket((Path('a'), Path('b')), True)
    assert parse(Basket, ['a'], **words).loaves == (Path('a'),)
    with pytest.raises(RecipeError, match='command line: LOAVES is missing'):
        parse(Basket, [], **words)
