"""Exported directories in Optimum and sentence-transformers: a program for the environment of a peer, which
has both and not this package.

    python with_optimum.py JOBS

JOBS is JSON, a list of (directory, class of Optimum or ``SentenceTransformer``, file name, input, output).
For Optimum the input is a file of token ids, types and mask, for sentence-transformers a JSON list of texts.
The outputs go to the output file by name."""

import json
import sys

import numpy as np
import optimum.onnxruntime
import torch
from sentence_transformers import SentenceTransformer


def encoded(directory, name, place):
    """The embeddings of texts."""
    with open(place, encoding='utf-8') as file:
        texts = json.load(file)
    ways = {'embeddings': {'backend': 'onnx', 'model_kwargs': {'file_name': name}}, 'by default': {}}
    return {
        way: SentenceTransformer(directory, trust_remote_code=True, **more).encode(texts)
        for way, more in ways.items()
    }


def computed(directory, kind, name, place):
    """The outputs of a network."""
    model = getattr(optimum.onnxruntime, kind).from_pretrained(directory, file_name=name)
    with np.load(place) as arrays:
        feed = {key: torch.from_numpy(arrays[key].astype(np.int64)) for key in arrays.files}
    return {key: np.asarray(value) for key, value in model(**feed).items()}


for folder, wanted, file_name, source, target in json.loads(sys.argv[1]):
    if wanted == 'SentenceTransformer':
        np.savez(target, **encoded(folder, file_name, source))
    else:
        np.savez(target, **computed(folder, wanted, file_name, source))
