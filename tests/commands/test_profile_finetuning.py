"""The profile of a fine-tuning step: it takes the steps of training, and its tables add up."""

import json

import pytest
from helpers.commands import call, module_at
from helpers.finetuned import values_for, write_glue
from helpers.tiny import network

tool = module_at('tools/profile_finetuning.py')
KEPT = ('task', 'model', 'data', 'batch_size', 'max_length')


def words_for(model_directory, place, **more):
    values = values_for(model_directory, write_glue(place / 'glue'), place)
    values = {**{name: values[name] for name in KEPT}, 'steps': 5, **more}
    return [word for name, value in values.items() for word in (f'--{name.replace("_", "-")}', value)]


def test_every_part_of_every_step_is_timed(model_directory, tmp_path):
    done = call(
        'tools/profile_finetuning.py', *words_for(model_directory, tmp_path, output=tmp_path / 'profile.json')
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / 'profile.json').read_text(encoding='utf-8'))
    parts = {'batch', 'random seed', 'forward', 'backward', 'gradient norm', 'optimizer'}
    assert len(result['steps']) == 5 and all(set(step['parts']) == parts for step in result['steps'])
    assert all(0 < step['width'] <= 16 and step['parts']['forward'] > 0 for step in result['steps'])
    assert done.stdout.startswith(tool.tables(result)) and '| in all |' in done.stdout


def test_tables_leave_the_first_step_of_a_width_out():
    def step(width, forward):
        return {'width': width, 'parts': {'forward': forward, 'backward': 2.0, 'optimizer': 1.0}}

    result = {
        'steps': [step(8, 90.0), step(8, 1.0), step(16, 70.0), step(8, 3.0)],
        'recipe': {'batch_size': 4},
        'architecture': network((2, 2, 2, 8), h=8).to_dict(),
    }
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in tool.tables(result).splitlines()]
    assert ['forward', '2.0', '40%'] in rows and ['in all', '5.0', '100%'] in rows
    assert any(row[:4] == ['8', '3', '92', '4'] for row in rows)
    assert ['16', '1', '72', '–', '–'] in rows


@pytest.mark.parametrize(
    'change, message', [({'steps': 0}, 'steps must be'), ({'batch_size': 0}, 'batch_size')]
)
def test_bad_input_is_one_line(model_directory, tmp_path, change, message):
    done = call('tools/profile_finetuning.py', *words_for(model_directory, tmp_path, **change))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and message in done.stderr
