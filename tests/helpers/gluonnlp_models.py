"""GluonNLP's own BERT beside this package's."""

from gluonnlp.model.bert import BERTEncoder, BERTModel

from gluon_optbert.architecture.named import uniform

EVEN = uniform(layers=2, h=8, a=2, vocab_size=32, max_length=16)


def gluonnlp_model(architecture=EVEN, **options):
    """GluonNLP's own BERTModel of the same widths."""
    layer = architecture.layers[0]
    encoder = BERTEncoder(
        units=architecture.h,
        hidden_size=layer.f,
        num_layers=len(architecture.layers),
        num_heads=layer.a,
        max_length=architecture.max_length,
        dropout=0.0,
        **options,
    )
    return BERTModel(
        encoder,
        vocab_size=architecture.vocab_size,
        token_type_vocab_size=2,
        units=architecture.h,
        embed_size=architecture.h,
    )
