"""The verdict compares what belongs together, and says so in words."""

import dataclasses

import numpy as np
import pytest
import yaml
from helpers.pages import Reader
from helpers.written_runs import BASE, SMALL, result_of, write_run, write_task_run

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.reporting.networks import (
    Measured,
    Score,
    in_millions,
    networks_of_runs,
    read_run,
    with_model,
    with_result,
)
from gluon_optbert.reporting.verdict import Timing, base_of, sentence, verdict
from gluon_optbert.runs.files import write_sealed

TASK = 'SST-2 accuracy'


def tuned(networks, *results):
    """The networks with the scores of results."""
    for result in results:
        networks = with_result(networks, 'a file', result)
    return networks


def words(networks, *, after=None, **more):
    """The text of the verdict; or its parts from one on."""
    text = Reader(verdict(networks, **more)).text
    return ' '.join(text) if after is None else text[text.index(after) + 1 :]


@pytest.fixture
def pair(tmp_path):
    """The networks of a run of one round."""
    return networks_of_runs([read_run(write_run(tmp_path / 'pruned'), 'pruned')])


@pytest.fixture
def networks(pair):
    """The same, both fine-tuned and timed."""
    pair = tuned(pair, result_of(BASE, 80.0), result_of(SMALL, 76.0))
    return [dataclasses.replace(one, latency_ms=time) for one, time in zip(pair, (10.0, 4.0))]


def test_table_has_every_number_with_its_share_of_the_base(networks):
    for network, size in zip(networks, (2000000, 500000)):
        network.directory.mkdir(parents=True)
        (network.directory / 'model.params').write_bytes(b'x' * size)
    share = ParameterCost().cost(SMALL) / ParameterCost().cost(BASE)
    assert [one.label for one in networks] == ['base', 'pruned']
    assert words(networks, after='parameters')[2] == f'{share:.0%}'.replace('%', ' %')
    for name, *cells in (
        ('file of weights', '2 MB', '0.5 MB', '25 %'),
        ('time', '10 ms', '4 ms', '40 %'),
        ('MLM loss', '2.000', '2.500', '+0.500'),
        (TASK, '80.0', '76.0', '95 %'),
        ('majority class', '50.0', '50.0'),
    ):
        assert words(networks, after=name)[: len(cells)] == cells


def test_sentence_says_smaller_faster_and_worse(networks):
    base, pruned = networks
    said = sentence(base, pruned)
    assert said.startswith('pruned has ') and 'is 2.5 times as fast' in said
    assert f'and scores 4.0 points less on {TASK}: 76.0, the base 80.0, the majority class 50.0.' in said
    poor = dataclasses.replace(pruned, latency_ms=20.0, scores={TASK: Score(50.0, 0.0, 50.0)})
    assert 'takes 2 times as long' in sentence(base, poor)
    assert 'is about as fast' in sentence(base, dataclasses.replace(pruned, latency_ms=10.2))
    assert 'so it has learnt nothing of this task' in sentence(base, poor)
    assert '50.0 ± 0.0 *' in words([base, poor])
    text = words(networks, timing=Timing('It was busy.', busy=True))
    assert 'is 2.5 times as fast (timed on a busy machine),' in text and 'It was busy.' in text


@pytest.mark.parametrize(
    'other, said',
    [
        ({'recipe': {'limit': 600}, 'samples': {'train': 600}}, 'limit 600 for 2000'),
        ({'recipe': {'limit': 2000, 'epochs': 3}}, 'epochs 3 for None'),
        ({'recipe': {'limit': 2000, 'output': 'elsewhere', 'seeds': [4]}}, None),
    ],
)
def test_scores_that_were_not_made_alike_are_not_compared(other, said, pair):
    made = {'recipe': {'limit': 2000}, 'samples': {'train': 2000}}
    pair = tuned(pair, result_of(BASE, 80.0, **made), result_of(SMALL, 40.0, **{**made, **other}))
    found, text = sentence(*pair), words(pair)
    assert ('points less' in found) == ('50 %' in text) == (said is None)
    assert said is None or ('is not compared' in found and said in found and 'learnt' not in found)
    assert ('the same command' in text) == (said is not None)


@pytest.mark.parametrize(
    'other, said',
    [
        ({'recovery_steps': 400}, 'recovery_steps 400 for 100.'),
        ({'shards': 'b', 'limit': 5}, 'shards b for a, limit 5 for None.'),
        ({'alpha_steps': 30}, 'alpha_steps 30 for None.'),
        ({'method': 'random', 'target': 0.4, 'alpha_steps': 30, 'output': 'elsewhere'}, None),
        (None, None),  # it does not say
    ],
)
def test_runs_that_were_not_made_alike_are_said_not_to_be_compared(other, said, tmp_path):
    made = {'recovery_steps': 100, 'shards': 'a', 'method': 'alpha', 'target': 0.6}
    runs = []
    for name, recipe in (('one', made), ('two', None if other is None else {**made, **other})):
        path = write_run(tmp_path / name)
        if recipe is not None:
            (path / 'recipe.yaml').write_text(yaml.safe_dump(recipe))
        runs.append(read_run(path, name))
    text = words(networks_of_runs(runs))
    assert ('two and one are not to be compared' in text) == (said is not None)
    assert said is None or said in text
    assert 'are not to be compared' not in words(networks_of_runs(runs[:1]))


def test_difference_of_the_same_instances_has_its_standard_error(pair):
    """Of four instances, one seed each: two changed for the worse and one for the better."""
    one, other = result_of(BASE, 75.0, right=['1110']), result_of(SMALL, 50.0, right=['0101'])
    pair = tuned(pair, one, other)
    error = 100 * np.std([-1, 0, -1, 1], ddof=1) / 4**0.5
    assert f'scores 25.0 points less (standard error {error:.1f}) on {TASK}' in sentence(*pair)
    assert 'taken over the held-out instances' in words(pair)
    seeds, right = Score(50.0, right=('1100', '1010')), Score(50.0, right=('1111',))
    assert seeds.difference_error(right) == pytest.approx(100 * np.std([0, 0.5, 0.5, 1], ddof=1) / 2)
    assert seeds.difference_error(seeds) == 0.0


def test_a_difference_of_other_instances_has_no_standard_error(networks):
    for right in ((), ('1',), ('11', '111')):
        assert Score(50.0, right=('10',)).difference_error(Score(50.0, right=right)) is None
        assert Score(50.0, right=right).difference_error(Score(50.0, right=('10',))) is None
    assert Score(50.0, right=('1',)).difference_error(Score(50.0, right=('1',))) is None
    for right in (None, ['10', None]):  # of some seeds
        values = result_of(SMALL, 50.0, 50.0, task='other', right=right)
        assert tuned(networks, values)[1].scores['other accuracy'].right == ()


def run_from(path, loss, *, sha256=None):
    """A run whose base has this loss, and perhaps a manifest with the checksum of its weights."""
    write_run(path, loss=loss)
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
    bases = (result_of(BASE, mean, sha256=sha256) for mean, sha256 in ((80.0, 'one'), (90.0, 'two')))
    networks = tuned(networks_of_runs(runs), *bases)
    networks[3] = dataclasses.replace(networks[3], scores={TASK: Score(81.0, 0.5, 50.0)})
    losses = ['2.000', '2.250', '2.500', '+0.500', '2.500', '+0.250']
    assert words(networks, after='MLM loss')[:6] == losses
    assert words(networks, after=TASK)[:4] == ['80.0', '90.0', '81.0 ± 0.5', '90 %']
    assert f'scores 9.0 points less on {TASK}: 81.0, its base 90.0' in words(networks)
    assert 'began with several networks' in words(networks) and 'base of two has' not in words(networks)
    assert 'began with several networks' not in words([networks[0], networks[2]])


def test_a_run_for_a_task_before_one_of_pre_training_keeps_its_loss(tmp_path):
    task = read_run(write_task_run(tmp_path / 'task', (BASE, SMALL), (90.0, 88.0)), 'task')
    networks = networks_of_runs([task, run_from(tmp_path / 'run', 2.0)])
    assert words(networks, after='MLM loss')[:3] == ['2.000', '2.500', '+0.500']


def test_a_result_belongs_to_the_network_of_its_weights(tmp_path):
    """Three networks of two runs, two of equal widths; a result of other weights is one more."""
    networks = networks_of_runs([read_run(write_run(tmp_path / name), name) for name in ('one', 'two')])
    for network in networks:
        network.directory.mkdir(parents=True)
        (network.directory / 'model.params').write_text(network.label)
    results = [result_of(SMALL, 76.0, sha256=networks[2].sha256()), result_of(BASE, 80.0, sha256='0')]
    scored = {one.label: list(one.scores) for one in tuned(networks, *results)}
    assert scored == {'base': [], 'one': [], 'two': [TASK], 'a file': [TASK]}


def test_results_of_equal_widths_and_other_weights_are_networks_of_their_own():
    networks = [Measured('base', BASE)]
    for label, mean, sha256 in (('one', 80.0, 'a'), ('two', 70.0, 'b'), ('three', 60.0, 'b')):
        task = 'MNLI' if label == 'three' else 'SST-2'
        networks = with_result(networks, label, result_of(BASE, mean, sha256=sha256, task=task))
    scores = {one.label: {name: score.mean for name, score in one.scores.items()} for one in networks}
    assert scores == {'base': {TASK: 80.0}, 'two': {TASK: 70.0, 'MNLI accuracy': 60.0}}
    with pytest.raises(ValueError, match=f'four: a second result of base for {TASK}'):
        with_result(networks, 'four', result_of(BASE, 70.0, sha256='a'))


def test_results_and_models_alone_are_compared_with_the_largest():
    networks = with_model([], Measured('small', SMALL))
    networks = with_result(networks, 'large', result_of(BASE, 80.0))
    assert base_of(networks).label == 'large' and 'small has ' in verdict(networks)
    assert 'No task was scored on both' in verdict(networks)
    named_base = [Measured('base', SMALL), Measured('large', BASE)]  # by its directory, and smaller
    assert base_of(named_base).label == 'large'
    assert verdict(networks[:1]) is None and verdict([networks[0], Measured('again', SMALL)]) is None


def test_result_of_an_earlier_version_has_no_majority():
    (network,) = tuned([], dataclasses.replace(result_of(BASE, 79.5, 80.5), majority=None))
    assert network.scores[TASK].text() == '80.0 ± 0.7'


@pytest.mark.parametrize('parameters', [88.1e6, 9.994e6, 9.996e6, 22.7e6, 99.94e6, 99.96e6, 108.3e6])
def test_parameters_have_three_digits(parameters):
    shown = in_millions(parameters).removesuffix(' M')
    assert len(shown.replace('.', '')) == 3
    assert float(shown) == pytest.approx(parameters / 1e6, rel=5e-3)
