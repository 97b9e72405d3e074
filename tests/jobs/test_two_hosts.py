"""Two hosts: network namespaces with names and addresses of their own, joined by a virtual link, and a job
that spans them.

What they share is the processor and the file system. `ssh` is a script that runs the command on the other
one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from helpers.jobs import EXACT, HOROVODRUN, assert_close_models, assert_close_records, needs_horovod
from helpers.pretrained import recipe_for, values_for
from helpers.stricken import STRICKEN, living
from helpers.tiny import ROOT, environment, records

from gluon_optbert.training.distributed import PATIENCE_SECONDS
from gluon_optbert.training.pretrain import pretrain

pytestmark = pytest.mark.slow

ADDRESSES = {'hostA': '10.77.0.1', 'hostB': '10.77.0.2'}
SSH = """#!/bin/sh
while :; do
    case "$1" in
        -o | -p | -i) shift 2 ;;
        {host}) shift ;;
        *) break ;;
    esac
done
exec {enter} sh -c "$*"
"""


class Hosts:
    """The two, in a directory for their files; horovodrun is started on the first one."""

    def __init__(self, place):
        self._place = place
        self._spaces = {host: f'gluon-optbert-{os.getpid()}-{host}' for host in ADDRESSES}

    def _enter(self, host):
        """The words before a command that is to run on a host: its network, its name, its list of names."""
        net = f'--net=/run/netns/{self._spaces[host]}'
        return ['nsenter', net, 'unshare', '--uts', '--mount', str(self._place / host)]

    def join(self):
        """Make them; the first command that was not permitted, or None."""
        missing = [
            name for name in ('ip', 'nsenter', 'unshare', 'hostname', 'mount') if not shutil.which(name)
        ]
        if missing:
            return missing[0]
        first, second = self._spaces.values()
        commands = [f'ip netns add {space}' for space in (first, second)]
        commands += [f'ip link add link0 netns {first} type veth peer name link0 netns {second}']
        for host, space in self._spaces.items():
            commands += [
                f'ip -n {space} addr add {ADDRESSES[host]}/24 dev link0',
                f'ip -n {space} link set lo up',
                f'ip -n {space} link set link0 up',
            ]
        (self._place / 'hosts').write_text(
            ''.join(f'{address} {host}\n' for host, address in ADDRESSES.items()) + '127.0.0.1 localhost\n'
        )
        for host in ADDRESSES:
            self._script(
                host,
                f'#!/bin/sh\nmount --bind {self._place}/hosts /etc/hosts && hostname {host} && exec "$@"\n',
            )
        self._script('ssh', SSH.format(host='hostB', enter=' '.join(self._enter('hostB'))))
        refused = [command for command in commands if self._fails(command.split())]
        refused += [
            f'being {host}' for host in ADDRESSES if not refused and self._fails([*self._enter(host), 'true'])
        ]
        return refused[0] if refused else None

    def part(self):
        """Undo it, and end what still runs there."""
        for space in self._spaces.values():
            listed = subprocess.run(
                ['ip', 'netns', 'pids', space], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            for process in map(int, listed.stdout.split()):
                os.kill(process, signal.SIGKILL)
            self._fails(['ip', 'netns', 'del', space])

    def _script(self, name, content):
        (self._place / name).write_text(content)
        (self._place / name).chmod(0o755)

    @staticmethod
    def _fails(words):
        return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0

    def horovodrun(self, *arguments, **more):
        flags = (
            '--gloo --disable-cache --start-timeout 120 --network-interfaces link0 -np 2 -H hostA:1,hostB:1'
        )
        python = [sys.executable, '-W', 'ignore']
        words = [*self._enter('hostA'), HOROVODRUN, *flags.split(), *python, *arguments]
        return subprocess.run(
            list(map(str, words)),
            cwd=str(ROOT),
            timeout=240,
            stdin=subprocess.DEVNULL,
            env=environment(PATH=f'{self._place}:{os.environ["PATH"]}', **more),
            capture_output=True,
            text=True,
        )


@pytest.fixture
def hosts(tmp_path):
    (tmp_path / 'hosts').mkdir()
    result = Hosts(tmp_path / 'hosts')
    try:
        refused = result.join()
        if refused:
            pytest.skip(f'this machine does not permit two hosts: {refused}')
        yield result
    finally:
        result.part()


@needs_horovod
def test_two_hosts_pre_train_as_one(hosts, shards_directory, tmp_path):
    pretrain(recipe_for(shards_directory, tmp_path / 'one', **EXACT))
    (tmp_path / 'recipe.yaml').write_text(
        yaml.safe_dump(values_for(shards_directory, tmp_path / 'two', **EXACT))
    )
    done = hosts.horovodrun(ROOT / 'pretrain' / 'run_pretraining.py', tmp_path / 'recipe.yaml')
    assert done.returncode == 0, done.stderr
    assert_close_records(records(tmp_path / 'one'), records(tmp_path / 'two'))
    assert_close_models(tmp_path / 'one', tmp_path / 'two')


@needs_horovod
def test_cut_link_ends_the_job_on_both_hosts_and_one_goes_on(hosts, shards_directory, tmp_path):
    values = values_for(shards_directory, tmp_path / 'model', evaluate_every=0)
    done = hosts.horovodrun(
        '-c', STRICKEN, json.dumps(values), tmp_path, 1, 'os.system("ip link set link0 down")'
    )
    assert (tmp_path / 'struck').exists(), done.stderr
    seconds = time.time() - (tmp_path / 'struck').stat().st_mtime  # noqa: TID251  as files have it
    assert done.returncode != 0 and seconds < 3 * PATIENCE_SECONDS
    processes = [int((tmp_path / f'pid-{rank}').read_text()) for rank in (0, 1)]
    assert 'which has ended, is stopped, hangs or is cut off' in done.stderr
    assert not any(map(living, processes))
    assert pretrain(recipe_for(shards_directory, tmp_path / 'model', evaluate_every=0, resume=True)).step == 6
