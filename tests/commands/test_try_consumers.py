"""The tool that lets other libraries read exports: its networks, its cells, and its table."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import call, module_at
from helpers.tiny import saved_model, write_saved_model

PEERS = Path(os.environ.get('PEERS', 'nowhere'))


def test_the_networks_have_uneven_widths_and_a_layer_without_filters():
    networks = module_at('tools/consumer_trials.py').networks(saved_model())
    assert len(networks) == 9
    plain, uneven, without = (
        networks[widths, 'encoder'].architecture for widths in ('plain', 'uneven', 'f = 0')
    )
    assert plain == saved_model().architecture
    assert len({dims.f for dims in uneven.layers}) > 1 or uneven.h < plain.h
    assert [dims.f for dims in without.layers].count(0) == 1 and without.h == plain.h


def test_a_missing_environment_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match='peers/install.py .* --only consumers$'):
        module_at('tools/workers.py').peer_python(tmp_path, 'consumers')


def test_every_cell_is_a_file_to_read_or_a_reason():
    cells = module_at('tools/try_consumers.py').cells_of('plain', 'questions')
    assert len(cells) == 9 * 3
    for cell in cells:
        assert bool(cell['file']) != bool(cell.get('without'))
    reasons = {cell['consumer'] for cell in cells if cell.get('without') == 'gives embeddings only'}
    assert reasons == {'sentence-transformers'}


def test_the_table_tells_differences_and_numbers_the_reasons():
    module = module_at('tools/try_consumers.py')
    cells = [
        cell for widths in module.WIDTHS for head in module.HEADS for cell in module.cells_of(widths, head)
    ]
    for cell in cells:
        if cell['folder']:
            cell['difference'] = 1.5e-6
    cells[0].pop('difference')
    cells[0]['error'] = 'RuntimeError: no such file'
    text = module.table(cells)
    assert '1.5e-06' in text and ') RuntimeError: no such file.' in text
    assert text.count('### ') == 3 and text.count('gives embeddings only') == 1


def test_padded_ids_are_those_of_the_sentences():
    saved = saved_model()
    words = [token for token in saved.vocabulary.idx_to_token if token.isalpha()][:3]
    feed = module_at('tools/consumer_trials.py').feed_of(saved, 'encoder', [' '.join(words), words[0]])
    assert feed['attention_mask'].sum(axis=1).tolist() == [5, 3]
    assert np.array_equal(feed['input_ids'][1, 3:], [0, 0])


def test_a_missing_environment_is_one_line(tmp_path):
    model = write_saved_model(tmp_path / 'model')
    text = tmp_path / 'text.txt'
    text.write_text('a\nthe\n')
    done = call('tools/try_consumers.py', model, '--text', text, '--peers', tmp_path / 'none')
    assert done.returncode == 2 and 'install.py' in done.stderr and 'Traceback' not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (PEERS / 'consumers').is_dir(), reason='PEERS names no environment of consumers')
def test_every_library_reads_every_export_of_a_small_network(tmp_path):
    model = write_saved_model(tmp_path / 'model')
    words = [token for token in saved_model().vocabulary.idx_to_token if token.isalpha()]
    text = tmp_path / 'text.txt'
    text.write_text('\n'.join(f'{one} {two}' for one in words[:4] for two in words[:4]) + '\n')
    output = tmp_path / 'consumers.json'
    done = call('tools/try_consumers.py', model, '--text', text, '--peers', PEERS, '--output', output)
    assert done.returncode == 0, done.stdout + done.stderr
    for cell in json.loads(output.read_text())['cells']:
        assert 'without' in cell or cell['difference'] < (1e-5 if cell['precision'] == 'float32' else 1)
