"""Directories that other libraries load: Transformers, Optimum and sentence-transformers.

Transformers and sentence-transformers get the arrays of the network, bit for bit, and for uneven widths our
code beside them; Optimum and sentence-transformers get ONNX files, and Optimum needs no code of ours."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from .. import __version__
from ..architecture.embedding import Embedding
from ..architecture.heads import PRETRAINING
from ..architecture.parameters import NEXT_SENTENCE
from ..cutting.shrink import without_gates
from ..importing.name_maps import PREFIX, names_in
from ..importing.sentence_modules import QUERY_ENCODER, SETTINGS
from ..network.embedding import dense_arrays
from ..network.saved_model import SavedModel
from ..runs.files import locked, new_directory
from ..tasks.task import known_head
from .description import MASKED_LM, ONNX, QUANTISED
from .export import (
    ONNX_FILES,
    NotEqual,
    check_calibration,
    check_choice,
    deployment_of,
    kind_of,
    untrained_parts,
    write_onnx_files,
)
from .hub import (
    AUTO,
    CODE,
    bert_config,
    hub_tokenizer,
    is_plain,
    tokenizer_config,
    transformers_config,
    write_hub_files,
    write_hub_json,
)
from .instances import Instance
from .lineage import Lineage, lineage_of
from .model_card import check_license, write_card
from .mxnet_network import inference_table
from .onnx_int8 import measured_ranges
from .predictor import Encoder

WEIGHTS = 'model.safetensors'
FOLDER = 'onnx'  # of the ONNX files of sentence-transformers
ACTIVATIONS = {
    'identity': 'torch.nn.modules.linear.Identity',
    **{name.lower(): f'torch.nn.modules.activation.{name}' for name in ('Tanh', 'ReLU', 'Sigmoid')},
}
_FORM = 'Hugging Face'
_SCORES = {'decoder.3.bias': 'cls.predictions.bias'}  # the one of its names that Transformers saves
_SPANS = {'task.weight': 'qa_outputs.weight', 'task.bias': 'qa_outputs.bias'}


# Transformers


def _kind_there(saved: SavedModel, head: str | None) -> str:
    """The kind of an export for Transformers: `kind_of`, or `MASKED_LM` where only that head is trained."""
    kind, untrained = kind_of(saved, head), saved.progress.untrained or ()
    return MASKED_LM if kind == 'pretraining' and untrained and 'mlm' not in untrained else kind


def _arrays_there(saved: SavedModel, kind: str) -> dict[str, np.ndarray]:
    """The arrays of an export of a kind, in float32 by Transformers' names."""
    names = {**names_in(_FORM, len(saved.architecture.layers)), **_SCORES}
    if saved.head.kind == 'question_answering':
        names.update(_SPANS)
    arrays = {}
    for name, spec in inference_table(saved.architecture, kind, saved.head, 'plain').items():
        if kind == MASKED_LM and spec.part in NEXT_SENTENCE:
            continue
        # the heads stand on the model that Transformers calls `bert`, which an encoder is
        inside = kind == 'encoder' or spec.part in ('mlm', 'nsp', 'task')
        there = names[name] if inside else PREFIX[_FORM] + names[name]
        arrays[there] = np.ascontiguousarray(saved.parameters[name], np.float32)
    return arrays


def _configuration(saved: SavedModel, kind: str) -> dict[str, Any]:
    """The ``config.json`` of an export of a kind."""
    known = known_head(saved.head) if saved.head.outputs else PRETRAINING
    return transformers_config(saved.architecture, known, kind, untrained=untrained_parts(saved, kind))


def _write_network(staged: Path, saved: SavedModel, kind: str, output: Path) -> None:
    """Write the configuration, the tokenizer, the arrays and, for uneven widths, our code; NotEqual if the
    arrays that are read again are others.
    """
    write_hub_files(staged, _configuration(saved, kind), saved)
    if not is_plain(saved.architecture):
        shutil.copyfile(CODE, staged / CODE.name)
    arrays = _arrays_there(saved, kind)
    save_file(arrays, str(staged / WEIGHTS), metadata={'format': 'pt'})
    written = load_file(str(staged / WEIGHTS))
    if written.keys() != arrays.keys() or not all(
        np.array_equal(written[name], array, equal_nan=True) for name, array in arrays.items()
    ):
        raise NotEqual(f'{output}: {WEIGHTS} has other arrays than the network; nothing was written')


def export_transformers(
    saved: SavedModel,
    output: Path,
    *,
    head: str | None = None,
    lineage: Lineage | None = None,
    license: str = '',
) -> dict[str, Any]:
    """Write a directory that Transformers loads.

    Parameters and errors are as of `export.export`. It gives an empty dict, for the arrays are the network's
    own, bit for bit.
    """
    check_license(license)
    saved = without_gates(saved)
    deployment, lineage = deployment_of(saved, _kind_there(saved, head)), lineage or lineage_of(saved)
    with locked(output), new_directory(output, needed=saved.nbytes) as staged:
        _write_network(staged, saved, deployment.kind, output)
        if saved.head.embedding != Embedding():
            _describe_embeddings(staged, saved)
        write_card(staged, deployment, format='transformers', lineage=lineage, license=license)
    return {}


def as_transformers(saved: SavedModel, head: str | None = None) -> tuple[Any, Any]:
    """A network and its tokenizer as objects of Transformers, with copies of its numbers.

    The network is what Transformers loads from a directory that `export_transformers` writes; its parameters
    and errors are as there.
    """
    import torch
    import transformers

    saved = without_gates(saved)
    kind = _kind_there(saved, head)
    config = _configuration(saved, kind)
    config['pad_token_id'] = saved.vocabulary[saved.vocabulary.padding_token]
    (name,) = config['architectures']
    if is_plain(saved.architecture):
        network = getattr(transformers, name)(transformers.BertConfig(**config))
    else:
        from .hub_code import modeling_optbert as code

        network = getattr(code, name)(code.OptBertConfig(**config))
        code.OptBertConfig.register_for_auto_class()
        type(network).register_for_auto_class(next(auto for auto in AUTO if name.endswith(AUTO[auto])))
    arrays = {name: torch.tensor(array) for name, array in _arrays_there(saved, kind).items()}
    missing, unknown = network.load_state_dict(arrays, strict=False)
    left = {name for name in missing if not name.startswith('cls.predictions.decoder.')}  # which are tied
    if left or unknown:
        raise NotEqual(f'{name}: Transformers has other tensors: {", ".join([*sorted(left), *unknown])}')
    told = tokenizer_config(saved.vocabulary, saved.architecture.max_length)
    told.pop('tokenizer_class')
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=hub_tokenizer(saved.vocabulary), **told)
    return network.eval(), tokenizer


# Optimum and sentence-transformers


def export_onnx(
    saved: SavedModel,
    output: Path,
    *,
    head: str | None = None,
    precision: str = 'float32',
    calibration: Sequence[Instance] = (),
    method: str = 'naive',
    sentences: bool = False,
    lineage: Lineage | None = None,
    license: str = '',
) -> dict[str, Any]:
    """Write a directory for Optimum, or for sentence-transformers.

    Other parameters, the result and errors are as of `export.export`; the head ``pretraining`` gives the
    scores of every token over the vocabulary.

    Parameters
    ----------
    precision : str
        ``float32``; or ``int8``, for a static int8 file beside the one in float32.
    sentences : bool
        Whether the directory is one of sentence-transformers, whose embeddings are those of
        `Predictor.encode`, by its default call and by its ONNX backend.
    """
    check_choice('precision', precision, ONNX_FILES)
    check_calibration(precision, calibration, method)
    check_license(license)
    saved = without_gates(saved)
    kind = kind_of(saved, head)
    if sentences and kind != 'encoder':
        raise ValueError(
            f'sentence-transformers takes embeddings from an encoder, and this is a model of {kind}; export '
            'the model that it was fine-tuned from, with --head encoder'
        )
    computes = MASKED_LM if kind == 'pretraining' else kind
    deployment, lineage = deployment_of(saved, computes), lineage or lineage_of(saved)
    config = bert_config(saved.architecture, deployment.head, computes)
    ranges, files = None, {ONNX: 'float32'}
    with locked(output), new_directory(output, needed=saved.nbytes) as staged:
        if precision == 'int8':
            features = Encoder(deployment).features(calibration)
            ranges = measured_ranges(saved, computes, features, method)
            files[QUANTISED] = 'int8'
        place = staged
        if not sentences:
            write_hub_files(staged, config, saved)
        else:
            _write_network(staged, saved, kind, output)
            _describe_embeddings(staged, saved)
            place = staged / FOLDER
            place.mkdir()
        _, measured = write_onnx_files(place, files, saved, computes, 'transformers', ranges, output=output)
        format = 'sentence-transformers' if sentences else 'onnx'
        write_card(staged, deployment, format=format, lineage=lineage, license=license)
    return measured


def _describe_embeddings(staged: Path, saved: SavedModel) -> None:
    """Write what describes embeddings to sentence-transformers: the steps from text, by its classes."""
    architecture, embedding = saved.architecture, saved.head.embedding
    files: dict[str, Any] = {
        'sentence_bert_config.json': {
            'max_seq_length': embedding.length(architecture.max_length),
            'do_lower_case': False,
        },
        SETTINGS: {
            '__version__': {'gluon_optbert': __version__},
            'prompts': dict(embedding.prompts),
            'default_prompt_name': None,
            'similarity_fn_name': embedding.similarity,
            **({QUERY_ENCODER: embedding.index} if embedding.index else {}),
        },
    }
    repeated = ['Dense'] * len(embedding.dense) + ['Normalize'] * embedding.normalise
    names = ['Transformer', 'Pooling', *repeated]
    steps = [('' if i == 0 else f'{i}_{name}', name) for i, name in enumerate(names)]
    modes = {
        f'pooling_mode_{mode}_tokens': mode == embedding.pooling for mode in ('mean', 'max', 'mean_sqrt_len')
    }
    files[f'{steps[1][0]}/config.json'] = {
        'word_embedding_dimension': architecture.h,
        'pooling_mode_cls_token': embedding.pooling == 'cls',
        **modes,
    }
    files['modules.json'] = [
        {'idx': i, 'name': str(i), 'path': path, 'type': f'sentence_transformers.models.{name}'}
        for i, (path, name) in enumerate(steps)
    ]
    for path, _ in steps[1:]:
        (staged / path).mkdir()
    dense = zip(dense_arrays(saved.parameters, embedding), embedding.dense, steps[2:])
    for (weight, bias), (units, activation), (path, _) in dense:
        files[f'{path}/config.json'] = {
            'in_features': weight.shape[1],
            'out_features': units,
            'bias': True,
            'activation_function': ACTIVATIONS[activation],
        }
        save_file({'linear.weight': weight, 'linear.bias': bias}, str(staged / path / WEIGHTS))
    for name, values in files.items():
        write_hub_json(staged / name, values)
