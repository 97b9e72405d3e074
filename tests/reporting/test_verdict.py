"""The verdict compares what belongs together, and says so in words."""

import dataclasses
import json

import numpy as np
import pytest
import yaml
from helpers.pages import Reader
from helpers.written_runs import BASE, SMALL, write_run, write_task_run

from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.reporting.networks import (
    LENGTH,
    Measured,
    Score,
    networks_of_runs,
    read_run,
    with_model,
    with_result,
)
from gluon_optbert.reporting.verdict import Timing, base_of, sentence, verdict
from gluon_optbert.runs.files import write_sealed


def result(architecture, mean, *, majority=50.0, sha256='0', task='SST-2'):
    """The values of a result file, as far as they are read."""
    return {
        'task': task,
        'metric': 'dev/accuracy',
        'architecture': architecture.to_dict(),
        'model_sha256': sha256,
        'mean': {'dev/accuracy': mean},
        'std': {'dev/accuracy': 0.5},
        'majority': {'dev/accuracy': majority},
    }


@pytest.fixture
def networks(tmp_path):
    """A run of one round, whose networks were both fine-tuned and timed."""
    pair = networks_of_runs([read_run(write_run(tmp_path / 'pruned'), 'pruned')])
    for architecture, mean in ((BASE, 80.0), (SMALL, 76.0)):
        pair = with_result(pair, 'a file', result(architecture, mean))
    return [dataclasses.replace(one, latency_ms=time) for one, time in zip(pair, (10.0, 4.0))]


def test_networks_are_what_went_in_and_what_came_out(networks):
    base, pruned = networks
    assert (base.label, base.architecture, base.mlm_loss) == ('base', BASE, 2.0)
    assert (pruned.label, pruned.architecture, pruned.mlm_loss) == ('pruned', SMALL, 2.5)
    assert pruned.scores == {'SST-2 accuracy': Score(76.0, 0.5, 50.0)}
    assert base.flops == sum(count_flops(BASE, LENGTH).values())


def test_table_has_every_number_with_its_share_of_the_base(networks):
    text = Reader(verdict(networks)).text
    share = ParameterCost().cost(SMALL) / ParameterCost().cost(BASE)
    assert text[text.index('parameters') :][3] == f'{share:.0%}'.replace('%', ' %')
    assert text[text.index('time') :][:4] == ['time', '10 ms', '4 ms', '40 %']
    assert text[text.index('MLM loss') :][:4] == ['MLM loss', '2.000', '2.500', '+0.500']
    assert text[text.index('SST-2 accuracy') :][:4] == ['SST-2 accuracy', '80.0 ± 0.5', '76.0 ± 0.5', '95 %']
    assert text[text.index('majority class') :][:3] == ['majority class', '50.0', '50.0']


def test_sentence_says_smaller_faster_and_worse(networks):
    said = sentence(*networks)
    assert said.startswith('pruned has ') and 'is 2.5 times as fast' in said
    assert (
        'and scores 4.0 points less on SST-2 accuracy: 76.0, the base 80.0, the majority class 50.0.' in said
    )


@pytest.mark.parametrize(
    'other, words',
    [
        ({'recipe': {'limit': 600}, 'samples': {'train': 600}}, 'limit 600 for 2000'),
        ({'recipe': {'limit': 2000, 'epochs': 3}}, 'epochs 3 for None'),
        ({'recipe': {'limit': 2000, 'output': 'elsewhere', 'seeds': [4]}}, None),
    ],
)
def test_scores_that_were_not_made_alike_are_not_compared(other, words, tmp_path):
    pair = networks_of_runs([read_run(write_run(tmp_path / 'pruned'), 'pruned')])
    made = {'recipe': {'limit': 2000}, 'samples': {'train': 2000}}
    for architecture, mean, more in ((BASE, 80.0, {}), (SMALL, 40.0, other)):
        pair = with_result(pair, 'a file', {**result(architecture, mean), **made, **more})
    said, text = sentence(*pair), Reader(verdict(pair)).text
    assert ('points less' in said) == ('50 %' in text) == (words is None)
    assert words is None or ('is not compared' in said and words in said and 'learnt' not in said)
    assert ('the same command' in ' '.join(text)) == (words is not None)


@pytest.mark.parametrize(
    'other, words',
    [
        ({'recovery_steps': 400}, 'recovery_steps 400 for 100.'),
        ({'shards': 'b', 'limit': 5}, 'shards b for a, limit 5 for None.'),
        ({'alpha_steps': 30}, 'alpha_steps 30 for None.'),
        ({'method': 'random', 'target': 0.4, 'alpha_steps': 30, 'output': 'elsewhere'}, None),
        (None, None),  # it does not say
    ],
)
def test_runs_that_were_not_made_alike_are_said_not_to_be_compared(other, words, tmp_path):
    made = {'recovery_steps': 100, 'shards': 'a', 'method': 'alpha', 'target': 0.6}
    runs = []
    for name, recipe in (('one', made), ('two', None if other is None else {**made, **other})):
        path = write_run(tmp_path / name)
        if recipe is not None:
            (path / 'recipe.yaml').write_text(yaml.safe_dump(recipe))
        runs.append(read_run(path, name))
    said = ' '.join(Reader(verdict(networks_of_runs(runs))).text)
    assert ('two and one are not to be compared' in said) == (words is not None)
    assert words is None or words in said
    assert 'are not to be compared' not in str(verdict(networks_of_runs(runs[:1])))


def with_right(values, *right):
    """A result with the instances that every seed had right."""
    return {**values, 'runs': [{'right': {'dev': marks}} for marks in right]}


def test_sentence_has_the_standard_error_of_a_difference_where_both_say_what_was_right(tmp_path):
    """Of four instances, one seed each: two changed for the worse and one for the better."""
    pair = networks_of_runs([read_run(write_run(tmp_path / 'pruned'), 'pruned')])
    pair = with_result(pair, 'a file', with_right(result(BASE, 75.0), '1110'))
    pair = with_result(pair, 'a file', with_right(result(SMALL, 50.0), '0101'))
    apart = np.array([-1, 0, -1, 1])
    error = 100 * apart.std(ddof=1) / 4**0.5
    assert f'scores 25.0 points less (standard error {error:.1f}) on SST-2 accuracy' in sentence(*pair)
    assert 'taken over the held-out instances' in ' '.join(Reader(verdict(pair)).text)


def test_right_answers_of_several_seeds_count_as_their_mean():
    one, other = Score(50.0, right=('1100', '1010')), Score(50.0, right=('1111',))
    apart = np.array([0, 0.5, 0.5, 1])
    assert one.difference_error(other) == pytest.approx(100 * apart.std(ddof=1) / 2)
    assert one.difference_error(one) == 0.0


@pytest.mark.parametrize('right', [(), ('1',), ('11', '111'), ('111',)])
def test_a_difference_of_other_instances_has_no_standard_error(right):
    assert Score(50.0, right=('10',)).difference_error(Score(50.0, right=right)) is None
    assert Score(50.0, right=right).difference_error(Score(50.0, right=('10',))) is None
    assert Score(50.0, right=('1',)).difference_error(Score(50.0, right=('1',))) is None


@pytest.mark.parametrize(
    'runs', [[], [{'right': {}}], [{'right': {'dev': '10'}}, {}], [{'right': {'dev': ''}}]]
)
def test_a_result_that_does_not_say_of_every_seed_what_was_right_has_no_such_error(networks, runs):
    values = {**result(SMALL, 50.0, task='other'), 'runs': runs}
    assert with_result(networks, 'a file', values)[1].scores['other accuracy'].right == ()


def test_sentence_names_what_was_not_learnt_and_what_takes_longer(networks):
    base, pruned = networks
    poor = dataclasses.replace(pruned, latency_ms=20.0, scores={'SST-2 accuracy': Score(50.0, 0.0, 50.0)})
    assert 'takes 2 times as long' in sentence(base, poor)
    assert 'is about as fast' in sentence(base, dataclasses.replace(pruned, latency_ms=10.2))
    assert 'so it has learnt nothing of this task' in sentence(base, poor)
    assert '50.0 ± 0.0 *' in Reader(verdict([base, poor])).text


def test_times_of_a_busy_machine_are_called_so(networks):
    text = ' '.join(Reader(verdict(networks, timing=Timing('It was busy.', busy=True))).text)
    assert 'is 2.5 times as fast (timed on a busy machine),' in text and 'It was busy.' in text


def test_file_sizes_are_those_of_the_weights(tmp_path, networks):
    for network, size in zip(networks, (2000000, 500000)):
        network.directory.mkdir(parents=True)
        (network.directory / 'model.params').write_bytes(b'x' * size)
    text = Reader(verdict(networks)).text
    assert text[text.index('file of weights') :][1:4] == ['2 MB', '0.5 MB', '25 %']


def test_equal_networks_of_two_runs_are_told_apart_by_their_weights(tmp_path):
    runs = [read_run(write_run(tmp_path / name), name) for name in ('one', 'two')]
    networks = networks_of_runs(runs)
    assert [network.label for network in networks] == ['base', 'one', 'two']
    for network in networks:
        network.directory.mkdir(parents=True)
        (network.directory / 'model.params').write_text(network.label)
    scored = with_result(networks, 'a file', result(SMALL, 76.0, sha256=networks[2].sha256()))
    assert [list(network.scores) for network in scored] == [[], [], ['SST-2 accuracy']]


def run_from(path, loss, *, sha256=None):
    """A run whose base has this loss, and perhaps a manifest with the checksum of its weights."""
    write_run(path)
    rows = json.loads((path / 'rounds.json').read_text())
    rows[0]['recovered']['mlm_loss'] = loss
    (path / 'rounds.json').write_text(json.dumps(rows))
    if sha256 is not None:
        (path / 'round-0' / 'model').mkdir(parents=True)
        manifest = {'files': {'model.params': {'sha256': sha256}}}
        write_sealed(path / 'round-0' / 'model' / 'manifest.json', manifest)
    return read_run(path, path.name)


@pytest.mark.parametrize(
    'one, other, bases',
    [
        ((2.0, 'a'), (2.0, 'a'), 1),
        ((2.0, 'a'), (2.0, 'b'), 2),
        ((2.0, 'a'), (2.25, 'a'), 1),  # measured on other text
        ((2.0, None), (2.0, 'b'), 1),
        ((2.0, None), (2.25, None), 2),
    ],
)
def test_bases_of_equal_widths_are_one_if_their_weights_are(tmp_path, one, other, bases):
    runs = [run_from(tmp_path / 'one', one[0], sha256=one[1])]
    runs.append(run_from(tmp_path / 'two', other[0], sha256=other[1]))
    labels = [network.label for network in networks_of_runs(runs)]
    assert labels == [*['base', 'base of two'][:bases], 'one', 'two']


def test_a_network_is_compared_with_what_went_into_its_own_run(tmp_path):
    runs = [run_from(tmp_path / name, loss, sha256=name) for name, loss in (('one', 2.0), ('two', 2.25))]
    networks = networks_of_runs(runs)
    for mean, sha256 in ((80.0, 'one'), (90.0, 'two')):
        networks = with_result(networks, 'a file', result(BASE, mean, sha256=sha256))
    networks[3] = dataclasses.replace(networks[3], scores={'SST-2 accuracy': Score(81.0, 0.5, 50.0)})
    text = Reader(verdict(networks)).text
    losses = ['2.000', '2.250', '2.500', '+0.500', '2.500', '+0.250']
    assert text[text.index('MLM loss') + 1 :][:6] == losses
    assert text[text.index('SST-2 accuracy') + 1 :][:4] == ['80.0 ± 0.5', '90.0 ± 0.5', '81.0 ± 0.5', '90 %']
    assert any('scores 9.0 points less on SST-2 accuracy: 81.0, its base 90.0' in part for part in text)
    assert any('began with several networks' in part for part in text)


def test_a_run_for_a_task_before_one_of_pre_training_keeps_its_loss(tmp_path):
    task = read_run(write_task_run(tmp_path / 'task', (BASE, SMALL), (90.0, 88.0)), 'task')
    networks = networks_of_runs([task, run_from(tmp_path / 'run', 2.0)])
    text = Reader(verdict(networks)).text
    assert text[text.index('MLM loss') + 1 :][:3] == ['2.000', '2.500', '+0.500']


def test_results_of_equal_widths_and_other_weights_are_networks_of_their_own():
    networks = [Measured('base', BASE)]
    for label, mean, sha256 in (('one', 80.0, 'a'), ('two', 70.0, 'b'), ('three', 60.0, 'b')):
        task = 'MNLI' if label == 'three' else 'SST-2'
        networks = with_result(networks, label, result(BASE, mean, sha256=sha256, task=task))
    scores = {one.label: {name: score.mean for name, score in one.scores.items()} for one in networks}
    assert scores == {
        'base': {'SST-2 accuracy': 80.0},
        'two': {'SST-2 accuracy': 70.0, 'MNLI accuracy': 60.0},
    }


def test_result_of_other_weights_than_those_of_the_run_is_not_its_score(tmp_path):
    networks = networks_of_runs([read_run(write_run(tmp_path / 'run'), 'run')])
    networks[0].directory.mkdir(parents=True)
    (networks[0].directory / 'model.params').write_bytes(b'base')
    own = with_result(networks, 'a file', result(BASE, 80.0, sha256=networks[0].sha256()))
    assert [list(one.scores) for one in own] == [['SST-2 accuracy'], []]
    other = with_result(networks, 'a file', result(BASE, 80.0, sha256='0'))
    assert [(one.label, list(one.scores)) for one in other] == [
        ('base', []),
        ('run', []),
        ('a file', ['SST-2 accuracy']),
    ]


@pytest.mark.parametrize('sha256', ['0', None])
def test_second_score_of_a_network_on_a_task_is_refused(sha256):
    networks = with_result([Measured('base', BASE)], 'one', result(BASE, 80.0, sha256='0'))
    with pytest.raises(ValueError, match='two: a second result of base for SST-2 accuracy'):
        with_result(networks, 'two', result(BASE, 70.0, sha256=sha256))


def test_results_and_models_alone_are_compared_with_the_largest():
    networks = with_model([], Measured('small', SMALL))
    networks = with_result(networks, 'large', result(BASE, 80.0))
    assert base_of(networks).label == 'large' and 'small has ' in verdict(networks)
    assert 'No task was scored on both' in verdict(networks)


def test_there_is_no_verdict_on_one_network():
    networks = with_result([Measured('small', SMALL)], 'a file', result(SMALL, 80.0))
    assert len(networks) == 1 and base_of(networks) is None and verdict(networks) is None
    assert verdict([*networks, Measured('again', SMALL)]) is None


def test_result_of_an_earlier_version_has_no_majority():
    values = result(BASE, 80.0)
    del values['majority']
    (network,) = with_result([], 'a file', json.loads(json.dumps(values)))
    assert network.scores['SST-2 accuracy'].text() == '80.0 ± 0.5'
    assert with_result([], 'a file', {'task': 'SST-2'}) == []
