"""The intermediate block: two matrix products with GELU between them."""

from __future__ import annotations

from mxnet.gluon import HybridBlock, nn

from .gates import StreamLayerNorm, gated_by
from .precision import Product, lowered, raised
from .settings import NetworkSettings


class OptFeedForward(HybridBlock):
    """The intermediate block: D, GELU, G, skip connection, LayerNorm. Names are those of GluonNLP's
    PositionwiseFFN.

    Parameters
    ----------
    f : int
        Filters.
    h : int
        Width of the residual stream.
    eps : float
        The epsilon of its LayerNorm.
    settings : NetworkSettings

    Inputs:
        - **stream** : shape (length, batch, h)
        - **alpha_f** : shape (f,), or None
        - **alpha_h** : shape (h,), or None
        - **column** : ones, shape (length, batch, 1), where gates are trained

    Outputs:
        - **stream** : shape (length, batch, h)
    """

    def __init__(self, f: int, h: int, eps: float, settings: NetworkSettings, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._f, self._h, self._settings = f, h, settings
        self._dropout = settings.dropout
        self._precision = settings.precision
        with self.name_scope():
            self.ffn_1 = Product(f, h, precision=settings.precision, prefix='ffn_1_')
            self.ffn_2 = Product(h, f, precision=settings.precision, prefix='ffn_2_')
            self.dropout_layer = nn.Dropout(settings.dropout)
            self.layer_norm = StreamLayerNorm(h, eps, trainable=settings.trainable)

    def hybrid_forward(self, F, stream, alpha_f=None, alpha_h=None, column=None):
        precision = self._precision
        in_stream, in_block = self._settings.places(alpha_h)
        read = stream if in_block is None else gated_by(F, stream, in_block, column, self._h)
        inner = self.ffn_1(lowered(F, read, precision))
        if alpha_f is None:
            inner = F.LeakyReLU(inner, act_type='gelu')  # in the precision of both products
        else:
            inner = gated_by(F, raised(F, inner, precision), alpha_f, column, self._f)
            inner = gated_by(F, F.LeakyReLU(inner, act_type='gelu'), alpha_f, column, self._f)
            inner = lowered(F, inner, precision)
        outputs = raised(F, self.ffn_2(inner), precision)
        outputs = outputs if in_block is None else gated_by(F, outputs, in_block, column, self._h)
        outputs = self.dropout_layer(outputs) if self._dropout else outputs
        return self.layer_norm(outputs + stream, in_stream)
