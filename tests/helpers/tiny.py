"""Networks, batches, vocabularies, shards and model directories so small that a test takes milliseconds."""

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.architecture.parameters import network_shapes
from gluon_optbert.cutting.selection import Selection
from gluon_optbert.network.saved_model import SavedModel, write_model
from gluon_optbert.runs.files import write_sealed
from gluon_optbert.runs.progress import Progress
from gluon_optbert.text import shards as shards_module
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, vocabulary_hash, vocabulary_of, write_vocabulary

ROOT = Path(__file__).resolve().parents[2]
TOKENS = [*SPECIAL_TOKENS, *'abcdefghijklmnopqrstuvwxyz.']
LENGTH, PREDICTIONS = 16, 3


def network(*layers, h=8, e=None, vocab_size=len(TOKENS), max_length=LENGTH):
    """An architecture; `layers` are (a, k, v, f), by default two of (2, 4, 4, 16)."""
    layers = layers or ((2, 4, 4, 16),) * 2
    return Architecture(
        h=h,
        e=e,
        layers=tuple(LayerDims(*dims) for dims in layers),
        vocab_size=vocab_size,
        max_length=max_length,
    )


def random_parameters(architecture, seed=0, head=PRETRAINING):
    """Parameters of which every one matters: biases and betas away from zero, gammas away from one."""
    generator = np.random.RandomState(seed)

    def draw(name, shape):
        values = generator.standard_normal(shape) * 0.4
        return (1 + values if name.endswith('gamma') else values).astype(np.float32)

    return {name: draw(name, shape) for name, shape in network_shapes(architecture, head).items()}


def random_alphas(architecture, seed=0, *, letters='hakvf'):
    """Gates of either sign, away from zero, on the widths of `letters`; ones elsewhere."""
    generator = np.random.RandomState(seed)
    alphas = {}
    for key, width in architecture.widths().items():
        drawn = generator.uniform(0.4, 1.6, width) * generator.choice([-1, 1], width)
        alphas[key] = (drawn if key[0] in letters else np.ones(width)).astype(np.float32)
    return alphas


def random_selection(architecture, seed=0, *, letters='hakvf'):
    """A selection that keeps a random part, at least one unit and never all of several, of the widths of
    `letters`, and all of the others."""
    generator = np.random.RandomState(seed)
    kept = {}
    for key, width in architecture.widths().items():
        count = generator.randint(1, width) if key[0] in letters and width > 1 else width
        kept[key] = np.sort(generator.permutation(width)[:count])
    return Selection(kept, 0.0, 0.0)


def random_inputs(architecture, *, batch=3, length=6, seed=0):
    """Inputs of a pre-training network; the second sequence is half padding, the first has none."""
    generator = np.random.RandomState(seed)
    valid = generator.randint(1, length + 1, batch)
    valid[:2] = [length, max(1, length // 2)][:batch]
    positions = (generator.uniform(size=(batch, 2)) * valid[:, np.newaxis]).astype(int)
    return [
        mx.nd.array(values, dtype='float32')
        for values in (
            generator.randint(0, architecture.vocab_size, (batch, length)),
            generator.randint(0, 2, (batch, length)),
            valid,
            positions,
        )
    ]


def outputs_of(model, inputs):
    """Encodings, pooled units, NSP scores and MLM scores as arrays."""
    encoded, pooled, next_sentence, masked = (value.asnumpy() for value in model(*inputs))
    return {'encoded': encoded, 'pooled': pooled, 'next_sentence': next_sentence, 'masked': masked}


def relative_difference(found, wanted):
    """The largest difference of any output, over the largest value of that output."""
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in wanted.items()
    }
    return max(np.abs(found[name] - wanted[name]).max() / np.abs(wanted[name]).max() for name in wanted)


def vocabulary():
    """The specials, the alphabet and the full stop."""
    return vocabulary_of(TOKENS)


def random_records(count, seed=0, pairs=True):
    """Instances for shards, of the alphabet in its order, so that there is something to learn."""
    generator = np.random.RandomState(seed)
    records = np.zeros(count, dtype=shards_module.record_dtype(LENGTH, PREDICTIONS, len(TOKENS)))
    for record in records:
        valid = generator.randint(8, LENGTH + 1)
        first = generator.randint(len(SPECIAL_TOKENS), len(TOKENS))
        letters = len(SPECIAL_TOKENS) + (first + np.arange(valid)) % (len(TOKENS) - len(SPECIAL_TOKENS))
        places = np.sort(
            generator.choice(np.arange(1, valid), generator.randint(1, PREDICTIONS + 1), replace=False)
        )
        record['input_ids'][:valid] = letters
        record['masked_lm_positions'][: len(places)] = places
        record['masked_lm_ids'][: len(places)] = letters[places]
        record['masked_lm_weights'][: len(places)] = 1
        record['input_ids'][places] = TOKENS.index('[MASK]')
        record['segment_ids'][valid // 2 : valid] = pairs
        record['valid_lengths'] = valid
        record['next_sentence_labels'] = generator.randint(2) * pairs
    return records


def seal(path, manifest):
    """Write a manifest anew, as an attacker would."""
    write_sealed(path, {name: value for name, value in manifest.items() if name != 'sha256'})


def write_shards(directory, *, train=(40, 24), heldout=(16,), seed=0, pairs=True, tokens=None):
    """A directory of shards with so many instances in each file; `tokens` is their vocabulary."""
    records = {
        split: [random_records(count, [seed, i, count], pairs) for i, count in enumerate(counts)]
        for split, counts in (('train', train), ('heldout', heldout))
        if counts
    }
    return write_records(directory, records, tokens or vocabulary(), next_sentence=pairs)


def write_records(directory, records, tokens, **more):
    """A directory of shards that hold these records, by split; `more` goes into the manifest."""
    directory.mkdir(parents=True)
    write_vocabulary(tokens, directory / shards_module.VOCABULARY)
    splits = {}
    for split, parts in records.items():
        places = (directory / f'{split}-{i:05d}.npz' for i in range(len(parts)))
        files = [vars(shards_module.write_shard(*pair)) for pair in zip(places, parts)]
        splits[split] = {'instances': sum(map(len, parts)), 'shards': files}
    manifest = {
        'format': shards_module.FORMAT,
        'version': shards_module.VERSION,
        'max_seq_length': LENGTH,
        'max_predictions': PREDICTIONS,
        'splits': splits,
        'vocabulary': {'size': len(tokens), 'sha256': vocabulary_hash(tokens)},
        **more,
    }
    seal(directory / shards_module.MANIFEST, manifest)
    return directory


def npy(values):
    """The file of an array, of objects too."""
    packed = io.BytesIO()
    np.save(packed, values, allow_pickle=True)
    return packed.getvalue()


def write_signed_shard(directory, content):
    """Anything as the only shard to train on, of four instances, for which the manifest vouches."""
    (directory / 'train-00000.npz').write_bytes(content)
    manifest = json.loads((directory / shards_module.MANIFEST).read_text())
    shard = {'name': 'train-00000.npz', 'instances': 4, 'bytes': len(content)}
    shard['sha256'] = hashlib.sha256(content).hexdigest()
    manifest['splits']['train'] = {'instances': 4, 'shards': [shard]}
    seal(directory / shards_module.MANIFEST, manifest)


def saved_model(architecture=None, *, seed=0, **more):
    """A network with small random weights, as if pre-trained for 1,000 steps; `progress` is a dict."""
    progress = Progress.from_dict(more.pop('progress', {'step': 1000}))
    architecture = architecture or network()
    parameters = {
        name: value * np.float32(0.5) if not name.endswith('gamma') else value
        for name, value in random_parameters(architecture, seed).items()
    }
    return SavedModel(architecture, parameters, vocabulary(), {'seed': seed}, progress, **more)


def write_saved_model(directory, **options):
    """The directory, with `saved_model` in it."""
    write_model(directory, saved_model(**options))
    return directory


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def records(directory):
    """The logged lines of a run, without times."""
    times = ('tokens_per_second', 'data_wait')
    lines = map(json.loads, (directory / 'metrics.jsonl').read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


def contents(directory):
    """Every file below a directory by its path there, as the SHA-256 of its bytes."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob('*'))
        if path.is_file()
    }


def environment(**more):
    """That of a program that is to find this package."""
    return {**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONDONTWRITEBYTECODE': '1', **more}


def run(*arguments, timeout=300, folders=(), **options):
    """A finished Python program of the repository, with what it said; it imports from these folders too."""
    path = os.pathsep.join(str(ROOT / folder) for folder in ('', *folders))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=str(ROOT),
        env=environment(PYTHONPATH=path),
        timeout=timeout,
        capture_output=True,
        text=True,
        **options,
    )
