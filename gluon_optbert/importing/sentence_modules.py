"""Embeddings of a directory of sentence-transformers: ``modules.json`` and the files it names.

Its modules are a Transformer, a Pooling, any number of Dense layers and perhaps Normalize, in this order. All
else is refused by its name, for the embeddings would be others without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from ..architecture.embedding import ACTIVATIONS, SHORTEST, Embedding
from ..runs.files import checked, parse_json, read_json, read_small
from .tensors import read_safetensors
from .torch_reader import read_torch

MODULES = 'modules.json'
LIBRARY = 'sentence_transformers.'  # how the names of its own classes begin
SETTINGS = 'config_sentence_transformers.json'
QUERY_ENCODER = 'query_encoder_for'  # in it, where this package wrote it: the network of the index
# Of a Transformer; the library has had a name for each kind of network.
_TRANSFORMER_SETTINGS = tuple(
    f'sentence_{kind}_config.json' for kind in ('bert', 'roberta', 'distilbert', 'albert')
)
# Names of a Pooling's modes, as the library writes them now and as it did before.
_MODES = {'mean_sqrt_len_tokens': 'mean_sqrt_len', **{mode: mode for mode in ('mean', 'cls', 'max')}}
_MODES_BEFORE = {
    'pooling_mode_cls_token': 'cls',
    'pooling_mode_max_tokens': 'max',
    'pooling_mode_mean_tokens': 'mean',
    'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
    'pooling_mode_weightedmean_tokens': 'weightedmean',
    'pooling_mode_lasttoken': 'lasttoken',
}
_NO_EFFECT = ('Dropout',)  # modules that only train


def _refuse(path: Path, what: str, wanted: str) -> ValueError:
    return ValueError(f'{path}: {what}, and {wanted}; its embeddings cannot be computed')


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _only(path: Path, settings: dict[str, Any], **read: Any) -> dict[str, Any]:
    """The settings of a file, in which some fields say nothing but what is read."""
    for name, value in read.items():
        if settings.get(name) not in (None, value):
            raise _refuse(path, f'{name} is {settings[name]!r:.80}', f'{value} is read')
    return settings


def _of_embeddings(path: Path, settings: dict[str, Any], **read: Any) -> dict[str, Any]:
    """The settings of a module that takes and gives an embedding, as of `_only`."""
    names = dict.fromkeys(('module_input_name', 'module_output_name'), 'sentence_embedding')
    return _only(path, settings, **names, **read)


class _Module(BaseModel):
    type: str
    path: str


def modules_of(directory: Path) -> list[tuple[str, Path]]:
    """The kind and the directory of every module that has an effect; none without ``modules.json``;
    ValueError if they are damaged, or others than this package computes.
    """
    path = directory / MODULES
    if not path.is_file():
        return []
    modules = []
    for entry in checked(list[_Module], parse_json(read_small(path), source=path), source=path):
        kind, place = entry.type, entry.path
        own, name = kind.startswith(LIBRARY), kind.rsplit('.', 1)[-1]
        if not own or name not in ('Transformer', 'Pooling', 'Dense', 'Normalize', *_NO_EFFECT):
            raise _refuse(
                path, f'has the module {kind!r:.80}', 'Transformer, Pooling, Dense and Normalize are read'
            )
        if Path(place).is_absolute() or '..' in Path(place).parts:
            raise ValueError(f'{path}: {name} lies at {place!r:.80}, outside of the directory')
        if name not in _NO_EFFECT:
            modules.append((name, directory / place))
    names = [name for name, _ in modules]
    dense = names.count('Dense')
    if names not in (wanted := ['Transformer', 'Pooling', *['Dense'] * dense], [*wanted, 'Normalize']):
        raise _refuse(
            path,
            f'has the modules {", ".join(names)}',
            'one Transformer, one Pooling, then Dense layers and then Normalize are read',
        )
    return modules


def embedding_of(
    directory: Path, config: Mapping[str, Any], *, cased: bool
) -> tuple[Embedding, dict[str, np.ndarray]]:
    """The embedding that the modules of a directory make, the usual one without ``modules.json``, and the
    arrays of its dense layers by name; ValueError or FileNotFoundError if a module is damaged, or says what
    this package cannot compute.
    """
    modules = modules_of(directory)
    if not modules:
        return Embedding(), {}
    (_, transformer), (_, pooling), *rest = modules
    values = _settings(directory / SETTINGS)
    values['max_length'] = _max_length(transformer, config, cased=cased)
    values['pooling'] = _pooling(pooling / 'config.json', config, values['prompts'])
    values['normalise'] = any(name == 'Normalize' for name, _ in rest)
    if values['normalise']:
        path = rest[-1][1] / 'config.json'
        _of_embeddings(path, _optional(path))
    width, layers, arrays = config.get('hidden_size'), [], {}
    for i, place in enumerate(place for name, place in rest if name == 'Dense'):
        activation, weight, bias = _dense(place, width)
        layers.append((len(weight), activation))
        arrays.update({f'dense.{i}.weight': weight, f'dense.{i}.bias': bias})
        width = len(weight)
    return Embedding.from_dict({**values, 'dense': layers}, source=str(directory / MODULES)), arrays


def _settings(path: Path) -> dict[str, Any]:
    """The prompts, how embeddings are compared, and the index of a query encoder."""
    settings = _only(path, _optional(path), model_type='SentenceTransformer', truncate_dim=None)
    prompts = settings.get('prompts') or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ValueError(f'{path}: prompts must be texts by their names, found {prompts!r:.200}')
    default = settings.get('default_prompt_name')
    if isinstance(default, str) and prompts.get(default):
        raise _refuse(
            path,
            f'default_prompt_name is {default!r:.80}, so {prompts[default]!r:.80} is put before every text',
            'nothing is put there here; set it to null and put the prompt before your texts',
        )
    return {
        'prompts': {name: text or '' for name, text in prompts.items()},
        'similarity': settings.get('similarity_fn_name') or 'cosine',
        'index': settings.get(QUERY_ENCODER) or '',
    }


def _max_length(transformer: Path, config: Mapping[str, Any], *, cased: bool) -> int | None:
    """The tokens that a text is cut to, None for all positions: by the settings of the Transformer, or else
    by its tokenizer.
    """
    present = [name for name in _TRANSFORMER_SETTINGS if (transformer / name).is_file()]
    path = transformer / (present or _TRANSFORMER_SETTINGS)[0]
    settings = _only(
        path,
        _optional(path),
        transformer_task='feature-extraction',
        module_output_name='token_embeddings',
        **dict.fromkeys(('query_length', 'document_length', 'query_expansion')),
        processing_kwargs={},
    )
    forms = settings.get('modality_config', {})
    text = forms.get('text', {}) if isinstance(forms, dict) else forms
    if text and (not isinstance(text, dict) or text.get('method_output_name') != 'last_hidden_state'):
        raise _refuse(path, f'modality_config has {text!r:.200} for text', 'its last_hidden_state is read')
    if settings.get('do_lower_case') and cased:
        raise _refuse(path, 'do_lower_case is true', 'the vocabulary has capitals, which the tokenizer keeps')
    place = transformer / 'tokenizer_config.json'
    tokenizer = _only(place, _optional(place), truncation_side='right')
    arguments = settings.get('tokenizer_args') or settings.get('processor_kwargs') or {}
    own = arguments.get('model_max_length') if isinstance(arguments, dict) else None
    length = own or settings.get('max_seq_length') or tokenizer.get('model_max_length')
    positions = config.get('max_position_embeddings')
    if length is None or isinstance(length, int | float) and type(positions) is int and length >= positions:
        return None  # libraries write 1e30 for no limit
    if type(length) is not int or length < SHORTEST:
        raise ValueError(
            f'{path}: max_seq_length must be a number of tokens from {SHORTEST}, found {length!r:.80}'
        )
    return length


def _pooling(path: Path, config: Mapping[str, Any], prompts: Mapping[str, str]) -> str:
    """The way in which the states of tokens become one vector."""
    settings = read_json(path)
    width = settings.get('embedding_dimension', settings.get('word_embedding_dimension'))
    if width != config.get('hidden_size'):
        raise ValueError(
            f'{path}: pools {width!r:.80} units, and the network has {config.get("hidden_size")!r}'
        )
    modes = settings.get('pooling_mode')
    if modes is None:
        modes = [mode for name, mode in _MODES_BEFORE.items() if settings.get(name)] or ['mean']
    modes = [modes] if isinstance(modes, str) else modes
    if modes not in [[mode] for mode in _MODES]:
        raise _refuse(path, f'pooling_mode is {modes!r:.200}', f'one of {", ".join(_MODES)} is read')
    if any(prompts.values()) and settings.get('include_prompt') is False:
        raise _refuse(path, 'include_prompt is false', 'all tokens of a text are pooled here')
    return _MODES[modes[0]]


def _dense(place: Path, width: Any) -> tuple[str, np.ndarray, np.ndarray]:
    """The activation, the weight and the bias of a dense layer, whose input has this width."""
    path = place / 'config.json'
    settings = _of_embeddings(path, read_json(path), use_residual=False)
    function = settings.get('activation_function', 'torch.nn.modules.activation.Tanh')
    activation = str(function).rsplit('.', 1)[-1].lower()
    if not str(function).startswith('torch.nn.modules.') or activation not in ACTIVATIONS:
        raise _refuse(
            path, f'activation_function is {function!r:.80}', f'{", ".join(ACTIVATIONS)} of PyTorch are read'
        )
    file = place / 'model.safetensors'
    arrays = read_safetensors(file) if file.is_file() else read_torch(file := place / 'pytorch_model.bin')
    weight = arrays.get('linear.weight', np.zeros(()))
    bias = arrays.get('linear.bias', np.zeros(weight.shape[:1], np.float32))
    if set(arrays) - {'linear.weight', 'linear.bias'} or weight.ndim != 2 or weight.shape[1] != width:
        raise ValueError(
            f'{file}: wanted linear.weight of (units, {width}) and linear.bias, found '
            f'{", ".join(f"{name} {array.shape}" for name, array in arrays.items()):.200}'
        )
    return activation, weight, bias
