"""Linear CKA is what its definition says, and the states that it compares are those of the tokens."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from helpers.examples import examples
from helpers.tiny import LENGTH, TOKENS, network, random_alphas, saved_model, vocabulary, write_records
from hypothesis import given, strategies as st

from gluon_optbert.analysis.sample import network_of, random_network, read_sample, residuals, sample_of_texts
from gluon_optbert.analysis.similarity import LinearCKA, compare
from gluon_optbert.architecture.heads import Head
from gluon_optbert.architecture.parameters import network_shapes
from gluon_optbert.cutting.shrink import take_units, without_gates
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import run
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.tasks.features import sorted_batches
from gluon_optbert.text.shards import record_dtype
from gluon_optbert.text.tokenizer import vocabulary_of

UNEVEN = network((2, 3, 5, 7), (1, 4, 4, 0), (1, 2, 3, 4), h=6)
PIECES = vocabulary_of([*TOKENS, *(f'##{token}' for token in TOKENS if token.isalpha())])
TEXTS = [
    ['the quick brown fox jumps'],
    ['over', 'the lazy dog.'],
    ['a b c'],
    ['sphinx of black quartz', 'judge my vow'],
] * 8


def by_definition(x, y):
    """Through the centred Gram matrices of all examples: tr(KL) over the norms."""
    x, y = (values - values.mean(axis=0) for values in (x, y))
    first, second = x @ x.T, y @ y.T
    return (first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second))


def cka(first, second, size=7):
    """Of two lists of states, in minibatches."""
    result = LinearCKA()
    for start in range(0, len(first[0]), size):
        result.add(*([state[start : start + size] for state in states] for states in (first, second)))
    return result.value()


def drawn(shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape) + 3


SAMPLE = sample_of_texts(TEXTS, vocabulary(), length=LENGTH)


@given(st.integers(0, 1000), st.integers(2, 30), st.integers(1, 6), st.integers(1, 6), st.integers(1, 40))
@examples(30)
def test_minibatches_add_up_to_the_definition_for_every_pair_of_states(seed, count, p, q, size):
    first = [drawn((count, p), seed), drawn((count, q), seed + 1)]
    second = [drawn((count, q), seed + 2), drawn((count, 3), seed + 3), drawn((count, p), seed + 4)]
    wanted = [[by_definition(x, y) for y in second] for x in first]
    np.testing.assert_allclose(cka(first, second, size), wanted, rtol=1e-8)  # float64


def test_constant_state_is_similar_to_nothing():
    result = cka([np.full((20, 3), 0.7), drawn((20, 3))], [drawn((20, 3))])
    assert np.isnan(result[0, 0]) and result[1, 0] == pytest.approx(1)


def test_memory_while_adding_is_little_more_than_what_is_kept():
    """Of 13 states with 13, one product p × q is 1/195 of what is kept, and the examples are few."""
    states = [drawn((16, 48), seed) for seed in range(13)]
    result = LinearCKA()
    tracemalloc.start()
    try:
        for _ in range(2):
            result.add(states, states)
        result.value()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * (13 * 13 + 2 * 13) * 48 * 48 * 8


def test_similarity_of_nothing_is_refused():
    with pytest.raises(ValueError, match='no example was added'):
        LinearCKA().value()


def test_network_is_like_itself_in_any_order_of_its_units():
    """Permuting the units of h is a rotation of every state that the network itself can undergo."""
    saved, one = saved_model(UNEVEN), network_of(saved_model(UNEVEN))
    order = np.random.RandomState(0).permutation(UNEVEN.h)
    parameters = take_units(saved.parameters, UNEVEN, {'h': order})
    for same in (one, network_of(dataclasses.replace(saved, parameters=parameters))):
        result = compare(one, same, SAMPLE)
        assert result.attention.shape == (3, 3) and result.layers.shape == (4, 4)
        for similarity in (result.attention, result.layers):
            assert np.diag(similarity) == pytest.approx(1, abs=1e-5)
    assert result.tokens == sum(map(len, SAMPLE.ids))
    other = compare(one, random_network(network(h=5), 3), SAMPLE)  # of another width and depth
    assert other.attention.shape == (3, 2) and ((other.layers > 0) & (other.layers < 0.8)).all()


@pytest.mark.parametrize('architecture', [UNEVEN, network((2, 3, 4, 8), (1, 2, 2, 0), e=4)])
def test_every_state_is_that_of_a_network_cut_there(architecture):
    """One without the layers behind it, and perhaps without the intermediate block of its own."""
    saved, batch = saved_model(architecture), next(sorted_batches(SAMPLE.features, 8))
    states = residuals(network_of(saved), batch)
    assert len(states) == 1 + 2 * len(architecture.layers)
    for number, state in enumerate(states):
        layers = list(architecture.layers[: -(-number // 2)])
        if number % 2:
            layers[-1] = dataclasses.replace(layers[-1], f=0)
        short = dataclasses.replace(architecture, layers=layers)
        own = {name: saved.parameters[name] for name in network_shapes(short)}
        wanted = run(build(short, own, use_decoder=False), batch, TOKEN_INPUTS)[0]
        np.testing.assert_allclose(state, wanted, rtol=1e-5, atol=1e-6)  # float32, sums of eight


def test_gates_are_folded_and_heads_do_not_matter():
    gated, head = saved_model(alphas=random_alphas(network())), Head('question_answering')
    folded = without_gates(gated)
    parameters = {**read_parameters(build(folded.architecture, head=head)), **folded.parameters}
    parameters = {name: parameters[name] for name in network_shapes(folded.architecture, head)}
    tuned = SavedModel(folded.architecture, parameters, vocabulary(), head=head)
    result = compare(network_of(gated), network_of(tuned), SAMPLE)
    assert np.diag(result.layers) == pytest.approx(1)


def test_texts_become_sequences_with_words_at_their_first_token():
    result = sample_of_texts([['Ab c.'], ['abcdefgh', 'Xy z']], PIECES, length=10)
    tokens = [[PIECES.idx_to_token[number] for number in row] for row in result.ids]
    assert tokens[0] == ['[CLS]', 'a', '##b', 'c', '.', '[SEP]']
    assert result.words[0] == ((1, 'Ab'), (3, 'c'), (4, '.'))
    assert tokens[1][0] == '[CLS]' and tokens[1].count('[SEP]') == 2 and len(tokens[1]) == 10
    assert result.words[1] == ((1, 'abcdefgh'), (6, 'Xy'), (8, 'z'))
    assert result.features.seconds.tolist() == [6, 6]


def write_instance(directory, text, shown):
    """Shards with one held-out instance: tokens of a text, and what is shown of them."""
    text, shown = (np.array([PIECES[token] for token in tokens.split()]) for tokens in (text, shown))
    length, hidden = len(text), np.flatnonzero(text != shown)
    records = np.zeros(1, record_dtype(length, length, len(PIECES)))
    records['input_ids'], records['valid_lengths'] = shown, length
    records['masked_lm_positions'][0, : len(hidden)] = hidden
    records['masked_lm_ids'][0, : len(hidden)] = text[hidden]
    records['masked_lm_weights'][0, : len(hidden)] = 1
    return write_records(
        directory, {'heldout': [records]}, PIECES, max_seq_length=length, max_predictions=length
    )


@pytest.mark.parametrize(
    'text, shown, length, words',
    [
        ('[CLS] a ##b c ##x ##b d [SEP]', '[CLS] a ##b c [MASK] ##b d [SEP]', 9, {1: 'ab', 6: 'd'}),
        ('[CLS] a ##b c x ##b d [SEP]', '[CLS] a ##b c [MASK] ##b d [SEP]', 9, {1: 'ab', 3: 'c', 6: 'd'}),
        ('[CLS] a c ##x d [SEP]', '[CLS] a c [MASK] d [SEP]', 9, {1: 'a', 4: 'd'}),
        ('[CLS] a c ##x d [SEP]', '[CLS] a c ##y d [SEP]', 9, {1: 'a', 4: 'd'}),
        ('[CLS] a c x d [SEP]', '[CLS] a c ##y d [SEP]', 9, {1: 'a', 2: 'c', 4: 'd'}),
        ('[CLS] ##b a [UNK] d [SEP] ##b c [SEP]', None, 9, {2: 'a', 4: 'd', 7: 'c'}),
        ('[CLS] a b ##c ##d e [SEP]', None, 4, {1: 'a'}),
        ('[CLS] a b ##c ##d e [SEP]', None, 5, {1: 'a', 2: 'bcd'}),
    ],
)
def test_word_of_shards_that_is_hidden_or_cut_in_part_is_left_out(tmp_path, text, shown, length, words):
    directory = write_instance(tmp_path / 'shards', text, shown or text)
    result = read_sample(directory, PIECES, limit=1, length=length)
    tokens = [PIECES.idx_to_token[number] for number in result.ids[0]]
    assert tokens == (shown or text).split()[:length] and dict(result.words[0]) == words


def test_labelled_files_have_sentences_and_labels(tmp_path):
    def read(name, content, **more):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding='utf-8')
        return read_sample(tmp_path / name, vocabulary(), **{'limit': 9, **more})

    result = read('task.tsv', 'text\tanswer\nab c\tyes\n\nd\tno\n')
    assert result.labels == ('yes', 'no') and [len(ids) for ids in result.ids] == [4, 3]  # 'ab' is unknown
    result = read('pairs.tsv', 'one\tother\tlabel\na\tb\t0\nc\td\t1\n', limit=1)
    assert len(result.labels) == 1
    assert (result.features.seconds.tolist(), result.features.lengths.tolist()) == ([3], [5])
    named = read('SST-2/train.tsv', 'sentence\tlabel\na b\t1\nc\t0\n', task='sst-2')
    for result in (named, read_sample(tmp_path, vocabulary(), limit=9, task='sst-2')):
        assert result.labels == ('1', '0') and result.features.lengths.tolist() == [4, 3]
    own = tmp_path / 'own.json'  # which leaves the labels to the file
    own.write_text('{"fields": ["sentence"], "label": "label", "train": "SST-2/train.tsv"}')
    assert read_sample(tmp_path, vocabulary(), limit=9, task=str(own)).labels == ('1', '0')
    with pytest.raises(ValueError, match='STS-B is a regression'):
        read('STS-B/train.tsv', 'sentence1\tsentence2\tscore\na\tb\t1\n', task='STS-B')
    with pytest.raises(ValueError, match='no text'):
        read('a.txt', '\n \n')


@pytest.mark.parametrize(
    'texts, length, words',
    [(['a b c d e f'], 5, 'abc'), (['a b c d', 'e f g h'], 8, 'abcef'), (['a b', 'c d e f'], 7, 'abcd')],
)
def test_words_that_are_cut_off_have_no_place(texts, length, words):
    text = sample_of_texts([texts], vocabulary(), length=length)
    assert [word for _, word in text.words[0]] == list(words)
    assert [TOKENS[text.ids[0][position]] for position, _ in text.words[0]] == list(words)
