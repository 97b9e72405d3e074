"""What other libraries make of exports: python consumer.py JOBS.json

JOBS.json is a list of ``library``, ``directory``, ``file``, ``head``, ``precision`` and ``output``. Beside it
are feed-HEAD.npz, with ``input_ids``, ``attention_mask`` and ``token_type_ids``, and sentences.json. A job
leaves its outputs as an .npz at ``output``, or one line at ``output``.error."""

import json
import sys
import traceback
from pathlib import Path

import numpy as np


def by_onnxruntime(job, feed, sentences):
    """A session on the CPU."""
    import onnxruntime

    path = str(Path(job['directory'], job['file']))
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})))


def by_openvino(job, feed, sentences):
    """A compiled model on the CPU, the rest in bfloat16 if the job is."""
    import openvino

    hint = {'INFERENCE_PRECISION_HINT': 'bf16' if job['precision'] == 'bfloat16' else 'f32'}
    model = openvino.Core().compile_model(str(Path(job['directory'], job['file'])), 'CPU', hint)
    answer = model({tensor.any_name: feed[tensor.any_name] for tensor in model.inputs})
    return {output.any_name: np.array(value) for output, value in answer.items()}


def by_transformers(job, feed, sentences):
    """The automatic class of the head, with the code of the directory if it has some."""
    import torch
    import transformers

    kind = {'encoder': '', 'classifier': 'ForSequenceClassification', 'questions': 'ForQuestionAnswering'}
    automatic = getattr(transformers, 'AutoModel' + kind[job['head']])
    config = json.loads(Path(job['directory'], 'config.json').read_text())
    trusted = {'trust_remote_code': True} if 'auto_map' in config else {}
    model = automatic.from_pretrained(job['directory'], **trusted).eval()
    if job['precision'] == 'bfloat16':
        model = model.to(torch.bfloat16)
    with torch.no_grad():
        outputs = model(**{name: torch.from_numpy(value) for name, value in feed.items()})
    return {name: value.float().numpy() for name, value in outputs.items() if value is not None}


def by_optimum(job, feed, sentences):
    """Optimum's class for ONNX Runtime of the head."""
    import torch
    from optimum import onnxruntime

    kind = {
        'encoder': 'FeatureExtraction',
        'classifier': 'SequenceClassification',
        'questions': 'QuestionAnswering',
    }
    automatic = getattr(onnxruntime, 'ORTModelFor' + kind[job['head']])
    model = automatic.from_pretrained(job['directory'], file_name=job['file'])
    outputs = model(**{name: torch.from_numpy(value) for name, value in feed.items()})
    return {name: np.asarray(value) for name, value in outputs.items() if value is not None}


def by_sentence_transformers(job, feed, sentences):
    """The embeddings of the sentences."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(job['directory'], backend='onnx', model_kwargs={'file_name': job['file']})
    return {'embeddings': model.encode(sentences)}


LIBRARIES = {
    'ONNX Runtime': by_onnxruntime,
    'OpenVINO': by_openvino,
    'Transformers': by_transformers,
    'Optimum': by_optimum,
    'sentence-transformers': by_sentence_transformers,
}


def main(path):
    """Run every job; one that fails leaves its error."""
    path = Path(path)
    sentences = json.loads((path.parent / 'sentences.json').read_text())
    for job in json.loads(path.read_text()):
        with np.load(path.parent / f'feed-{job["head"]}.npz') as arrays:
            feed = {name: arrays[name] for name in arrays.files}
        try:
            np.savez(job['output'], **LIBRARIES[job['library']](job, feed, sentences))
        except Exception as error:  # a cell of the table, whatever it is
            traceback.print_exc()
            Path(job['output'] + '.error').write_text(
                f'{type(error).__name__}: {error}'.splitlines()[0][:300]
            )


main(sys.argv[1])
