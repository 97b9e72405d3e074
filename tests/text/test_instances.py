"""Instances: pairs, lengths, masks."""

from __future__ import annotations

import dataclasses

import numpy as np
from helpers.examples import examples
from hypothesis import given, strategies as st

from gluon_optbert.text.instances import InstanceSpec, Tokens, make_instances, segment_pairs, single_segments

CLS, SEP, MASK, FIRST = 1, 2, 3, 10  # ids below FIRST are in no text
SPEC = InstanceSpec(
    max_seq_length=32,
    max_predictions=5,
    masked_share=0.15,
    short_share=0.1,
    whole_words=False,
    next_sentence=True,
    cls_id=CLS,
    sep_id=SEP,
    mask_id=MASK,
    continues=np.zeros(5000, bool),
)


def spec_of(length=32, predictions=5, **changes):
    return dataclasses.replace(SPEC, max_seq_length=length, max_predictions=predictions, **changes)


def instances_of(documents, spec, seed=0):
    return make_instances(Tokens.of(documents), spec, np.random.RandomState(seed))


def unmasked(record):
    """The tokens of a record as they were, and its two segments."""
    ids = record['input_ids'].astype(np.int64)
    masked = record['masked_lm_weights'] > 0
    ids[record['masked_lm_positions'][masked]] = record['masked_lm_ids'][masked]
    ids = ids[: record['valid_lengths']]
    middle = int(np.argmax(ids == SEP))
    return ids, ids[1:middle], ids[middle + 1 : -1]


def numbered_documents(generator, count, sentences=12):
    """Documents in which every token says which document and which place it is from."""
    documents, token = [], FIRST
    for _ in range(count):
        document = []
        for _ in range(generator.randint(1, sentences + 1)):
            length = generator.randint(1, 14)
            document.append(list(range(token, token + length)))
            token += length
        documents.append(document)
    return documents, token


documents_strategy = st.lists(
    st.lists(st.lists(st.integers(FIRST, 4999), max_size=40), max_size=8), min_size=1, max_size=5
)


@examples(50)
@given(documents_strategy, st.integers(8, 48), st.integers(1, 8), st.booleans(), st.integers(0, 2**32 - 1))
def test_every_instance_is_well_formed(documents, length, predictions, whole_words, seed):
    spec = spec_of(length, predictions, whole_words=whole_words, continues=np.arange(5000) % 3 == 0)
    records = instances_of(documents, spec, seed)
    for record in records:
        valid, weights = int(record['valid_lengths']), record['masked_lm_weights']
        count = int(weights.sum())
        ids, first, second = unmasked(record)
        assert 5 <= valid <= length and len(first) and len(second)
        assert ids[0] == CLS and (ids == SEP).sum() == 2 and ids[-1] == SEP
        assert not record['input_ids'][valid:].any() and not record['segment_ids'][valid:].any()
        assert record['segment_ids'][:valid].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        places = record['masked_lm_positions'][:count].astype(int)
        assert weights.tolist() == [1] * count + [0] * (predictions - count)
        assert (np.diff(places) > 0).all() and not set(ids[places]) & {CLS, SEP}
        wanted = min(max(round(0.15 * valid), 1), predictions)
        assert count <= wanted if whole_words else count == min(wanted, valid - 3)
        assert not record['masked_lm_positions'][count:].any() and not record['masked_lm_ids'][count:].any()
        changed = np.flatnonzero(record['input_ids'][:valid] != ids)
        assert set(changed) <= set(places)


def test_second_segment_of_a_random_pair_comes_from_another_document():
    documents, size = numbered_documents(np.random.RandomState(0), 60)
    spec = spec_of(continues=np.zeros(size, bool))
    owner = np.repeat(np.arange(60), [sum(map(len, document)) for document in documents])
    labels = []
    for record in instances_of(documents, spec):
        _, first, second = unmasked(record)
        owners = set(owner[first - FIRST]), set(owner[second - FIRST])
        assert len(owners[0]) == len(owners[1]) == 1
        assert (owners[0] != owners[1]) == record['next_sentence_labels']
        if not record['next_sentence_labels']:
            assert first[-1] < second[0]
        labels.append(record['next_sentence_labels'])
    assert 0.4 < np.mean(labels) < 0.75  # a half, and those whose first segment is all there is


def test_consecutive_pairs_cover_every_document_once():
    documents, _ = numbered_documents(np.random.RandomState(1), 40)
    tokens = Tokens.of(documents)
    covered = []
    for a0, a1, b0, b1, is_random in segment_pairs(tokens, room=10**6, short_share=0.0, seed=3):
        covered += tokens.ids[a0:a1].tolist() + ([] if is_random else tokens.ids[b0:b1].tolist())
    assert covered == tokens.ids.tolist()


@examples(25)
@given(documents_strategy, st.integers(8, 48), st.integers(0, 2**32 - 1))
def test_without_pairs_every_token_comes_once_in_whole_sentences_where_they_fit(documents, length, seed):
    tokens, room = Tokens.of(documents), length - 2
    segments = list(single_segments(tokens, room=room, short_share=0.0, seed=seed))
    assert [one for a0, a1, *_ in segments for one in tokens.ids[a0:a1]] == tokens.ids.tolist()
    ends = set(tokens.sentences.tolist())
    assert all(a1 - a0 == room if a1 not in ends else a1 - a0 <= room for a0, a1, *_ in segments)
    records = instances_of(documents, spec_of(length, next_sentence=False, short_share=0.0), seed)
    assert not records['segment_ids'].any() and not records['next_sentence_labels'].any()
    assert records['masked_lm_weights'].sum(axis=1).all()
    for record, (a0, a1, *_) in zip(records, segments, strict=True):
        ids, first, _ = unmasked(record)
        assert ids[0] == CLS and ids[-1] == SEP and first.tolist() == tokens.ids[a0:a1].tolist()
        assert (
            len(ids) == a1 - a0 + 2 == record['valid_lengths'] and not record['input_ids'][len(ids) :].any()
        )


def test_a_single_document_has_no_random_pairs_and_loses_nothing_but_a_long_sentence():
    sentences = [[token] * 6 for token in range(FIRST, FIRST + 100)]
    sentences[30] = [FIRST + 30] * 60  # fills a pair
    records = instances_of([sentences], spec_of(short_share=0.0))
    seen = {token for record in records for token in unmasked(record)[0].tolist()} - {CLS, SEP}
    assert set(range(FIRST, FIRST + 99)) - seen <= {FIRST + 30}
    assert not records['next_sentence_labels'].any()


def test_masking_rates():
    generator = np.random.RandomState(4)
    spec = spec_of(128, 20, continues=np.zeros(30000, bool))
    documents = [[generator.randint(FIRST, 30000, size=25).tolist() for _ in range(60)] for _ in range(40)]
    records = instances_of(documents, spec)
    masked = records['masked_lm_weights'] > 0
    now = np.take_along_axis(records['input_ids'], records['masked_lm_positions'].astype(np.int64), axis=1)[
        masked
    ]
    was = records['masked_lm_ids'][masked]
    count = len(was)
    sigma = 0.5 / count**0.5  # of a share, at most; five of them pass by chance once in two million runs
    assert count > 7000
    assert abs(np.mean(now == MASK) - 0.8) < 5 * sigma
    assert abs(np.mean(now == was) - 0.1) < 5 * sigma
    # rounding to whole tokens, and at most 20
    assert abs(count / records['valid_lengths'].sum() - 0.15) < 0.005
    places = np.concatenate([np.arange(1, n - 1) / n for n in records['valid_lengths']])
    chosen = (records['masked_lm_positions'] / records['valid_lengths'][:, np.newaxis])[masked]
    assert abs(chosen.mean() - places.mean()) < 0.02  # no preferred place


def test_short_sequences_have_their_share():
    documents = [[[FIRST] * 4 for _ in range(3000)] for _ in range(3)]
    lengths = {
        share: instances_of(documents, spec_of(64, 10, short_share=share))['valid_lengths']
        for share in (0.0, 0.1)
    }
    assert np.mean(lengths[0.0] < 60) < 0.02
    assert 0.05 < np.mean(lengths[0.1] < 60) < 0.2  # a tenth; short ones are more of the same text


def test_whole_words_are_masked_whole():
    generator = np.random.RandomState(5)
    continues = np.arange(5000) >= 3000
    documents = [[generator.randint(FIRST, 5000, size=12).tolist() for _ in range(50)] for _ in range(8)]
    for record in instances_of(documents, spec_of(64, 10, whole_words=True, continues=continues)):
        ids, first, _ = unmasked(record)
        starts = ~continues[ids]
        starts[[0, 1, len(first) + 1, len(first) + 2, len(ids) - 1]] = (
            True  # [CLS], [SEP] and what follows them
        )
        word = np.cumsum(starts)
        hidden = np.zeros(len(ids), bool)
        hidden[record['masked_lm_positions'][record['masked_lm_weights'] > 0]] = True
        assert hidden.any()
        for number in set(word[hidden]):
            assert hidden[word == number].all()

    one_piece = instances_of(documents, spec_of(whole_words=True))
    wanted = np.clip(np.rint(one_piece['valid_lengths'] * 0.15), 1, 5)
    assert one_piece['masked_lm_weights'].sum(axis=1).tolist() == wanted.tolist()


def test_a_segment_that_begins_inside_a_word_is_masked_from_there_on():
    """[SEP] and the pieces behind it are no word. Of a short instance one token is masked at least."""
    continues = np.arange(5000) > FIRST
    documents = [[[FIRST], [FIRST + 1] * 2, [FIRST], [FIRST + 1] * 2]]
    records = instances_of(documents * 200, spec_of(8, whole_words=True, continues=continues))
    hidden = [record['masked_lm_ids'][0] for record in records if record['masked_lm_weights'][0]]
    assert FIRST + 1 in hidden
    short = instances_of([[[FIRST], [FIRST + 1]]] * 4, spec_of(masked_share=0.01))
    assert len(short) and (short['masked_lm_weights'].sum(axis=1) == 1).all()


def test_sentences_are_gathered_up_to_the_wanted_length_and_no_further():
    tokens = Tokens.of([[[FIRST] * 10] * 6])
    pairs = list(segment_pairs(tokens, room=20, short_share=0.0, seed=0))
    assert pairs == [(0, 10, 10, 20, False), (20, 30, 30, 40, False), (40, 50, 50, 60, False)]
    for too_little in ([], [[]], [[[]]], [[[FIRST]]]):
        assert len(instances_of(too_little, SPEC)) == 0
