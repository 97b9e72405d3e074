"""Networks whose widths are even or not."""

from hypothesis import strategies as st

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from helpers.tiny import network

# Relative to the largest value of an output: what two layers leave of float32's 1e-7 when sums are taken in
# another order.
TOLERANCE = 1e-5


UNEVEN = network((3, 2, 5, 7), (1, 4, 1, 0), (2, 1, 3, 16), h=6)


NETWORKS = st.builds(
    Architecture,
    h=st.integers(2, 9),
    e=st.none() | st.integers(2, 6),
    vocab_size=st.just(11),
    max_length=st.just(8),
    layers=st.lists(
        st.builds(
            LayerDims, a=st.integers(1, 3), k=st.integers(1, 4), v=st.integers(1, 4), f=st.integers(0, 6)
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


SEEDS = st.integers(0, 2**31 - 10)
