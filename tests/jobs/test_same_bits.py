"""Every command leaves the bits that are recorded, whatever is done to the code between them."""

import json

import pytest
from helpers.tiny import ROOT

from jobs.small_run import EVERYWHERE, digests, processor, run_commands

pytestmark = pytest.mark.slow

RECORDED = ROOT / 'tests' / 'jobs' / 'small_run.json'


@pytest.fixture(scope='module')
def digests_here(tmp_path_factory):
    work = tmp_path_factory.mktemp('small_run')
    return digests(work, run_commands(ROOT, work))


def recorded():
    return json.loads(RECORDED.read_text(encoding='utf-8'))


def test_integers_and_text_are_the_recorded_ones(digests_here):
    wanted = {name: digest for name, digest in recorded()['digests'].items() if name.startswith(EVERYWHERE)}
    assert len(wanted) >= 5
    assert {name: digests_here.get(name) for name in wanted} == wanted


def test_trained_numbers_are_the_recorded_ones(digests_here):
    if processor() != recorded()['processor']:
        pytest.skip(f'recorded on {recorded()["processor"]}; the last bits of sums differ on {processor()}')
    assert digests_here == recorded()['digests']
