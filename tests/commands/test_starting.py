"""Commands are the same whether scripts or installed programs start them, and name each other alike."""

import ast
import os
import re
import shlex

import pytest
from helpers.commands import call, refused, run_without
from helpers.tiny import ROOT, run

from gluon_optbert import commands as functions
from gluon_optbert.runs import programs, starting
from gluon_optbert.runs.programs import COMMANDS


@pytest.mark.parametrize('program, command', COMMANDS.items())
def test_help_names_the_command_as_it_was_started(program, command, monkeypatch, capsys):
    for started, wanted in ((f'/usr/bin/{program}', program), (command.script, f'python {command.script}')):
        monkeypatch.setattr('sys.argv', [started])
        with pytest.raises(SystemExit) as ended:
            getattr(functions, command.name)(['--help'])
        said = capsys.readouterr().out
        assert ended.value.code == 0 and said.startswith(f'usage: {started.split("/")[-1]} ')
        example = said.split('example:\n')[1].splitlines()[0]
        assert f' {wanted} ' in example and ('python' in example) == ('python' in wanted)
        assert all((ROOT / word).is_file() for word in shlex.split(example) if word.endswith('.yaml'))
    text = (ROOT / command.script).read_text(encoding='utf-8')
    assert f'from gluon_optbert.commands import {command.name} as main' in text and program in text


@pytest.mark.parametrize(
    'program, in_checkout, named',
    [
        ('pretrain/run_prune.py', True, 'pretrain/make_shards.py'),
        ('/usr/bin/optbert-prune', True, 'optbert-make-shards'),
        ('my_program.py', False, 'optbert-make-shards'),
        ('', False, 'optbert-make-shards'),
    ],
)
def test_command_is_named_as_the_user_has_it(program, in_checkout, named, monkeypatch, tmp_path):
    monkeypatch.setattr('sys.argv', [program])
    if not in_checkout:
        monkeypatch.setattr(programs, 'CHECKOUT', tmp_path)
    assert programs.named('optbert-make-shards') == named


def test_messages_name_commands_through_the_table_only():
    """A message that names a script is wrong where the package was installed without its checkout."""
    scripts = re.compile('|'.join(re.escape(command.script) for command in COMMANDS.values()))
    written = []
    for path in (ROOT / 'gluon_optbert').rglob('*.py'):
        text = path.read_text(encoding='utf-8')
        if path.name != 'programs.py' and scripts.search(text):
            nodes = list(ast.walk(ast.parse(text)))
            docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            words = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
            written += [f'{path.name}: {word.value}' for word in words if scripts.search(str(word.value))]
    assert written == []


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


def test_command_again_has_other_flags_and_no_word_twice(monkeypatch):
    monkeypatch.setattr(
        'sys.argv', ['/usr/bin/optbert-prune', 'a recipe', '--resume', '--seed=1', '--steps', '2']
    )
    said = starting.again('optbert-prune', None, resume=None, seed=3, output='b c', workers=2)
    assert said == "horovodrun --gloo -np 2 optbert-prune 'a recipe' --steps 2 --seed 3 --output 'b c'"
    assert starting.again('optbert-prune', ['--steps=1', 'x'], steps=4) == 'optbert-prune x --steps 4'


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


def test_missing_mxnet_is_one_line():
    done = run_without(['mxnet'], 'from gluon_optbert.commands import export', 'sys.exit(export(["--help"]))')
    assert done.returncode == 1 and done.stderr.count('\n') == 1
    assert done.stderr.startswith('error: MXNet is not installed: pip install')


def test_packaged_recipe_is_enough_for_a_command(tmp_path):
    words = ['small_prune', '--model', tmp_path / 'no', '--shards', tmp_path / 'no']
    assert '--output is missing' in refused('pretrain/run_prune.py', *words)
    assert 'small_prune' in refused('pretrain/run_prune.py', 'smal_prune')


# The process of the tests


def test_command_in_the_process_of_the_tests_says_what_its_own_process_says():
    words = '-m', 'gluon_optbert.architecture', 'bert_3', '--json'
    one, other = run('-W', 'ignore', *words), call(*words)
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)
    assert one.stdout or one.stderr


def test_bug_in_a_command_is_a_traceback_and_status_1(tmp_path):
    (tmp_path / 'wrong.py').write_text(
        'import os, sys\nos.environ["OURS"] = sys.argv[1]\nraise KeyError("x")\n'
    )
    done = call(tmp_path / 'wrong.py', 'word')
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'x'\n") and 'OURS' not in os.environ
