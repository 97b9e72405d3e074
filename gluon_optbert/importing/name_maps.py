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
_LAYER = 'encoder.layer.{i}.'
# Dense layers of Transformers, with a weight and a bias, and LayerNorms.
_DENSE = {
    _LAYER + 'attention.self.query': _CELL + 'attention_cell.proj_query',
    _LAYER + 'attention.self.key': _CELL + 'attention_cell.proj_key',
    _LAYER + 'attention.self.value': _CELL + 'attention_cell.proj_value',
    _LAYER + 'attention.output.dense': _CELL + 'proj',
    _LAYER + 'intermediate.dense': _CELL + 'ffn.ffn_1',
    _LAYER + 'output.dense': _CELL + 'ffn.ffn_2',
    'pooler.dense': 'pooler',
    'cls.predictions.transform.dense': 'decoder.0',
}
_NORMS = {
    'embeddings.LayerNorm': 'encoder.layer_norm',
    _LAYER + 'attention.output.LayerNorm': _CELL + 'layer_norm',
    _LAYER + 'output.LayerNorm': _CELL + 'ffn.layer_norm',
    'cls.predictions.transform.LayerNorm': 'decoder.2',
}
_EMBEDDINGS = {
    'embeddings.word_embeddings': 'word_embed.0.weight',
    'embeddings.token_type_embeddings': 'token_type_embed.0.weight',
    'embeddings.position_embeddings': 'encoder.position_weight',
}
_DENSE_OF_TRANSFORMERS = {
    'embeddings.projection': 'encoder.embed_proj',  # of a factorised embedding; ours
    'cls.seq_relationship': 'classifier',
    'classifier': 'task',
    'qa_outputs': 'task',
    'dense.{i}': 'dense.{i}',  # of an embedding; ours
}


def _parts(modules: dict[str, str], there: tuple[str, str], here: tuple[str, str]) -> NameMap:
    """The names of both parameters of some modules: how each ends there, and here."""
    return {
        module + end: own + our_end for module, own in modules.items() for end, our_end in zip(there, here)
    }


_WEIGHT_BIAS, _GAMMA_BETA = ('.weight', '.bias'), ('.gamma', '.beta')
HUGGING_FACE: NameMap = {
    **{there + '.weight': here for there, here in _EMBEDDINGS.items()},
    'embeddings.position_ids': None,  # 0, 1, 2 …
    'embeddings.token_type_ids': None,  # zeros
    'layer_transformation.weight': None,  # of CoFi's distillation
    'layer_transformation.bias': None,
    **_parts(_DENSE | _DENSE_OF_TRANSFORMERS, _WEIGHT_BIAS, _WEIGHT_BIAS),
    **_parts(_NORMS, _WEIGHT_BIAS, _GAMMA_BETA),
    'cls.predictions.decoder.weight': 'word_embed.0.weight',  # tied
    'cls.predictions.decoder.bias': 'decoder.3.bias',
    'cls.predictions.bias': 'decoder.3.bias',
    # Checkpoints of 2018 and 2019 name the two vectors of a LayerNorm as TensorFlow does.
    **_parts(_NORMS, _GAMMA_BETA, _GAMMA_BETA),
}


def _tensorflow(name: str) -> str:
    """The name of a module of Transformers in TensorFlow."""
    return name.replace('layer.{i}', 'layer_{i}').replace('.', '/')


_TRANSPOSED = '/kernel'  # how the name of a TensorFlow matrix ends that has its inputs along the rows
# How the names end of what BERT's TensorFlow optimizer keeps, which is dropped on purpose.
OPTIMIZER_STATE = ('/adam_m', '/adam_v')
TENSORFLOW: NameMap = {
    **{_tensorflow(there): here for there, here in _EMBEDDINGS.items()},
    **_parts(
        {_tensorflow(there): here for there, here in _DENSE.items()}, (_TRANSPOSED, '/bias'), _WEIGHT_BIAS
    ),
    **_parts({_tensorflow(there): here for there, here in _NORMS.items()}, ('/gamma', '/beta'), _GAMMA_BETA),
    'cls/predictions/output_bias': 'decoder.3.bias',
    'cls/seq_relationship/output_weights': 'classifier.weight',
    'cls/seq_relationship/output_bias': 'classifier.bias',
    'output_weights': 'task.weight',
    'output_bias': 'task.bias',
    'cls/squad/output_weights': 'task.weight',
    'cls/squad/output_bias': 'task.bias',
    'global_step': None,
}

# GluonNLP's names are the names here, 0.8 to 0.10 alike; its classes for tasks wrap the network.
GLUONNLP: NameMap = {
    **{here: here for here in TENSORFLOW.values() if here and not here.startswith('task')},
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
_NUMBERED = re.compile(r'(encoder[./](?:layer[._]|transformer_cells\.)|dense\.)(0|[1-9][0-9]{0,3})([./].+)')


def look_up(form: str, name: str) -> tuple[bool, str | None]:
    """Whether a name is known in checkpoints of a form (a key of `MAPS`), and what it is called here, None if
    it is dropped.
    """
    if form == 'TensorFlow' and name.endswith(OPTIMIZER_STATE):
        return True, None
    names, bare = MAPS[form], name.removeprefix(PREFIX[form])
    numbered = _NUMBERED.fullmatch(bare)
    pattern = numbered.expand(r'\1{i}\3') if numbered else bare
    if pattern not in names or '{i}' in bare:
        return False, None
    here = names[pattern]
    return True, here.replace('{i}', numbered.group(2)) if here and numbered else here


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
