"""Directories with ONNX files that Optimum and sentence-transformers load without this package's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .. import __version__
from ..cutting.shrink import without_gates
from ..network.saved_model import SavedModel
from ..runs.files import locked, new_directory
from ..tasks.task import known_head
from ..text.tokenizer import is_cased
from .export import (
    ONNX_DIFFERENCES,
    ONNX_FILES,
    TOLERANCE,
    check_choice,
    deployment_of,
    kind_of,
    network_of,
    refuse,
    untrained_parts,
)
from .hub_files import bert_config, json_bytes, write_hub_files
from .instances import Instance
from .model_card import check_license, write_card
from .onnx_files import calibration_feeds, compare_onnx, onnx_ranges, write_onnx_files
from .onnx_names import MASKED_LM, ONNX, QUANTISED, TRANSFORMERS_INPUTS
from .quantize import METHODS
from .story import Story
from .text_features import Encoder

FOLDER = 'onnx'  # of the ONNX files of sentence-transformers
POOLING, NORMALISING = '1_Pooling', '2_Normalize'


def export_onnx(
    saved: SavedModel,
    output: Path,
    *,
    head: Optional[str] = None,
    precision: str = 'float32',
    calibration: Sequence[Instance] = (),
    method: str = 'naive',
    sentences: bool = False,
    story: Optional[Story] = None,
    license: str = '',
) -> Dict[str, Any]:
    """Write a directory for Optimum, or for sentence-transformers.

    Parameters
    ----------
    saved : SavedModel
        Its gates, if it has them, are folded into the export and their zeros cut.
    output : Path
    head : str, optional
        What it computes, see `export.kind_of`. ``pretraining`` gives the scores of every token over the
        vocabulary.
    precision : str
        ``float32``; or ``int8``, for a static int8 file beside the one in float32.
    calibration, method
        Text for int8, and how its ranges are chosen; see `export.export`.
    sentences : bool
        Whether the directory is one of sentence-transformers, whose embeddings are those of
        `Predictor.encode`: the mean of the tokens, of length 1.
    story, license
        For the model card, as of `export.export`.

    Returns
    -------
    dict
        The relative differences of the outputs of the ONNX files, as of `export.export`.

    Raises
    ------
    FileExistsError, ValueError
        Bad input.
    UntrainedHeads
        If the scores of a head would be random.
    NotEqual
        If the outputs of the float32 file differ from the network's.
    """
    check_choice('precision', precision, ONNX_FILES)
    check_choice('method', method, METHODS)
    check_license(license)
    saved = without_gates(saved)
    kind = kind_of(saved, head)
    if sentences and kind != 'encoder':
        raise ValueError(
            f'sentence-transformers takes embeddings from an encoder, and this is a model of {kind}; export '
            'the model that it was fine-tuned from, with --head encoder'
        )
    untrained = untrained_parts(saved, kind)
    computes = MASKED_LM if kind == 'pretraining' else kind
    ranges, files = None, {ONNX: 'float32'}
    if precision == 'int8':
        features = Encoder(deployment_of(saved, kind)).features(calibration)
        ranges = onnx_ranges(saved, computes, calibration_feeds(features), method)
        files[QUANTISED] = 'int8'
    measured = {}
    with locked(output), new_directory(output) as staged:
        _write_descriptions(staged, saved, kind, sentences=sentences)
        place = staged / FOLDER if sentences else staged
        place.mkdir(exist_ok=True)
        write_onnx_files(place, files, saved, computes, 'transformers', ranges)
        network = network_of(saved, kind)
        for name, written in files.items():
            differences = compare_onnx(place / name, TRANSFORMERS_INPUTS, network, saved, kind)
            measured[ONNX_DIFFERENCES[name]] = differences
            refuse(differences, TOLERANCE if written == 'float32' else 1e30, f'{output}: {name}')
        write_card(
            staged,
            saved,
            kind,
            format='sentence-transformers' if sentences else 'onnx',
            untrained=untrained,
            story=story,
            license=license,
        )
    return measured


def _write_descriptions(staged: Path, saved: SavedModel, kind: str, *, sentences: bool) -> None:
    """Write the configuration and the tokenizer, and what describes embeddings to sentence-transformers."""
    architecture, head = saved.architecture, known_head(saved.head)
    config = bert_config(architecture, head, kind)
    if kind == 'pretraining':
        config['architectures'] = ['BertForMaskedLM']
    write_hub_files(
        staged,
        config,
        saved.vocabulary.idx_to_token,
        lower_case=not is_cased(saved.vocabulary),
        max_length=architecture.max_length,
    )
    if not sentences:
        return
    for name in (POOLING, NORMALISING):
        (staged / name).mkdir()
    files = {
        'modules.json': _modules(),
        'sentence_bert_config.json': {'max_seq_length': architecture.max_length, 'do_lower_case': False},
        'config_sentence_transformers.json': {
            '__version__': {'gluon_optbert': __version__},
            'prompts': {},
            'default_prompt_name': None,
            'similarity_fn_name': 'cosine',
        },
        f'{POOLING}/config.json': {
            'word_embedding_dimension': architecture.h,
            'pooling_mode_cls_token': False,
            'pooling_mode_mean_tokens': True,
            'pooling_mode_max_tokens': False,
            'pooling_mode_mean_sqrt_len_tokens': False,
        },
    }
    for name, values in files.items():
        (staged / name).write_bytes(json_bytes(values))


def _modules() -> List[Dict[str, Any]]:
    """The steps from text to embedding, by the classes of sentence-transformers."""
    steps = (('', 'Transformer'), (POOLING, 'Pooling'), (NORMALISING, 'Normalize'))
    return [
        {'idx': i, 'name': str(i), 'path': path, 'type': f'sentence_transformers.models.{name}'}
        for i, (path, name) in enumerate(steps)
    ]
