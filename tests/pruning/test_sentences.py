"""Pruning for the embeddings of texts: what is scored, and what a query encoder says of itself."""

import dataclasses
import json

import numpy as np
import pytest
from helpers.finetuned import sentences
from helpers.tiny import random_parameters, records, write_saved_model
from scipy.stats import spearmanr

from gluon_optbert.architecture.embedding import Embedding
from gluon_optbert.architecture.rounds import Round
from gluon_optbert.deployment.export import deployment_of, network_of
from gluon_optbert.deployment.library_exports import export_onnx
from gluon_optbert.deployment.lineage import lineage_of
from gluon_optbert.deployment.model_card import model_card
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.importing.sentence_modules import QUERY_ENCODER, SETTINGS, embedding_of
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning import sentence_objective
from gluon_optbert.pruning.doubts import doubts
from gluon_optbert.pruning.objectives import compare_embeddings
from gluon_optbert.pruning.recipe import TaskPruneRecipe
from gluon_optbert.pruning.report import readable
from gluon_optbert.pruning.sentence_objective import SentenceObjective, read_sentence_data
from gluon_optbert.pruning.task_objectives import prune_task
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.pretrain import pretrain
from gluon_optbert.training.recipe import PretrainRecipe


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
    """A directory of texts and pairs with scores."""
    base = tmp_path_factory.mktemp('texts')
    words = [text for text, _ in sentences(160, 5)]
    (base / 'text.txt').write_text('\n'.join(words[:120]) + '\n')
    rows = [f'{one},{other},{i / 4}' for i, (one, other) in enumerate(zip(words[120:140], words[140:]))]
    (base / 'dev.csv').write_text('\n'.join(rows) + '\n')
    return base


def recipe_for(model, data, output, **more):
    values = {'model': str(model), 'data': str(data), 'output': str(output), 'task': 'sentences'}
    values.update(method='fisher', alpha_steps=2, steps=2, batch_tokens=64, timing=False, learning_rate=0.01)
    return fill(TaskPruneRecipe, {**values, **more})


@pytest.fixture(scope='module')
def run(texts, model_directory, tmp_path_factory):
    output = tmp_path_factory.mktemp('runs') / 'run'
    return output, prune_task(recipe_for(model_directory, texts, output))


def test_the_score_of_a_run_is_that_of_the_pairs(run, texts, model_directory):
    output, rows = run
    row = rows[-1].recovered
    assert row.metric == 'dev/spearman' and row.instances == 20
    assert [*row.scores] == ['dev/spearman', 'heldout/pair_similarity']
    saved = read_model(output / 'round-1' / 'model')
    predictor = Predictor.of(network_of(saved, 'encoder'), deployment_of(saved, 'encoder'))
    one, other, scores = zip(*(line.split(',') for line in (texts / 'dev.csv').read_text().splitlines()))
    cosines = (predictor.encode(one) * predictor.encode(other)).sum(axis=1)
    assert row.value == pytest.approx(100 * spearmanr(cosines, np.float64(scores))[0], abs=0.1)
    page = (output / 'pruning.md').read_text()
    assert f'| 1 | {row.value:.2f} | {row.scores["heldout/pair_similarity"]:.2f} |' in page
    assert records(output)[-1]['dev/spearman'] == row.value


def test_scores_of_the_units_that_went_are_told_however_small(run):
    """Squared gradients are far below those of gates, which are near one."""
    directory = run[0] / 'round-1'
    told = json.loads((directory / 'selection.json').read_text())['removed_unit_and_alpha']
    scores = np.load(directory / 'scores.npz')
    units = [(key, unit, score) for key, removed in told.items() for unit, score in removed]
    assert units and all(score == pytest.approx(scores[key][unit], rel=1e-6) for key, unit, score in units)


def test_sentences_and_long_texts_are_scored_each(texts, model_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(sentence_objective, 'LONG', 8)
    (tmp_path / 'text.txt').write_bytes((texts / 'text.txt').read_bytes())
    recipe = recipe_for(model_directory, tmp_path / 'text.txt', tmp_path / 'run')
    objective = SentenceObjective(recipe, read_model(model_directory), Workers())
    assert (objective.heldout.lengths > 8).tolist() == [False] * 10 + [True] * 10
    other = random_parameters(objective.start.architecture, 3)
    changed = dataclasses.replace(objective.start, parameters=other)
    measured = objective.evaluate(changed)
    parts = [measured.scores[f'{kind}/pair_similarity'] for kind in ('sentences', 'long_texts')]
    assert measured.metric == 'heldout/pair_similarity' and measured.value == pytest.approx(sum(parts) / 2)
    before, after = (objective.embeddings(saved)[10:] for saved in (objective.start, changed))
    pairs = np.triu_indices(10, 1)
    wanted = spearmanr(*((values @ values.T)[pairs] for values in (before, after)))[0]
    assert parts[1] == pytest.approx(100 * wanted)
    assert '20' in objective.about_data()[0]


def test_a_run_that_trains_nothing_reads_some_of_the_texts_and_holds_the_same_ones_out(
    texts, model_directory, tmp_path, monkeypatch
):
    monkeypatch.setattr(sentence_objective, '_ENOUGH', 50)
    (tmp_path / 'text.txt').write_bytes((texts / 'text.txt').read_bytes())
    saved = read_model(model_directory)
    some, every = (
        read_sentence_data(recipe_for(model_directory, tmp_path, tmp_path / 'run', **more), saved)
        for more in ({'steps': 0}, {})
    )
    assert len(some.train) + len(some.heldout) == 50 and len(every.train) + len(every.heldout) == 118
    np.testing.assert_array_equal(some.heldout.ids, every.heldout.ids)
    assert some.described().startswith('50 of 118 texts') and every.described().startswith('to learn from')


def test_too_few_pairs_to_measure_on_are_refused(texts, model_directory, tmp_path):
    (tmp_path / 'text.txt').write_bytes((texts / 'text.txt').read_bytes())
    (tmp_path / 'dev.csv').write_text('a,b,0.5\nc,d,1\n')
    recipe = recipe_for(model_directory, tmp_path, tmp_path / 'run')
    with pytest.raises(ValueError, match='pairs with scores to measure on, of dev: 2; at least 10'):
        read_sentence_data(recipe, read_model(model_directory))


def test_a_text_is_cut_to_the_length_of_the_checkpoint(texts, model_directory, tmp_path):
    saved = read_model(model_directory)
    head = dataclasses.replace(saved.head, embedding=Embedding(max_length=5))
    recipe = recipe_for(model_directory, texts, tmp_path / 'run')
    for start, length in ((saved, 16), (dataclasses.replace(saved, head=head), 5)):
        data = read_sentence_data(recipe, start)
        assert data.train.lengths.max() <= length == data.length
    assert all('texts were cut to 5 tokens' in note for note in data.cut_notes(16))
    assert len(data.cut_notes(16)) == 2 + len(data.pairs)


def test_a_network_that_was_not_trained_has_one_row_of_embeddings(texts, model_directory, tmp_path):
    prune_task(recipe_for(model_directory, texts, tmp_path / 'run', steps=0))
    page = (tmp_path / 'run' / 'pruning.md').read_text()
    assert '| 1 | cut | ' in page and '| 1 | recovered | ' not in page


def test_a_query_encoder_says_so_wherever_it_goes(run, model_directory, tmp_path):
    """In the run, its page, the exports and their cards, and when such a directory is imported again."""
    output, _ = run
    place = output / 'round-1' / 'model'
    saved, name = read_model(place), model_directory.name
    assert saved.architecture.h == read_model(model_directory).architecture.h
    assert saved.head.embedding.index == name and 'is a query encoder' in (output / 'pruning.md').read_text()
    known = json.loads((output / 'round-1' / 'embeddings.json').read_text())['recovered']
    export_onnx(saved, tmp_path / 'out', sentences=True, lineage=lineage_of(saved, place))
    card = (tmp_path / 'out' / 'README.md').read_text()
    assert f'search an index that was made with {name}' in card and f'{known["query_similarity"]:.3f}' in card
    assert json.loads((tmp_path / 'out' / SETTINGS).read_text())[QUERY_ENCODER] == name
    config = {'hidden_size': saved.architecture.h, 'max_position_embeddings': saved.architecture.max_length}
    assert embedding_of(tmp_path / 'out', config, cased=False)[0] == saved.head.embedding
    assert deployment_of(saved, 'encoder').head.embedding.index == name


def test_a_network_that_lost_hidden_units_is_no_query_encoder(texts, model_directory, tmp_path, caplog):
    recipe = recipe_for(model_directory, texts, tmp_path / 'run', prune='h', steps=0, target=0.9)
    prune_task(recipe)
    place = tmp_path / 'run' / 'round-1' / 'model'
    saved = read_model(place)
    assert saved.architecture.h < 8 and saved.head.embedding.index == ''
    assert '--prune akvf makes a query encoder' in caplog.text
    assert 'no query encoder' in (tmp_path / 'run' / 'pruning.md').read_text()
    story = lineage_of(saved, place)
    card = model_card(deployment_of(saved, 'encoder'), format='mxnet', files={}, lineage=story)
    assert f'its hidden size is {saved.architecture.h}, 8 before pruning' in card


@pytest.mark.parametrize(
    'more, index',
    [
        ({}, 'model'),
        ({'teacher_weights': 'last=0,cosines=0'}, ''),  # similarities alone leave no number where it was
        ({'steps': 0}, ''),
        ({'steps': 0, 'reconstruct': True}, 'model'),
        ({'method': 'layers', 'prune': 'hakvf'}, 'model'),
    ],
)
def test_what_keeps_the_embeddings_makes_a_query_encoder(texts, model_directory, tmp_path, more, index):
    recipe = recipe_for(model_directory, texts, tmp_path / 'run', **more)
    objective = SentenceObjective(recipe, read_model(model_directory), Workers())
    made = {'trained': recipe.recovers, 'fitted': recipe.reconstruct}
    assert objective.head_of(objective.start.architecture, **made).embedding.index == index
    assert not [doubt for doubt in doubts(objective) if 'query encoder' in doubt]


def test_a_query_encoder_is_one_for_the_network_that_it_learnt(texts, model_directory, tmp_path):
    """Where nothing is trained, that is not the teacher: layers are fitted to those before the cut."""
    teacher = str(write_saved_model(tmp_path / 'other', seed=5))
    for more, index, named in (
        ({}, 'other', f'`{teacher}`'),
        ({'steps': 0, 'reconstruct': True}, 'model', 'the network before pruning'),
    ):
        recipe = recipe_for(model_directory, texts, tmp_path / 'run', teacher=teacher, **more)
        objective = SentenceObjective(recipe, read_model(model_directory), Workers())
        made = {'trained': recipe.recovers, 'fitted': recipe.reconstruct}
        assert objective.head_of(objective.start.architecture, **made).embedding.index == index
        page = readable([Round.of(objective.start, 0)], recipe, embeddings=[{'instances': 10}])
        assert f'embeddings search an index that was made with {named}.' in page


def test_a_network_that_stays_as_it_was_cut_is_no_query_encoder(texts, model_directory, tmp_path):
    """As `keep_best` keeps it where recovery makes it worse; fitted only, it is one of no teacher."""
    teacher = str(write_saved_model(tmp_path / 'other', seed=5))
    for more, index in (({}, ''), ({'reconstruct': True, 'teacher': teacher}, model_directory.name)):
        output = tmp_path / f'run{index}'
        more = {'keep_best': True, 'learning_rate': 1.0, 'teacher_weights': 'states=0', **more}
        rows = prune_task(recipe_for(model_directory, texts, output, **more))
        assert rows[-1].kept_step == 0 and rows[-1].started_from is None
        assert read_model(output / 'round-1' / 'shrunk').head.embedding.index == ''
        assert read_model(output / 'round-1' / 'model').head.embedding.index == index
        page = (output / 'pruning.md').read_text()
        assert ('an index that was made with the network before pruning.' in page) == bool(index)


def test_queries_are_compared_with_the_documents_of_the_index():
    """A rotation keeps all similarities within the second network, and none across."""
    random = np.random.RandomState(1)
    before = random.normal(size=(40, 8))
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    turned = before @ np.linalg.qr(random.normal(size=(8, 8)))[0]
    same, other = (compare_embeddings(before, after, np.arange(8)) for after in (before, turned))
    assert same['cosine'] == pytest.approx(1) == same['pair_similarity'] and other['cosine'] < 0.9
    assert same['query_similarity'] == pytest.approx(1)
    assert other['pair_similarity'] == pytest.approx(1) and abs(other['query_similarity']) < 0.5
    units = np.array([0, 2, 3, 5])
    after = before[:, units] / np.linalg.norm(before[:, units], axis=1, keepdims=True)
    narrower = compare_embeddings(before, after, units)
    assert narrower['cosine'] == pytest.approx(1) and 'query_similarity' not in narrower


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('count', [1, 20])
def test_embeddings_that_are_all_alike_have_no_similarity(count):
    """Such are those of a single hidden unit, and a score that is no number would be best for ever."""
    before = np.random.RandomState(1).normal(size=(count, 8))
    for units in ([3], range(8)):
        compared = compare_embeddings(before, np.ones((count, len(units))), np.array(units))
        assert compared['pair_similarity'] == 0 and np.isfinite([*compared.values()]).all()


def test_pretraining_a_query_encoder_makes_it_another_network(run, shards_directory, tmp_path):
    values = {'model': str(run[0] / 'round-1' / 'model'), 'shards': str(shards_directory), 'steps': 1}
    pretrain(fill(PretrainRecipe, {**values, 'output': str(tmp_path / 'out'), 'batch_size': 8}))
    assert read_model(tmp_path / 'out').head.embedding.index == ''
