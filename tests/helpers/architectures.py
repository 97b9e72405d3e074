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
)
