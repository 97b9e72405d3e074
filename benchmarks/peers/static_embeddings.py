"""Embed the texts of sentence_scores.py statically: python static_embeddings.py CHECKPOINT TEXTS OUTPUT

model2vec distils CHECKPOINT, a directory for sentence-transformers, into a vector for every token; a text is
the mean of those of its tokens. OUTPUT, an npz, is what sentence_scores.py takes as a network. Beside it goes
OUTPUT.json: the versions, the parameters, and how many texts a second it embeds on one thread. Run in an
environment with `model2vec[distill,quantization]`."""

import csv
import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np
from model2vec.distill import distill


def main(checkpoint, texts, output):
    """Distil, embed the pairs and what is searched, and time the first column of the pairs."""
    model = distill(checkpoint, device='cpu')
    with open(Path(texts) / 'pairs.csv', encoding='utf-8', newline='') as file:
        rows = list(csv.reader(file))
    asked = {f'pairs {side}': [row[side] for row in rows] for side in (0, 1)}
    for name in ('squad', 'wiki'):
        found = json.loads((Path(texts) / 'search' / f'{name}.json').read_text())
        asked |= {f'{name} {what}': found[what] for what in ('queries', 'documents')}
    arrays = {}
    for name, some in asked.items():
        vectors = model.encode(some, max_length=None)
        arrays[name] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    np.savez(output, **arrays)
    begun = time.perf_counter()
    model.encode(asked['pairs 0'], use_multiprocessing=False)
    said = {
        'model2vec': importlib.metadata.version('model2vec'),
        'torch': importlib.metadata.version('torch'),
        'transformers': importlib.metadata.version('transformers'),
        'vectors': list(model.embedding.shape),
        'texts_per_second': round(len(rows) / (time.perf_counter() - begun)),
    }
    Path(f'{output}.json').write_text(json.dumps(said, indent=1) + '\n')
    print(json.dumps(said))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
