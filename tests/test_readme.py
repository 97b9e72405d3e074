"""The README: its commands exist, its Python runs, its table is that of the result files, and it is short."""

import json
from pathlib import Path

import pytest
from helpers.checkpoints import named, write_hugging_face
from helpers.documents import check_command, code_of, commands, is_target, targets_of_make, text_of
from helpers.finetuned import write_glue
from helpers.tiny import ROOT, network, random_parameters, write_shards

README = ROOT / 'README.md'
ROWS = {  # of its table: the fine-tuning run, and the network's name in the file of latencies
    'MiniLM as imported': ('table11/results/bert-base', 'base'),
    'optBERT-all': ('table8/results/optbert-all', 'optbert_all_61'),
    'BERT-all uniform': ('table8/results/bert-all-uniform', 'uniform_61'),
    'optBERT-all, smaller': ('table9/results/optbert-all', 'optbert_all_39'),
    'BERT-all uniform, smaller': ('table9/results/bert-all-uniform', 'uniform_39'),
}
LATENCY = ROOT / 'results' / 'latency' / 'table_rows.json'


@pytest.mark.parametrize('line', commands(README))
def test_commands_name_scripts_recipes_flags_and_choices_that_exist(line):
    check_command(line)


def test_there_are_commands_to_test():
    assert len(commands(README)) >= 5


def row(name):
    """A row of the table, from the files of results."""
    run, network_name = ROWS[name]
    found = json.loads((ROOT / 'results' / 'tables' / run / 'sst-2.json').read_text())
    rows = json.loads(LATENCY.read_text())['networks']
    measured = {Path(one['name']).stem: one for one in rows}
    base, here = measured['base'], measured[network_name]
    mean, std = (found[key]['dev/accuracy'] for key in ('mean', 'std'))
    share = here['gflop']['8x128'] / base['gflop']['8x128']
    time = here['shapes']['8x128']['median_ms'] / base['shapes']['8x128']['median_ms']
    return (
        f'| {name} | {found["parameters"] / 1e6:.1f} M | {mean:.1f} ± {std:.1f} | {share:.2f} | {time:.2f} |'
    )


@pytest.mark.parametrize('name', ROWS)
def test_the_table_says_what_the_results_say(name):
    assert row(name) in text_of(README).splitlines()


def test_it_is_short():
    assert len(text_of(README).splitlines()) <= 150


@pytest.mark.slow
def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    arrays = named('Hugging Face', random_parameters(network(max_length=128)))
    write_hugging_face(tmp_path / 'downloads' / 'bert-base-uncased', arrays, max_position_embeddings=128)
    write_shards(tmp_path / 'shards')
    write_glue(tmp_path / 'glue')
    monkeypatch.chdir(tmp_path)
    (code,) = code_of(README, 'python')
    exec(compile(code, 'README.md', 'exec'), {})
    widths, parameters, label = capsys.readouterr().out.strip().splitlines()[-3:]
    assert widths.endswith(']') and parameters.endswith('parameters of embeddings and encoder')
    assert label in ('0', '1', 'negative', 'positive')


def test_the_targets_of_make_are_the_ones_named():
    assert all(map(is_target, targets_of_make(README)))
