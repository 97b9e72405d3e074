"""`import gluon_optbert as opt`: what it has, what it imports, and how its runs are called."""

import dataclasses
import importlib
import inspect
import pydoc
import sys

import pytest
from helpers.commands import module_at, run_without
from helpers.tiny import ROOT, contents, network, random_alphas, write_saved_model

import gluon_optbert as opt
from gluon_optbert import api
from gluon_optbert.commands.exporting import ExportRecipe
from gluon_optbert.cutting.selection import packed_alphas
from gluon_optbert.cutting.shrink import fold
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs import failures
from gluon_optbert.runs.recipe import RecipeError, fill, find_recipe, packaged_recipes, read_yaml, to_dict


def test_pure_names_need_no_big_library_and_others_say_what_installs_it(model_directory):
    program = [
        'import gluon_optbert as opt',
        'libraries = ("mxnet", "horovod", "numpy", "gluonnlp", "yaml")',
        'print([name for name in libraries if sys.modules.get(name)])',
        'print(opt.resolve("bert_base").h, opt.ParameterCost(), opt.shrink.__name__)',
        f'print(opt.read_model({str(model_directory)!r}).architecture.h)',
        'calls = (lambda: opt.prune, lambda: opt.PretrainRecipe, lambda: opt.export("model", "deploy"))',
        'for call in calls:',
        '    try: call()',
        '    except opt.runs.failures.NotInstalled as error: print(error)',
    ]
    done = run_without(['mxnet', 'gluonnlp', 'horovod'], *program)
    pure, missing = done.stdout.splitlines()[:3], done.stdout.splitlines()[3:]
    assert pure == ['[]', '768 ParameterCost() shrink', '8'], done.stderr
    assert len(missing) == 3
    assert all('MXNet is not installed: pip install gluon_optbert[cpu]' in line for line in missing)


def test_missing_horovod_says_how_it_is_built(model_directory, shards_directory, tmp_path, monkeypatch):
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    for name in ('horovod', 'horovod.mxnet'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(failures.NotInstalled, match='^Horovod is not installed.* pip install --no-build-iso'):
        opt.prune(model=model_directory, shards=shards_directory, output=tmp_path / 'out')


def test_the_build_line_of_horovod_is_the_one_that_the_set_up_uses():
    build = dict(module_at('tools/setup/install.py').HOROVOD_BUILD)
    del build['CMAKE_TOOLCHAIN_FILE']  # makes the build faster, and is not in the wheel
    for name, value in build.items():
        assert f'{name}={value} ' in failures.REMEDIES['horovod']


def test_other_missing_libraries_are_said_as_they_are():
    with pytest.raises(ImportError, match='nowhere') as raised, failures.remedied():
        importlib.import_module('nowhere')
    assert not isinstance(raised.value, failures.NotInstalled)


def test_every_name_is_what_its_module_has():
    for name in opt.__all__:
        value = getattr(opt, name)
        assert value.__name__ == name
        home = getattr(importlib.import_module(f'gluon_optbert.{api.HOMES[name]}'), name)
        assert value is home or name in api.RUNS
    assert len(opt.__all__) == 40
    assert set(opt.__all__) <= set(dir(opt)) and '__version__' in dir(opt)
    with pytest.raises(AttributeError, match='no attribute'):
        opt.prunes  # noqa: B018


def test_sub_packages_do_not_stand_before_the_names():
    """Importing a sub-package makes it an attribute of the package, whatever was there."""
    below = {path.stem for path in (ROOT / 'gluon_optbert').iterdir() if path.stem != '__init__'}
    assert below.isdisjoint(opt.__all__)
    assert opt.Architecture is opt.architecture.architecture.Architecture


def test_example_of_the_page_names_fields_and_recipes_that_exist():
    """Every call of the example could be made: its keywords are bound, its recipe has them."""
    page = pydoc.render_doc(opt, renderer=pydoc.plaintext)
    assert all(name in page for name in opt.__all__)
    calls = [line.strip()[4:] for line in opt.__doc__.splitlines() if line.strip().startswith('>>> opt.')]
    assert len(calls) == 6

    class Bound:
        def __getattr__(self, name):
            def call(*words, **given):
                inspect.signature(getattr(opt, name)).bind(*words, **given)
                if name in api.RUNS:
                    recipe = getattr(opt, api.RUNS[name].recipe_name)
                    api.recipe_of(recipe, *(words or [None]), given)

            return call

    for call in calls:
        eval(call, {'opt': Bound()})


def test_keywords_give_the_recipe_that_the_command_gives(tmp_path):
    values = {'model': tmp_path / 'm', 'shards': str(tmp_path / 's'), 'output': 'out', 'target': 0.5}
    one = api.recipe_of(PruneRecipe, None, values)
    assert one == fill(PruneRecipe, {**values, 'model': str(values['model'])})
    named = api.recipe_of(PruneRecipe, 'small_prune', values)
    assert named == fill(PruneRecipe, {**read_yaml(find_recipe('small_prune')), **values})
    assert api.recipe_of(PruneRecipe, one, {}) is one
    changed = api.recipe_of(PruneRecipe, one, {'target': 0.25})
    assert to_dict(changed) == {**to_dict(one), 'target': 0.25}
    parameters = inspect.signature(opt.prune).parameters
    assert parameters['model'].default is inspect.Parameter.empty and parameters['target'].default == 0.6
    assert 'model: ' in opt.prune.__doc__ and '[required]' in opt.prune.__doc__
    assert 'progress' in inspect.signature(opt.make_shards).parameters


def test_everything_wrong_is_said_at_once_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as raised:
        opt.prune(modle='m', target='much', output='out')
    said = raised.value.problems
    assert any("unknown field 'modle', did you mean model?" in line for line in said)
    assert any('target must be a valid number' in line for line in said)
    assert any('shards is missing' in line for line in said) and not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match='PruneRecipe'):
        opt.prune(3)
    with pytest.raises(TypeError, match="run is given twice, as 'a' and as 'b'"):
        opt.verify('a', run='b')
    with pytest.raises(FileNotFoundError, match='small_prune'):
        opt.prune('smal_prune')


def test_export_takes_a_directory_or_a_model(tmp_path):
    directory = write_saved_model(tmp_path / 'model', architecture=network((1, 2, 3, 4)))
    first = opt.export(str(directory), str(tmp_path / 'one'))
    second = opt.export(opt.read_model(str(directory)), tmp_path / 'two', head='encoder')
    assert first == second and contents(tmp_path / 'one') == contents(tmp_path / 'two')
    assert issubclass(opt.Predictor, Predictor)


def test_export_writes_every_format_and_import_reads_one(tmp_path):
    fields = {name for format in api.FORMATS.values() for name in format.fields}
    assert fields <= set(ExportRecipe.model_fields)
    directory = write_saved_model(tmp_path / 'model')
    opt.export(directory, tmp_path / 'sentences', format='sentence-transformers')
    assert (tmp_path / 'sentences' / 'modules.json').is_file()
    opt.export(directory, tmp_path / 'hub', format='transformers', head='pretraining')
    opt.import_checkpoint(source=str(tmp_path / 'hub'), output=tmp_path / 'back')
    assert read_model(tmp_path / 'back').architecture == read_model(directory).architecture
    with pytest.raises(ValueError, match="format must be one of mxnet, transformers.*found 'tar'"):
        opt.export(directory, tmp_path / 'other', format='tar')
    opt.write_model(str(tmp_path / 'copy'), read_model(directory))
    assert contents(tmp_path / 'copy') == contents(directory)


# Recipes of the package


def test_recipes_of_the_checkout_are_those_of_the_package():
    for folder in ('pretrain', 'finetune'):
        link = ROOT / folder / 'recipes'
        assert link.is_symlink() and link.resolve() == ROOT / 'gluon_optbert' / 'recipes' / folder
    names = [path.stem for path in (ROOT / 'gluon_optbert' / 'recipes').glob('*/*.yaml')]
    assert sorted(packaged_recipes()) == sorted(names) and len(set(names)) == len(names) >= 8


def test_a_recipe_is_found_by_its_path_or_its_name_and_an_unknown_name_lists_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = ROOT / 'gluon_optbert' / 'recipes' / 'pretrain' / 'small_prune.yaml'
    assert find_recipe('small_prune') == find_recipe('small_prune.yaml') == packaged
    (tmp_path / 'small_prune').write_text('target: 0.5\n')
    assert read_yaml(find_recipe('small_prune')) == {'target': 0.5}  # a file goes before a name
    with pytest.raises(FileNotFoundError) as raised:
        find_recipe('smal')
    said = str(raised.value)
    assert said.startswith('smal: no such recipe file') and len(said) < 1000
    assert all(name in said for name in ('small_prune', 'glue', 'squad'))
    assert find_recipe('deep/small') == type(tmp_path)('deep/small')  # a path is no name


def test_gates_of_table_5_are_folded_as_they_were_trained(model_directory, tmp_path):
    saved = read_model(model_directory)
    alphas = random_alphas(saved.architecture)
    (tmp_path / 'alphas.npz').write_bytes(packed_alphas(alphas, h_gate='table5'))
    opt.export(model_directory, tmp_path / 'one', alphas=tmp_path / 'alphas.npz')
    folded = fold(saved.parameters, saved.architecture, alphas, h_gate='table5')
    opt.export(dataclasses.replace(saved, parameters=folded), tmp_path / 'two')
    one, two = (contents(tmp_path / name) for name in ('one', 'two'))
    weights = [name for name in one if name.endswith('.params')]
    assert weights and all(one[name] == two[name] for name in weights)
