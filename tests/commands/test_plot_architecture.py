"""tools/plot_architecture.py: it writes every picture, and says what it could not draw."""

import xml.etree.ElementTree

import numpy as np
import plot_architecture as tool
import pytest
from helpers.commands import refused
from helpers.written_runs import write_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / 'pruned')


def test_everything_is_written_as_png_and_svg(run, tmp_path, capsys):
    assert tool.main([str(run), '--paper', '--output', str(tmp_path / 'plots')]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / 'plots').iterdir()}
    names = [f'{who}_{letter}' for who in ('paper', 'pruned') for letter in 'fakv'] + [
        'pruned_alphas_1',
        'loss_by_size',
    ]
    assert set(written) == {f'{name}.{kind}' for name in names for kind in ('png', 'svg')} | {
        'loss_by_size.md'
    }
    del written['loss_by_size.md']
    for name, data in written.items():
        assert (
            data.startswith(b'\x89PNG')
            if name.endswith('png')
            else xml.etree.ElementTree.fromstring(data) is not None
        )
    said = capsys.readouterr().out
    assert 'wrote 20 files' in said and said.endswith(', each also as .svg, and loss_by_size.md\n')


def test_what_cannot_be_drawn_is_said(tmp_path, capsys):
    run = write_run(tmp_path / 'random', trained=False, evaluated=False)
    assert tool.main([str(run), '--output', str(tmp_path / 'plots')]) == 0
    printed = capsys.readouterr().out
    assert 'its gates were not trained' in printed and 'no network of these runs was evaluated' in printed
    assert not list((tmp_path / 'plots').glob('*alphas*')) and not list((tmp_path / 'plots').glob('loss*'))


@pytest.mark.parametrize(
    'spoil, says',
    [
        (lambda run: (run / 'rounds.json').unlink(), 'when it is finished'),
        (lambda run: (run / 'round-1' / 'alphas.npz').write_text('x'), 'alphas.npz'),
        (lambda run: (run / 'round-1' / 'selection.json').write_text('{"kept": {}}'), 'not a selection'),
        (lambda run: np.savez(run / 'round-1' / 'alphas.npz', f9=np.zeros(2)), 'not those of a cut'),
    ],
)
def test_damaged_run_is_one_line_and_status_2(run, tmp_path, spoil, says):
    spoil(run)
    assert says in refused('tools/plot_architecture.py', run, '--output', tmp_path / 'plots')
    assert not (tmp_path / 'plots').exists()
    assert 'give a RUN_DIR, --paper, or both' in refused('tools/plot_architecture.py', '--output', tmp_path)
