"""Commands are named as the user has them: scripts in a checkout, programs where pip installed them."""

import ast

import pytest

from gluon_optbert.runs import programs


@pytest.mark.parametrize('name', programs.SCRIPTS)
def test_every_command_has_its_script(name):
    assert (programs.CHECKOUT / programs.SCRIPTS[name]).is_file()


@pytest.mark.parametrize(
    'program, in_checkout, named',
    [
        ('pretrain/run_prune.py', True, 'pretrain/make_shards.py'),
        ('/usr/bin/optbert-prune', True, 'optbert-make-shards'),
        ('my_program.py', True, 'pretrain/make_shards.py'),
        ('my_program.py', False, 'optbert-make-shards'),
        ('', False, 'optbert-make-shards'),
    ],
)
def test_command_is_named_as_the_user_has_it(program, in_checkout, named, monkeypatch, tmp_path):
    monkeypatch.setattr('sys.argv', [program])
    if not in_checkout:
        monkeypatch.setattr(programs, 'CHECKOUT', tmp_path)
    assert programs.named('optbert-make-shards') == named


def written_in(path):
    """The strings of a module, without docstrings."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_messages_name_commands_through_the_table_only():
    """A message that names a script is wrong where the package was installed without its checkout."""
    written = [
        f'{path.name}: {text}'
        for path in (programs.CHECKOUT / 'gluon_optbert').rglob('*.py')
        for text in written_in(path)
        if path.name != 'programs.py' and any(script in text for script in programs.SCRIPTS.values())
    ]
    assert written == []
