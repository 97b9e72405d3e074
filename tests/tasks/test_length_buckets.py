"""Buckets of lengths: every row once, few shapes, little padding."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.tasks.features import PASS_COST, bucket_width, length_buckets
from gluon_optbert.text.tokenizer import make_tokenizer, read_vocabulary

DATA = Path(__file__).parents[3] / 'shared' / 'data'
LENGTHS = st.lists(st.integers(2, 128), max_size=80)


def cost(batches):
    """Tokens of all passes, with what a pass costs beside them."""
    return sum(len(rows) * width + PASS_COST for rows, width in batches)


@given(LENGTHS, st.integers(1, 40), st.sampled_from([128, 130, 512]))
def test_every_row_is_in_one_batch_that_it_fits(lengths, batch_size, most):
    lengths = np.array(lengths, np.int64)
    batches = length_buckets(lengths, batch_size, most)
    assert sorted(row for rows, _ in batches for row in rows) == list(range(len(lengths)))
    for rows, width in batches:
        assert len(rows) <= batch_size and (len(rows) == batch_size or len(rows) & (len(rows) - 1) == 0)
        assert lengths[rows].max() <= width <= most and width == bucket_width(int(lengths[rows].max()), most)


@given(st.lists(st.integers(2, 64), min_size=1, max_size=9), st.sampled_from([1, 4, 8]))
def test_no_other_cut_of_the_sorted_rows_costs_less(lengths, batch_size):
    ordered = sorted(lengths)
    sizes = {1, 2, 4, 8, batch_size} & set(range(1, batch_size + 1))

    def least(rows):
        if not rows:
            return 0
        return min(
            least(rows[:-size]) + size * bucket_width(rows[-1], 512) + PASS_COST
            for size in sizes
            if size <= len(rows)
        )

    assert cost(length_buckets(np.array(lengths), batch_size, 512)) == least(ordered)


def test_widths_are_few_and_never_beyond_the_positions():
    assert len({bucket_width(length, 512) for length in range(1, 513)}) == 8 + 4 + 4 + 12
    assert bucket_width(33, 35) == 35 and bucket_width(33, 512) == 40


def test_a_short_list_is_cut_where_padding_costs_more_than_a_pass():
    batches = length_buckets(np.array([6, 50, 7, 6, 5]), 32, 512)
    assert [(sorted(rows.tolist()), width) for rows, width in batches] == [([0, 2, 3, 4], 8), ([1], 56)]
    assert len(length_buckets(np.array([6, 7, 8, 5]), 32, 512)) == 1


def test_real_sentences_need_at_most_two_thirds_of_the_padded_tokens():
    path = DATA / 'glue' / 'SST-2' / 'dev.tsv'
    if not path.is_file():
        pytest.skip(f'{path} is not here')
    tokenize = make_tokenizer(read_vocabulary(DATA / 'vocab.txt'))
    lines = path.read_text(encoding='utf-8').split('\n')[1:513]
    lengths = np.array([len(tokenize(line.split('\t')[0])) + 2 for line in lines])
    parts = np.array_split(np.arange(len(lengths)), len(lengths) // 32)
    unsorted = [(rows, int(lengths[rows].max())) for rows in parts]
    assert cost(unsorted) > 1.5 * cost(length_buckets(lengths, 32, 512))
