"""Commands are the same whether scripts or installed programs start them, and name each other alike."""

import ast
import importlib
import os
import shlex

import pytest
from helpers.commands import call
from helpers.tiny import ROOT, run

from gluon_optbert.commands import starting
from gluon_optbert.runs import programs
from gluon_optbert.runs.recipe import packaged_recipes

MODULES = {
    name: 'import_checkpoint' if name == 'optbert-import' else name[len('optbert-') :].replace('-', '_')
    for name in programs.SCRIPTS
}


def help_of(program, module, *blocked):
    """What a command says to --help if its first word is `program`."""
    lines = ['import sys', f'sys.argv = [{str(program)!r}, "--help"]']
    lines += [f'sys.modules[{name!r}] = None' for name in blocked]
    lines += [f'from gluon_optbert.commands.{module} import main', 'sys.exit(main())']
    return run('-W', 'ignore', '-c', '\n'.join(lines))


def test_setup_installs_every_command():
    tree = ast.parse((ROOT / 'setup.py').read_text(encoding='utf-8'))
    listed = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == 'COMMANDS'
    )
    assert dict(ast.literal_eval(listed)) == MODULES
    stems = {path.stem for path in (ROOT / 'gluon_optbert' / 'commands').glob('*.py')}
    assert stems - {'__init__', 'starting'} == set(MODULES.values())


@pytest.mark.parametrize('name', programs.SCRIPTS)
def test_script_is_the_command(name):
    module = importlib.import_module(f'gluon_optbert.commands.{MODULES[name]}')
    text = (ROOT / programs.SCRIPTS[name]).read_text(encoding='utf-8')
    assert f'from gluon_optbert.commands.{MODULES[name]} import main' in text
    assert len(text.splitlines()) < 20 and module.__doc__ in text


@pytest.mark.parametrize('name', programs.SCRIPTS)
def test_help_names_the_command_as_it_was_started(name, monkeypatch, capsys):
    main = importlib.import_module(f'gluon_optbert.commands.{MODULES[name]}').main
    for program, wanted in (
        (f'/usr/bin/{name}', name),
        (programs.SCRIPTS[name], f'python {programs.SCRIPTS[name]}'),
    ):
        monkeypatch.setattr('sys.argv', [program])
        with pytest.raises(SystemExit) as ended:
            main(['--help'])
        said = capsys.readouterr().out
        assert ended.value.code == 0 and said.startswith(f'usage: {program.split("/")[-1]} ')
        example = said.split('example:\n')[1].splitlines()[0]
        assert f' {wanted} ' in example and ('python' in example) == ('python' in wanted)
        recipes = [word for word in shlex.split(example) if word.endswith('.yaml')]
        assert all((ROOT / word).is_file() for word in recipes)


@pytest.mark.parametrize(
    'program, wanted',
    [
        ('/opt/my env/bin/optbert-pretrain', "optbert-prune small_prune --model 'my models/it'\"'\"'s'"),
        (
            'pretrain/run_pretraining.py',
            "python pretrain/run_prune.py pretrain/recipes/small_prune.yaml --model 'my models/it'\"'\"'s'",
        ),
    ],
)
def test_commands_are_quoted_for_the_shell(monkeypatch, program, wanted):
    monkeypatch.setattr('sys.argv', [program])
    said = starting.line('optbert-prune', '--model', "my models/it's", recipe='pretrain/small_prune')
    assert said == wanted and shlex.split(said)[-1] == "my models/it's"
    assert 'small_prune' in packaged_recipes()


def test_models_of_runs_are_listed_the_likeliest_first(tmp_path):
    for place in ('round-2/model', 'round-10/model', 'round-3', 'round-x/model', 'one/model'):
        (tmp_path / 'pruned' / place).mkdir(parents=True)
    for place in ('seed-2', 'seed-1', 'seed-1.states'):
        (tmp_path / 'tuned' / place).mkdir(parents=True)
    (tmp_path / 'pruned' / 'one' / 'model' / 'model.params').touch()
    names = {
        run: [str(path.relative_to(tmp_path / run)) for path in starting.models_in(tmp_path / run)]
        for run in ('pruned', 'pruned/one', 'tuned', 'none')
    }
    assert names == {
        'pruned': ['round-10/model', 'round-2/model'],
        'pruned/one': ['model'],
        'tuned': ['seed-1', 'seed-2'],
        'none': [],
    }


def test_workers_stand_before_the_command(monkeypatch):
    monkeypatch.setattr('sys.argv', ['optbert-prune'])
    assert starting.line('optbert-prune', 'x', workers=4) == 'horovodrun --gloo -np 4 optbert-prune x'


@pytest.mark.parametrize('program', ['optbert-prune', 'pretrain/run_prune.py'])
def test_missing_mxnet_is_one_line(program):
    done = help_of(program, 'prune', 'mxnet')
    assert done.returncode == 1 and done.stderr.count('\n') == 1
    assert done.stderr.startswith('error: MXNet is not installed: pip install')


def test_library_that_is_missing_later_is_one_line(capsys):
    @starting.command
    def main(argv=None):
        raise starting.NotInstalled('Horovod is not installed')

    assert main([]) == 1 and capsys.readouterr().err == 'error: Horovod is not installed\n'


@pytest.mark.parametrize('name, words', [('prune', []), ('pretrain', ['--help'])])
def test_import_of_commands_does_not_end_another_program(name, words):
    program = f'import sys; sys.modules["mxnet"] = None; import gluon_optbert.commands.{name}'
    done = run('-W', 'ignore', '-c', program, *words)
    assert 'NotInstalled: MXNet is not installed' in done.stderr.splitlines()[-1]


def test_packaged_recipe_is_enough_for_a_command(tmp_path):
    done = call(
        'pretrain/run_prune.py', 'small_prune', '--model', tmp_path / 'no', '--shards', tmp_path / 'no'
    )
    assert done.returncode == 2 and done.stderr.startswith('error: ') and '--output is missing' in done.stderr
    done = call('pretrain/run_prune.py', 'smal_prune')
    assert done.returncode == 2 and done.stderr.count('\n') == 1 and 'small_prune' in done.stderr


@pytest.mark.parametrize(
    'words', [('tools/verify.py', 'nowhere'), ('-m', 'gluon_optbert.architecture', 'bert_3', '--json')]
)
def test_command_in_the_process_of_the_tests_says_what_its_own_process_says(words):
    one, other = run('-W', 'ignore', *words), call(*words)
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)
    assert one.stdout or one.stderr


def test_bug_in_a_command_is_a_traceback_and_status_1(tmp_path):
    (tmp_path / 'wrong.py').write_text(
        'import os, sys\nos.environ["OURS"] = sys.argv[1]\nraise KeyError("x")\n'
    )
    done = call(tmp_path / 'wrong.py', 'word')
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'x'\n") and 'OURS' not in os.environ
