"""Architectures of hypothesis."""

from hypothesis import strategies as st

from gluon_optbert.architecture.architecture import Architecture, LayerDims

WIDTH = st.integers(1, 9)


LAYERS = st.lists(st.builds(LayerDims, a=WIDTH, k=WIDTH, v=WIDTH, f=st.integers(0, 9)), max_size=4)


ARCHITECTURES = st.builds(
    Architecture,
    h=WIDTH,
    layers=LAYERS.map(tuple),
    vocab_size=WIDTH,
    e=st.none() | WIDTH,
    max_length=WIDTH,
    token_types=WIDTH,
    layer_norm_eps=st.just(1e-12) | st.floats(0, 1, exclude_max=True),
)
