"""Two hosts: network namespaces of their own, joined by a virtual link and one file system, and a job that spans them.

Their names, addresses and routes are apart, their processors and files are not. `ssh` is a script that starts the command on the
other one.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from gluon_optbert.liveness import PATIENCE
from gluon_optbert.pretraining import pretrain
from test_distributed import EXACT, assert_close_models, assert_close_records, needs_horovod
from test_liveness import HOROVODRUN, STRICKEN, living
from test_pretraining import recipe_for, records, values_for
from tiny import ROOT, environment

ADDRESSES = ('10.77.0.1', '10.77.0.2')
SSH = '''#!/bin/sh
while :; do
    case "$1" in
        -o | -p | -i) shift 2 ;;
        {address}) shift ;;
        *) break ;;
    esac
done
exec nsenter --net=/run/netns/{namespace} unshare --uts sh -c "hostname {address}; $*"
'''


class Hosts:
    """Two namespaces, and horovodrun in the first one."""

    def __init__(self, place):
        self.names = [f'optbert-{os.getpid()}-{letter}' for letter in 'ab']
        self._path = f'{place}:{os.environ["PATH"]}'
        (place / 'ssh').write_text(SSH.format(address=ADDRESSES[1], namespace=self.names[1]))
        (place / 'ssh').chmod(0o755)

    def join(self):
        """Make both; whether that was permitted."""
        first, second = self.names
        commands = [f'ip netns add {name}' for name in self.names]
        commands += [f'ip link add link0 netns {first} type veth peer name link0 netns {second}']
        for name, address in zip(self.names, ADDRESSES):
            commands += [f'ip -n {name} addr add {address}/24 dev link0', f'ip -n {name} link set lo up',
                         f'ip -n {name} link set link0 up']
        return (all(map(shutil.which, ('ip', 'nsenter', 'unshare', 'hostname')))
                and all(self._quietly(command) == 0 for command in commands))

    def part(self):
        """Undo it, and end what still runs there."""
        for name in self.names:
            listed = subprocess.run(['ip', 'netns', 'pids', name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            for process in map(int, listed.stdout.split()):
                os.kill(process, signal.SIGKILL)
            self._quietly(f'ip netns del {name}')

    @staticmethod
    def _quietly(command):
        return subprocess.run(command.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    def horovodrun(self, *arguments, **more):
        words = ['nsenter', f'--net=/run/netns/{self.names[0]}', 'unshare', '--uts', 'sh', '-c',
                 f'hostname {ADDRESSES[0]}; exec "$@"', 'sh', HOROVODRUN, '--gloo', '--disable-cache', '--network-interfaces',
                 'link0', '-np', 2, '-H', ','.join(f'{address}:1' for address in ADDRESSES), sys.executable, '-W', 'ignore', *arguments]
        return subprocess.run(list(map(str, words)), cwd=str(ROOT), env=environment(PATH=self._path, **more), timeout=170,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


@pytest.fixture
def hosts(tmp_path):
    (tmp_path / 'bin').mkdir()
    found = Hosts(tmp_path / 'bin')
    try:
        if not found.join():
            pytest.skip('network namespaces are not permitted here')
        yield found
    finally:
        found.part()


@needs_horovod
def test_two_hosts_pre_train_as_one(hosts, shards_directory, tmp_path):
    pretrain(recipe_for(shards_directory, tmp_path / 'one', **EXACT))
    (tmp_path / 'recipe.yaml').write_text(yaml.safe_dump(values_for(shards_directory, tmp_path / 'two', **EXACT)))
    done = hosts.horovodrun(ROOT / 'pretrain' / 'run_pretraining.py', tmp_path / 'recipe.yaml')
    assert done.returncode == 0, done.stderr
    assert_close_records(records(tmp_path / 'one'), records(tmp_path / 'two'))
    assert_close_models(tmp_path / 'one', tmp_path / 'two')


@needs_horovod
def test_cut_link_ends_the_job_on_both_hosts_and_one_goes_on(hosts, shards_directory, tmp_path):
    values = values_for(shards_directory, tmp_path / 'model', evaluate_every=0)
    done = hosts.horovodrun('-c', STRICKEN, json.dumps(values), tmp_path, 1, 'os.system("ip link set link0 down")',
                            **{PATIENCE: '6'})
    seconds = time.time() - (tmp_path / 'struck').stat().st_mtime
    assert done.returncode != 0 and seconds < 60
    processes = [int((tmp_path / f'pid-{rank}').read_text()) for rank in (0, 1)]
    assert f'rank 1 (host {ADDRESSES[1]}, process {processes[1]}) ' in done.stderr
    assert 'the network has failed' in done.stderr or 'cut off' in done.stderr
    assert not any(map(living, processes))
    assert pretrain(recipe_for(shards_directory, tmp_path / 'model', evaluate_every=0, resume=True))['step'] == 6
