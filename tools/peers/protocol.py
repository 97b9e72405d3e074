"""How a worker of a benchmark (tools/workers.py) is spoken to: a line of JSON in, a line of JSON out.

    {"batch": 8, "length": 128, "runs": 3}
        the milliseconds of each run: {"ms": [1.0, 1.0, 1.0], "peak_mb": 500.0}
    {"batch": 8, "length": 128, "masked": 20, "runs": 3}
        the same, where training steps are asked for
    {"lengths": [[3, 5], [9]], "widths": [5, 9], "runs": 3}
        the milliseconds of all these batches of padded sequences together, for each run
    {"feed": "in.npz", "outputs": "out.npz"}
        compute these inputs and write what comes out: {"peak_mb": 500.0}

The first line out is {"ready": versions}. Between lines a worker waits and computes nothing. Standard library
and NumPy alone."""

import json
import os
import sys
import time

import numpy as np

NAMES = ('input_ids', 'token_types', 'valid_length', 'masked_positions')


def random_inputs(batch, length, vocab_size):
    """Inputs without padding."""
    random = np.random.RandomState(0)
    return {
        'input_ids': random.randint(0, vocab_size, (batch, length)),
        'token_types': random.randint(0, 2, (batch, length)),
        'valid_length': np.full(batch, length),
        'masked_positions': random.randint(0, length, (batch, 20)),
    }


def padded_inputs(lengths, width, vocab_size):
    """Inputs of sequences with these lengths, padded to the width."""
    return {**random_inputs(len(lengths), width, vocab_size), 'valid_length': np.array(lengths)}


def convention(inputs, names):
    """The inputs of an ONNX file by its own names, of int64.

    Parameters
    ----------
    inputs : dict of arrays
        By `NAMES`.
    names : list of str
        Those of `NAMES`, or those of Transformers: ``attention_mask`` and ``token_type_ids``.
    """
    width = inputs['input_ids'].shape[1]
    known = {
        **inputs,
        'token_type_ids': inputs['token_types'],
        'attention_mask': np.arange(width) < np.asarray(inputs['valid_length'])[:, np.newaxis],
    }
    return {name: np.ascontiguousarray(known[name], dtype=np.int64) for name in names}


def peak_mb():
    """The largest memory of this process in MiB; what getrusage says begins with that of the process that
    started it.
    """
    with open('/proc/self/status', encoding='ascii', errors='replace') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('VmHWM:')) / 1024


def training_inputs(batch, length, vocab_size, masked):
    """Inputs of a training step, with so many different places of every sequence to predict."""
    random = np.random.RandomState(0)
    places = np.stack([random.permutation(length)[:masked] for _ in range(batch)])
    return {
        **random_inputs(batch, length, vocab_size),
        'masked_positions': places,
        'masked_ids': random.randint(0, vocab_size, places.shape),
        'next_sentence_labels': random.randint(0, 2, batch),
    }


def serve(run, versions, vocab_size, make_inputs=random_inputs):
    """Answer lines until there are no more.

    Parameters
    ----------
    run : function
        From a dict of arrays of whole numbers (`NAMES`) to a list of arrays, computed when it returns.
    versions : dict
    vocab_size : int
    make_inputs : function
        From batch, length, vocab_size and, if it is told, masked to what `run` takes.
    """
    answers, sys.stdout = (
        os.fdopen(os.dup(1), 'w', buffering=1),
        sys.stderr,
    )  # what libraries print goes elsewhere
    print(json.dumps({'ready': versions}), file=answers)
    for line in sys.stdin:
        wanted, answer = json.loads(line), {}
        if 'feed' in wanted:
            with np.load(wanted['feed']) as feed:
                outputs = run({name: feed[name] for name in NAMES})
            np.savez(wanted['outputs'], *outputs)
        else:
            if 'lengths' in wanted:
                pairs = zip(wanted['lengths'], wanted['widths'])
                batches = [padded_inputs(lengths, width, vocab_size) for lengths, width in pairs]
            else:
                more = {'masked': wanted['masked']} if 'masked' in wanted else {}
                batches = [make_inputs(wanted['batch'], wanted['length'], vocab_size, **more)]
            answer['ms'] = []
            for _ in range(wanted['runs']):
                began = time.perf_counter()
                for inputs in batches:
                    run(inputs)
                answer['ms'].append(1e3 * (time.perf_counter() - began))
        answer['peak_mb'] = peak_mb()
        print(json.dumps(answer), file=answers)
