"""The names here of the parameters of public BERT checkpoints: plain data.

A key is a name in the checkpoint, ``{i}`` the number of a layer in it; its value is the name here, and None
says that the tensor is dropped on purpose. Several names may stand for one tensor; they have to hold the same
numbers, and the first is the one that a tensor gets on its way out."""

from __future__ import annotations

import re

NameMap = dict[str, str | None]
# of the network's names, where there is a head
PREFIX = {'Hugging Face': 'bert.', 'TensorFlow': 'bert/', 'GluonNLP': 'bert.'}

_CELL = 'encoder.transformer_cells.{i}.'

HUGGING_FACE: NameMap = {
    'embeddings.word_embeddings.weight': 'word_embed.0.weight',
    'embeddings.token_type_embeddings.weight': 'token_type_embed.0.weight',
    'embeddings.position_embeddings.weight': 'encoder.position_weight',
    'embeddings.position_ids': None,  # 0, 1, 2 …
    'embeddings.token_type_ids': None,  # zeros
    'embeddings.LayerNorm.weight': 'encoder.layer_norm.gamma',
    'embeddings.LayerNorm.bias': 'encoder.layer_norm.beta',
    'embeddings.projection.weight': 'encoder.embed_proj.weight',  # of a factorised embedding; ours
    'embeddings.projection.bias': 'encoder.embed_proj.bias',
    'encoder.layer.{i}.attention.self.query.weight': _CELL + 'attention_cell.proj_query.weight',
    'encoder.layer.{i}.attention.self.query.bias': _CELL + 'attention_cell.proj_query.bias',
    'encoder.layer.{i}.attention.self.key.weight': _CELL + 'attention_cell.proj_key.weight',
    'encoder.layer.{i}.attention.self.key.bias': _CELL + 'attention_cell.proj_key.bias',
    'encoder.layer.{i}.attention.self.value.weight': _CELL + 'attention_cell.proj_value.weight',
    'encoder.layer.{i}.attention.self.value.bias': _CELL + 'attention_cell.proj_value.bias',
    'encoder.layer.{i}.attention.output.dense.weight': _CELL + 'proj.weight',
    'encoder.layer.{i}.attention.output.dense.bias': _CELL + 'proj.bias',
    'encoder.layer.{i}.attention.output.LayerNorm.weight': _CELL + 'layer_norm.gamma',
    'encoder.layer.{i}.attention.output.LayerNorm.bias': _CELL + 'layer_norm.beta',
    'encoder.layer.{i}.intermediate.dense.weight': _CELL + 'ffn.ffn_1.weight',
    'encoder.layer.{i}.intermediate.dense.bias': _CELL + 'ffn.ffn_1.bias',
    'encoder.layer.{i}.output.dense.weight': _CELL + 'ffn.ffn_2.weight',
    'encoder.layer.{i}.output.dense.bias': _CELL + 'ffn.ffn_2.bias',
    'encoder.layer.{i}.output.LayerNorm.weight': _CELL + 'ffn.layer_norm.gamma',
    'encoder.layer.{i}.output.LayerNorm.bias': _CELL + 'ffn.layer_norm.beta',
    'pooler.dense.weight': 'pooler.weight',
    'pooler.dense.bias': 'pooler.bias',
    'cls.predictions.transform.dense.weight': 'decoder.0.weight',
    'cls.predictions.transform.dense.bias': 'decoder.0.bias',
    'cls.predictions.transform.LayerNorm.weight': 'decoder.2.gamma',
    'cls.predictions.transform.LayerNorm.bias': 'decoder.2.beta',
    'cls.predictions.decoder.weight': 'word_embed.0.weight',  # tied
    'cls.predictions.decoder.bias': 'decoder.3.bias',
    'cls.predictions.bias': 'decoder.3.bias',
    'cls.seq_relationship.weight': 'classifier.weight',
    'cls.seq_relationship.bias': 'classifier.bias',
    'classifier.weight': 'task.weight',
    'classifier.bias': 'task.bias',
    'qa_outputs.weight': 'task.weight',
    'qa_outputs.bias': 'task.bias',
}
# Checkpoints of 2018 and 2019 name the two vectors of a LayerNorm as TensorFlow does.
HUGGING_FACE.update(
    {
        name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'): here
        for name, here in HUGGING_FACE.items()
    }
)

TENSORFLOW: NameMap = {
    'embeddings/word_embeddings': 'word_embed.0.weight',
    'embeddings/token_type_embeddings': 'token_type_embed.0.weight',
    'embeddings/position_embeddings': 'encoder.position_weight',
    'embeddings/LayerNorm/gamma': 'encoder.layer_norm.gamma',
    'embeddings/LayerNorm/beta': 'encoder.layer_norm.beta',
    'encoder/layer_{i}/attention/self/query/kernel': _CELL + 'attention_cell.proj_query.weight',
    'encoder/layer_{i}/attention/self/query/bias': _CELL + 'attention_cell.proj_query.bias',
    'encoder/layer_{i}/attention/self/key/kernel': _CELL + 'attention_cell.proj_key.weight',
    'encoder/layer_{i}/attention/self/key/bias': _CELL + 'attention_cell.proj_key.bias',
    'encoder/layer_{i}/attention/self/value/kernel': _CELL + 'attention_cell.proj_value.weight',
    'encoder/layer_{i}/attention/self/value/bias': _CELL + 'attention_cell.proj_value.bias',
    'encoder/layer_{i}/attention/output/dense/kernel': _CELL + 'proj.weight',
    'encoder/layer_{i}/attention/output/dense/bias': _CELL + 'proj.bias',
    'encoder/layer_{i}/attention/output/LayerNorm/gamma': _CELL + 'layer_norm.gamma',
    'encoder/layer_{i}/attention/output/LayerNorm/beta': _CELL + 'layer_norm.beta',
    'encoder/layer_{i}/intermediate/dense/kernel': _CELL + 'ffn.ffn_1.weight',
    'encoder/layer_{i}/intermediate/dense/bias': _CELL + 'ffn.ffn_1.bias',
    'encoder/layer_{i}/output/dense/kernel': _CELL + 'ffn.ffn_2.weight',
    'encoder/layer_{i}/output/dense/bias': _CELL + 'ffn.ffn_2.bias',
    'encoder/layer_{i}/output/LayerNorm/gamma': _CELL + 'ffn.layer_norm.gamma',
    'encoder/layer_{i}/output/LayerNorm/beta': _CELL + 'ffn.layer_norm.beta',
    'pooler/dense/kernel': 'pooler.weight',
    'pooler/dense/bias': 'pooler.bias',
    'cls/predictions/transform/dense/kernel': 'decoder.0.weight',
    'cls/predictions/transform/dense/bias': 'decoder.0.bias',
    'cls/predictions/transform/LayerNorm/gamma': 'decoder.2.gamma',
    'cls/predictions/transform/LayerNorm/beta': 'decoder.2.beta',
    'cls/predictions/output_bias': 'decoder.3.bias',
    'cls/seq_relationship/output_weights': 'classifier.weight',
    'cls/seq_relationship/output_bias': 'classifier.bias',
    'output_weights': 'task.weight',
    'output_bias': 'task.bias',
    'cls/squad/output_weights': 'task.weight',
    'cls/squad/output_bias': 'task.bias',
    'global_step': None,
}
_TRANSPOSED = '/kernel'  # how the name of a TensorFlow matrix ends that has its inputs along the rows
# How the names end of what BERT's TensorFlow optimizer keeps, which is dropped on purpose.
OPTIMIZER_STATE = ('/adam_m', '/adam_v')

_GLUONNLP_LAYER = (
    'attention_cell.proj_query',
    'attention_cell.proj_key',
    'attention_cell.proj_value',
    'proj',
    'ffn.ffn_1',
    'ffn.ffn_2',
)
# GluonNLP's names are the names here, 0.8 to 0.10 alike; its classes for tasks wrap the network.
GLUONNLP: NameMap = {
    **{
        name: name
        for name in (
            'word_embed.0.weight',
            'token_type_embed.0.weight',
            'encoder.position_weight',
            'encoder.layer_norm.gamma',
            'encoder.layer_norm.beta',
            'pooler.weight',
            'pooler.bias',
            'classifier.weight',
            'classifier.bias',
            'decoder.0.weight',
            'decoder.0.bias',
            'decoder.2.gamma',
            'decoder.2.beta',
            'decoder.3.bias',
        )
    },
    **{_CELL + name + part: _CELL + name + part for name in _GLUONNLP_LAYER for part in ('.weight', '.bias')},
    **{
        _CELL + name + part: _CELL + name + part
        for name in ('layer_norm', 'ffn.layer_norm')
        for part in ('.gamma', '.beta')
    },
    'decoder.3.weight': 'word_embed.0.weight',  # tied
    'classifier.0.weight': 'task.weight',
    'classifier.0.bias': 'task.bias',
    'classifier.1.weight': 'task.weight',  # behind a dropout
    'classifier.1.bias': 'task.bias',
    'span_classifier.weight': 'task.weight',
    'span_classifier.bias': 'task.bias',
}

MAPS = {'Hugging Face': HUGGING_FACE, 'TensorFlow': TENSORFLOW, 'GluonNLP': GLUONNLP}
QUESTION_ANSWERING: frozenset[str] = frozenset(
    {'qa_outputs.weight', 'cls/squad/output_weights', 'span_classifier.weight'}
)
_NUMBERED = re.compile(r'(encoder[./](?:layer[._]|transformer_cells\.))(0|[1-9][0-9]{0,3})([./].+)')


def look_up(form: str, name: str) -> tuple[bool, str | None]:
    """Whether a name is known in checkpoints of a form (a key of `MAPS`), and what it is called here, None if
    it is dropped.
    """
    if form == 'TensorFlow' and name.endswith(OPTIMIZER_STATE):
        return True, None
    names = MAPS[form]
    bare = name[len(PREFIX[form]) :] if name.startswith(PREFIX[form]) else name
    if bare in names and '{i}' not in bare:
        return True, names[bare]
    numbered = _NUMBERED.fullmatch(bare)
    pattern = f'{numbered.group(1)}{{i}}{numbered.group(3)}' if numbered else ''
    here = names.get(pattern)
    return pattern in names, here.replace('{i}', numbered.group(2)) if here and numbered else None


def is_transposed(form: str, name: str) -> bool:
    """Whether a matrix of a checkpoint of a form (a key of `MAPS`) has its inputs along the rows."""
    return form == 'TensorFlow' and name.endswith(_TRANSPOSED)


def names_in(form: str, layers: int) -> dict[str, str]:
    """The names that the parameters here have in checkpoints of a form (a key of `MAPS`), for so many layers.

    Names are those of the bare network, without the beginning that they have beside a head.
    """
    names: dict[str, str] = {}
    for there, here in MAPS[form].items():
        if here is not None:
            for i in range(layers) if '{i}' in here else (0,):
                names.setdefault(here.replace('{i}', str(i)), there.replace('{i}', str(i)))
    return names
