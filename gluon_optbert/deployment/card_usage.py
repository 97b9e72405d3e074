"""How an export is loaded, as its model card shows it: an example for each library that reads the files."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, Tuple

from ..architecture.heads import Head
from .hub_files import CLASSES, CODE
from .onnx_names import QUANTISED

PLACE = 'DIRECTORY'
_SERVER = f'optbert-serve {PLACE} --port 8000'


@dataclasses.dataclass(frozen=True)
class Usage:
    """What the examples need to know beside the files.

    Parameters
    ----------
    onnx_inputs : tuple of str
        The names of the inputs of the ONNX files.
    mxnet_inputs : tuple of str
        Those of the network for MXNet.
    ids : tuple of int
        Four tokens, [CLS] first and [SEP] last.
    """

    onnx_inputs: Tuple[str, ...] = ('input_ids', 'attention_mask', 'token_type_ids')
    mxnet_inputs: Tuple[str, ...] = ('input_ids', 'token_types', 'valid_length')
    ids: Tuple[int, ...] = (2, 5, 7, 3)


def pipeline_tag(format: str, kind: str, head: Head) -> str:
    """What hubs call what a network computes."""
    if kind == 'pretraining':
        return 'fill-mask'
    if kind == 'task':
        return 'question-answering' if head.kind == 'question_answering' else 'text-classification'
    return 'sentence-similarity' if format == 'sentence-transformers' else 'feature-extraction'


def used(format: str, kind: str, head: Head, files: Mapping[str, int], usage: Usage) -> str:
    """The examples of a card, in Markdown.

    Parameters
    ----------
    format : str
        Of the export.
    kind : str
        What is computed.
    head : Head
    files : mapping of str to int
        The files of the directory with their bytes.
    usage : Usage
    """
    examples: Dict[str, List[Tuple[str, str, str]]] = {
        'mxnet': [('gluon_optbert', 'python', _own(head, kind)), ('A service over HTTP', '', _SERVER)],
        'transformers': [('Transformers', 'python', _transformers(kind, head, files))],
        'onnx': [('Optimum', 'python', _optimum(kind, head, files))],
        'sentence-transformers': [('sentence-transformers', 'python', _sentences(files))],
    }
    shown = list(examples[format])
    onnx = sorted(name for name in files if name.endswith('.onnx'))
    if onnx:
        shown.append(('ONNX Runtime', 'python', _onnx(onnx[0], usage)))
    if format == 'mxnet':
        shown.append(('MXNet alone', 'python', _mxnet(usage)))
    parts = [f'`{PLACE}` stands for the directory of this file.']
    for library, language, code in shown:
        parts.append(f'{library}:\n\n```{language}\n{code}\n```')
    return '\n\n'.join(parts)


def _texts(head: Head) -> str:
    """Texts that the network reads, as Python writes them."""
    if head.kind == 'question_answering':
        return "[('When was it opened?', 'The bridge was opened in March 1932.')]"
    if len(head.columns) == 3:
        return "[('A man is eating food.', 'Someone is having a meal.')]"
    return "['a fine film', 'a dull one']"


def _own(head: Head, kind: str) -> str:
    lines = ['import gluon_optbert as opt', '', f'predictor = opt.Predictor({PLACE!r})']
    if kind == 'task':
        lines += [f'for prediction in predictor.predict({_texts(head)}):', '    print(prediction)']
    else:
        lines += [f'embeddings = predictor.encode({_texts(head)})', 'print(embeddings @ embeddings.T)']
    return '\n'.join(lines)


def _call(head: Head) -> str:
    """The words of a call of a tokenizer."""
    if head.kind == 'question_answering':
        return "'When was it opened?', 'The bridge was opened in March 1932.'"
    if len(head.columns) == 3:
        return "'A man is eating food.', 'Someone is having a meal.'"
    return "'a fine film'"


def _ending(kind: str, head: Head) -> str:
    """What follows ``AutoModel`` or ``ORTModel`` for a network."""
    return CLASSES[head.kind if kind == 'task' else kind]


def _transformers(kind: str, head: Head, files: Mapping[str, int]) -> str:
    ending = _ending(kind, head)
    name = 'AutoModel' if ending == 'Model' else f'AutoModel{ending}'
    trust = ', trust_remote_code=True' if CODE.name in files else ''
    result = {'task': 'outputs.logits'}.get(kind, 'outputs[0].shape')
    if head.kind == 'question_answering':
        result = 'outputs.start_logits, outputs.end_logits'
    lines = [
        f'from transformers import {name}, AutoTokenizer',
        '',
        f'tokenizer = AutoTokenizer.from_pretrained({PLACE!r}{trust})',
        f'model = {name}.from_pretrained({PLACE!r}{trust})',
        f"outputs = model(**tokenizer({_call(head)}, return_tensors='pt'))",
        f'print({result})',
    ]
    return '\n'.join(lines)


def _optimum(kind: str, head: Head, files: Mapping[str, int]) -> str:
    ending = {'encoder': 'ForFeatureExtraction', 'pretraining': 'ForMaskedLM'}.get(kind)
    name = f'ORTModel{ending or _ending(kind, head)}'
    lines = [
        f'from optimum.onnxruntime import {name}',
        'from transformers import AutoTokenizer',
        '',
        f'tokenizer = AutoTokenizer.from_pretrained({PLACE!r})',
        *(f'# In int8, add file_name={path!r}.' for path in files if path.endswith(QUANTISED)),
        f'model = {name}.from_pretrained({PLACE!r})',
        f"outputs = model(**tokenizer({_call(head)}, return_tensors='pt'))",
    ]
    return '\n'.join(lines)


def _sentences(files: Mapping[str, int]) -> str:
    lines = ['from sentence_transformers import SentenceTransformer', '']
    for path in (path for path in files if path.endswith(QUANTISED)):
        lines.append(f"# In int8, add model_kwargs={{'file_name': {path!r}}}.")
    lines += [
        f"model = SentenceTransformer({PLACE!r}, backend='onnx')",
        "embeddings = model.encode(['a fine film', 'a dull one'])",
    ]
    return '\n'.join(lines)


def _values(usage: Usage) -> Dict[str, str]:
    """Arrays of one sequence, by the name of an input."""
    return {
        'input_ids': str([list(usage.ids)]),
        'attention_mask': '[[1, 1, 1, 1]]',
        'token_type_ids': '[[0, 0, 0, 0]]',
        'token_types': '[[0, 0, 0, 0]]',
        'valid_length': '[4]',
        'masked_positions': '[[1]]',
    }


def _onnx(path: str, usage: Usage) -> str:
    feed = ', '.join(f'{name!r}: {_values(usage)[name]}' for name in usage.onnx_inputs)
    lines = [
        'import numpy as np',
        'import onnxruntime',
        '',
        f"session = onnxruntime.InferenceSession('{PLACE}/{path}', providers=['CPUExecutionProvider'])",
        f'feed = {{{feed}}}',
        'outputs = session.run(None, {name: np.array(values, np.int64) for name, values in feed.items()})',
    ]
    return '\n'.join(lines)


def _mxnet(usage: Usage) -> str:
    feed = ', '.join(f'mx.nd.array({_values(usage)[name]})' for name in usage.mxnet_inputs)
    lines = [
        'import mxnet as mx',
        '',
        f'inputs = {list(usage.mxnet_inputs)}',
        f"symbol, parameters = '{PLACE}/model-symbol.json', '{PLACE}/model-0000.params'",
        'network = mx.gluon.SymbolBlock.imports(symbol, inputs, parameters)',
        f'outputs = network({feed})',
    ]
    return '\n'.join(lines)
