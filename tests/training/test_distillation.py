"""A teacher's scores and states: what each part of the loss is, and who may teach whom."""

import dataclasses

import mxnet as mx
import numpy as np
import pytest
from helpers.tiny import network, saved_model
from scipy.special import log_softmax

from gluon_optbert.architecture.embedding import Embedding
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.running import feed_of
from gluon_optbert.runs.progress import Progress
from gluon_optbert.text.batches import evaluation_batches
from gluon_optbert.text.shards import Shards
from gluon_optbert.training.distances import (
    RelationDivergence,
    check_pairs,
    cosine_distance,
    directions_of,
    similarity_difference,
)
from gluon_optbert.training.distillation import (
    OF_LAST_STATE,
    OF_STATES,
    Distillation,
    Match,
    StateMatching,
    Teacher,
    Weights,
    check_teacher,
)
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.pretrain import Pretraining

PHASE = Phase('recovery', 2, 8)


def objective(shards_directory, student, teacher, match, **weights):
    workers = Workers()
    return Distillation(
        build(student.architecture, student.parameters, output_all_encodings=True),
        workers,
        Shards.open(shards_directory, split='train'),
        None,
        teacher=Teacher(teacher, workers, output=Weights().output),
        match=match,
        weights=Weights(**weights),
        phase=PHASE,
    )


def matching(shards_directory, student, teacher, weights, **settings):
    """Of two networks that have all units and layers of each other."""
    workers = Workers()
    return StateMatching(
        build(student.architecture, student.parameters, **settings),
        workers,
        *(Shards.open(shards_directory, split=split) for split in ('train', 'heldout')),
        teacher=Teacher(teacher, workers, heads=False, output=weights.output),
        match=Match.whole(teacher.architecture),
        weights=weights,
        phase=PHASE,
    )


def parts_of(loss):
    batch = next(loss.batches(PHASE, 0))
    sums = [float(part.asscalar()) for part in loss.loss_sums(batch, slice(None))]
    return dict(zip(loss.losses, np.array(sums) / loss.totals(batch)))


@pytest.mark.parametrize('temperature', [2.0, 0.5])
def test_scores_are_a_mean_over_the_masked_tokens(shards_directory, temperature):
    teacher, student = saved_model(network(), seed=4), saved_model(network(), seed=5)
    loss = objective(shards_directory, student, teacher, Match.whole(network()), temperature=temperature)
    batch = next(loss.batches(PHASE, 0))
    outputs = loss.model(*feed_of(batch, INPUTS).values()), loss.teacher.outputs(batch, slice(None)).heads
    own, wanted = (log_softmax(scores[-1].asnumpy() / temperature, axis=-1) for scores in outputs)
    divergence = (np.exp(wanted) * (wanted - own)).sum(axis=-1)[batch.masked_weights > 0]
    assert parts_of(loss)['scores'] == pytest.approx(temperature**2 * divergence.mean(), rel=1e-4)


def test_narrower_student_is_compared_on_the_units_and_layers_that_it_has(shards_directory):
    teacher = saved_model(network(*((2, 4, 4, 16),) * 3), seed=4)
    student = saved_model(network((2, 4, 4, 16), (1, 2, 2, 8), h=5), seed=5)
    units = np.array([0, 2, 3, 6, 7])
    loss = objective(shards_directory, student, teacher, Match.after(units, [0, 2], 3))
    batch = next(loss.batches(PHASE, 0))
    states, *_ = loss.teacher.outputs(batch, slice(None))
    own = loss.model(*feed_of(batch, INPUTS).values())[0]
    wanted = 0.0
    for layer, state in zip((0, 0, 1), states):
        state = state.asnumpy()[:, :, units]
        real = np.arange(state.shape[1]) < batch.valid_length[:, np.newaxis]
        wanted += ((own[layer].asnumpy() - state)[real] ** 2).mean() / state[real].var()
    assert parts_of(loss)['states'] == pytest.approx(wanted, rel=1e-4)


def test_layer_that_was_dropped_belongs_to_the_nearest_that_stayed():
    assert Match.after(np.arange(3), [0, 3], 5).layers == (0, 0, 1, 1, 1)
    assert Match.after(np.arange(3), [1], 3).layers == (0, 0, 0)


def test_parts_without_weight_are_not_computed(shards_directory):
    """Without scores the teacher needs no heads, without states it may have another width."""
    student, match = saved_model(network(), seed=5), Match.whole(network())
    teachers = [saved_model(network(h=h), seed=4) for h in (8, 12)]
    whole = parts_of(objective(shards_directory, student, teachers[0], match, embeddings=0.5))
    for teacher, missing in zip(teachers, ('scores', 'states')):
        loss = objective(shards_directory, student, teacher, match, **{missing: 0.0, 'embeddings': 0.5})
        if missing == 'scores':
            loss.teacher = Teacher(teacher, Workers(), heads=False, output=Weights().output)
        parts = parts_of(loss)
        assert list(parts) == [name for name in whole if name != missing]
        assert loss.weights == (1.0, 1.0, 1.0, 0.5)
        assert teacher is not teachers[0] or {**parts, missing: whole[missing]} == whole


def test_teacher_of_another_shape_is_refused():
    student = saved_model(network())
    wide, deep = saved_model(network(h=12)), saved_model(network(*[(2, 4, 4, 16)] * 3))
    check_teacher(wide, student, units=False, layers=True, source='t')
    check_teacher(deep, student, units=True, layers=False, source='t')
    said = 't: the teacher has h = 12 and 2 layers.*--teacher-weights states=0,last=0,cosines=0$'
    with pytest.raises(ValueError, match=said):
        check_teacher(wide, student, units=True, layers=False, source='t')
    with pytest.raises(ValueError, match='h = 8 and 3 layers.*--teacher-weights states=0$'):
        check_teacher(deep, student, units=True, layers=True, source='t')


@pytest.mark.parametrize('part', ['states', 'last', 'cosines', 'embeddings', 'relations', 'scores'])
def test_units_are_compared_one_by_one_by_states_and_cosines_alone(part):
    none = dict.fromkeys(('labels', 'scores', 'states'), 0.0)
    assert Weights(**{**none, part: 0.5}).same_width == (part in ('states', 'last', 'cosines'))


def test_similarities_are_compared_over_all_pairs_of_sentences():
    random = np.random.RandomState(3)
    valid = np.array([4, 2, 3])
    student, teacher = (random.normal(size=(3, 4, width)) for width in (5, 7))
    for states in (student, teacher):
        states[np.arange(4) >= valid[:, np.newaxis]] = 0

    def cosines(states):
        means = states.sum(axis=1) / valid[:, np.newaxis]
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return means @ means.T

    def value(student, teacher, valid, weights):
        weights = mx.nd.array(weights)
        directions = (directions_of(mx.nd.array(states), valid, Embedding()) for states in (student, teacher))
        return similarity_difference(*directions, weights, Workers()).asscalar()

    gap = (cosines(student) - cosines(teacher)) ** 2
    assert value(student, teacher, valid, np.ones(3)) == pytest.approx(gap.sum() / 2, rel=1e-4)
    assert value(student, teacher, valid, [1, 0, 1]) == pytest.approx(2 * gap[0, 2], rel=1e-4)
    assert value(student, teacher, valid, [0, 1, 0]) == pytest.approx(0, abs=1e-9)


def test_cosine_distance_is_that_of_the_units_that_stayed():
    random = np.random.RandomState(3)
    units, weights = np.array([0, 2, 5]), np.array([1, 0, 1])
    student, teacher = (random.normal(size=(3, 4, width)) for width in (3, 7))

    def value(*arrays):
        student, teacher, units, weights = map(mx.nd.array, arrays)
        directions = (directions_of(states, np.full(3, 4), Embedding()) for states in (student, teacher))
        return cosine_distance(*directions, units, weights).asscalar()

    means = student.mean(axis=1), teacher.mean(axis=1)[:, units]
    cosines = (means[0] * means[1]).sum(axis=1) / np.prod([np.linalg.norm(one, axis=1) for one in means], 0)
    assert value(student, teacher, units, weights) == pytest.approx(((1 - cosines) * weights).sum(), rel=1e-4)
    assert value(teacher[:, :, units] * 3, teacher, units, weights) == pytest.approx(0, abs=1e-6)


def test_the_gradient_of_similarities_is_that_of_both_sentences():
    """Each worker has the embeddings of the others as constants, and yet all gradients come together."""
    random = np.random.RandomState(5)
    own, wanted = (random.normal(size=(4, width)) for width in (3, 6))
    own, wanted = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (own, wanted))
    student = mx.nd.array(own)
    student.attach_grad()
    with mx.autograd.record():
        loss = similarity_difference(student, mx.nd.array(wanted), mx.nd.ones(4), Workers())
    loss.backward()
    gap = own @ own.T - wanted @ wanted.T
    np.testing.assert_allclose(student.grad.asnumpy(), 4 * gap @ own / 3, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('widths', [(6, 6, 4), (5, 5, 7)])
def test_relations_of_any_widths_are_compared_by_their_divergence(widths):
    """Zeros that fill a head up change none of its products."""
    random, heads, valid = np.random.RandomState(4), 3, [4, 2]
    student = [random.normal(size=(2, 4, width)) for width in widths]
    teacher = [random.normal(size=(2, 4, 9)) for _ in widths]
    found = RelationDivergence(heads)(
        *([mx.nd.array(one) for one in both] for both in (student, teacher)),
        mx.nd.array(valid),
        mx.nd.array([1, 1]),
    )

    def relations(units, length):
        width = units.shape[-1]
        missing = -width % heads
        parts = np.split(np.pad(units, [(0, 0), (0, missing)])[:length], heads, axis=1)
        return np.stack([log_softmax(part @ part.T / (width / heads) ** 0.5, axis=-1) for part in parts])

    wanted = 0.0
    for one, other in zip(student, teacher):
        for row, length in enumerate(valid):
            own, right = relations(one[row], length), relations(other[row], length)
            wanted += (np.exp(right) * (right - own)).sum() / heads / 3
    assert float(found.asscalar()) == pytest.approx(wanted, rel=1e-3)


def test_every_part_of_states_alone_is_learnt_and_is_nothing_between_equal_networks(shards_directory):
    student, teacher = (saved_model(network((2, 4, 4, 16), (1, 3, 5, 8)), seed=seed) for seed in (5, 6))
    weights = Weights(0, 0, states=0, last=0.5, embeddings=20, cosines=1, relations=2)
    for one, equal in ((student, False), (teacher, True)):
        loss = matching(shards_directory, one, teacher, weights, **OF_LAST_STATE, **weights.output)
        assert loss.weights == (0.5, 20, 1, 2)
        parts = parts_of(loss)
        assert list(parts) == ['last', 'embeddings', 'cosine_distance', 'relations']
        assert all((abs(value) < 1e-5) == equal for value in parts.values())


def test_passes_of_one_sentence_are_refused():
    check_pairs(8, 4)
    with pytest.raises(ValueError, match='with --accumulate 8 a batch of 8 has one sentence'):
        check_pairs(8, 8)


def test_variances_do_not_depend_on_the_passes_or_on_instances_that_fill_a_batch_up(shards_directory):
    heldout = Shards.open(shards_directory, split='heldout')
    teacher, student, sizes = saved_model(network(), seed=3), saved_model(network(), seed=5), []
    loss = objective(shards_directory, student, teacher, Match.whole(network()))
    outputs = loss.teacher.outputs
    loss.teacher.outputs = lambda batch, rows: (sizes.append(rows.stop - rows.start), outputs(batch, rows))[1]
    variances = [
        loss.variances(next(evaluation_batches(heldout, batch_size=size, limit=5)), passes)
        for size, passes in ((5, 1), (16, 1), (16, 4))
    ]
    assert sizes == [5, 16, 4, 4, 4, 4]
    assert variances[2] == pytest.approx(variances[1], rel=1e-12)
    assert variances[1] == pytest.approx(variances[0], rel=1e-5)


def test_states_on_held_out_text_do_not_depend_on_the_batch_and_are_measured_by_their_weights(
    shards_directory,
):
    teacher, student = saved_model(network(), seed=4), saved_model(network(), seed=5)

    def measured(size=8, accumulate=1, **weights):
        loss = matching(shards_directory, student, teacher, Weights(0, 0, **weights), **OF_STATES)
        phase = dataclasses.replace(PHASE, batch_size=size, accumulate=accumulate, evaluation_limit=5)
        return loss.evaluate(phase)['state_difference']

    states = measured()
    for size, accumulate in ((1, 1), (8, 4)):
        assert measured(size, accumulate) == pytest.approx(states, rel=1e-4)
    alike, both = measured(embeddings=1.0), measured(embeddings=1.0, cosines=100.0)
    assert measured(cosines=100.0) - states == pytest.approx(both - alike, rel=1e-5)
    assert both - alike > 1 and alike - states > 0


@pytest.mark.parametrize('kind, name', [(Pretraining, 'mlm_loss'), (StateMatching, 'state_difference')])
def test_of_equally_good_steps_the_first_is_the_best(kind, name):
    objective, progress = kind.__new__(kind), Progress()
    for step, loss in enumerate((3.0, 2.0, 2.0, 4.0)):
        progress = objective.remember(progress, {name: loss}, step)
    assert progress.best_step == 1 and objective.best_of(progress) == 2.0
