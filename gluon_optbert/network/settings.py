"""The settings of a network: what it has beside its widths, and how it computes."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple, Type, Union

from ..architecture.heads import PRETRAINING, Head
from .gates import Gate, Tensor


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """What every part of a network is built with, beside the widths of the architecture.

    Parameters
    ----------
    dropout : float
        Of the embedding, the attention probabilities, the outputs of both blocks, and the pooled output that
        a task's head reads.
    gated : bool or type of Gate
        Whether gates multiply the widths (optBERT, Table 5; `cutting.shrink` says where each stands), and of
        which type; True for `Gate`.
    h_gate : str
        Where alpha_h stands, one of `H_GATES`.
    trainable : bool
        Whether there will be a backward pass; without one, LayerNorm is MXNet's operator.
    precision : str
        Of the encoder's matrix products with weights, one of `TRAINING_PRECISIONS`; all else is float32.
    head : Head
        What stands on the encoder: the heads of pre-training, or that of a task.
    use_pooler, use_classifier, use_decoder : bool
        Which heads of pre-training there are, as in GluonNLP; the head of a task decides by itself.
    output_attention, output_all_encodings : bool
        As in GluonNLP.
    output_stream : bool
        Whether the encoder gives every state of the residual stream: as it enters the first layer, then after
        each layer's attention block and after the whole layer.
    """

    dropout: float = 0.0
    gated: Union[bool, Type[Gate]] = False
    h_gate: str = 'stream'
    trainable: bool = True
    precision: str = 'float32'
    head: Head = PRETRAINING
    use_pooler: bool = True
    use_classifier: bool = True
    use_decoder: bool = True
    output_attention: bool = False
    output_all_encodings: bool = False
    output_stream: bool = False

    @property
    def gate(self) -> Optional[Type[Gate]]:
        """The type of the gates; None without gates."""
        return Gate if self.gated is True else self.gated or None

    def places(self, alpha_h: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The values of alpha_h, shape (h,), for the LayerNorms of the stream, and for what the blocks read
        and write; None where it does not stand.
        """
        return (alpha_h, None) if self.h_gate == 'stream' else (None, alpha_h)
