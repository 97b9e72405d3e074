"""Protocol of a worker of a benchmark (benchmarks/workers.py): a line of JSON in, a line of JSON out.

    {"batch": 8, "length": 128}
        the milliseconds that it takes: {"ms": 1.0, "peak_mb": 500.0}
    {"batch": 8, "length": 128, "masked": 20}
        the same, where a training step is asked for
    {"lengths": [[3, 5], [9]], "widths": [5, 9]}
        the same of all these batches of padded sequences together
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


def random_inputs(batch, length, vocab_size, seed=0):
    """Inputs without padding."""
    random = np.random.RandomState(seed)
    return {
        'input_ids': random.randint(0, vocab_size, (batch, length)),
        'token_types': random.randint(0, 2, (batch, length)),
        'valid_length': np.full(batch, length),
        'masked_positions': random.randint(0, length, (batch, 20)),
    }


def padded_inputs(lengths, width, vocab_size, seed=0):
    """Inputs of sequences with these lengths, padded to the width."""
    return {**random_inputs(len(lengths), width, vocab_size, seed), 'valid_length': np.array(lengths)}


def onnx_inputs(inputs, names):
    """The inputs of an ONNX file, which has the names of Transformers or those of `NAMES`, as int64."""
    valid, length = np.asarray(inputs['valid_length']), np.shape(inputs['input_ids'])[1]
    mask = np.arange(length) < valid[:, np.newaxis]
    every = {**inputs, 'token_type_ids': inputs['token_types'], 'attention_mask': mask}
    return {name: np.asarray(every[name], np.int64) for name in names}


def plain_outputs(outputs, inputs):
    """The outputs of an ONNX file by name, as a list of what plain MXNet would give for the same inputs."""
    named, places = dict(outputs), np.asarray(inputs['masked_positions'], np.int64)
    mask = np.arange(np.shape(inputs['input_ids'])[1]) < np.asarray(inputs['valid_length'])[:, np.newaxis]
    if 'last_hidden_state' in named:
        named['last_hidden_state'] = named['last_hidden_state'] * mask[:, :, np.newaxis]
    if 'start_logits' in named:
        return [np.stack([named['start_logits'], named['end_logits']], axis=-1)]
    if 'prediction_logits' in named:
        scores = named['prediction_logits']
        named['prediction_logits'] = np.take_along_axis(scores, places[:, :, np.newaxis], axis=1)
    return list(named.values())


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


def speaker():
    """A function that says a value as a line of JSON; what libraries print goes to the standard error."""
    answers, sys.stdout = os.fdopen(os.dup(1), 'w', buffering=1), sys.stderr
    return lambda value: print(json.dumps(value), file=answers)


def serve(run, versions, vocab_size, make_inputs=random_inputs, named=None):
    """Answer lines until there are no more.

    `run` computes a list of arrays from a dict of arrays of whole numbers (`NAMES`), or from what
    `make_inputs` makes of batch, length, vocab_size and, if it is told, masked. `named` has the names of an
    ONNX file's outputs: `plain_outputs` are written then.
    """
    say = speaker()
    say({'ready': versions})
    for line in sys.stdin:
        wanted, answer = json.loads(line), {}
        if 'feed' in wanted:
            with np.load(wanted['feed']) as feed:
                inputs = {name: feed[name] for name in NAMES}
            outputs = run(inputs)
            if named is not None:
                outputs = plain_outputs(zip(named, outputs), inputs)
            np.savez(wanted['outputs'], *outputs)
        else:
            if 'lengths' in wanted:
                pairs = zip(wanted['lengths'], wanted['widths'])
                batches = [padded_inputs(lengths, width, vocab_size) for lengths, width in pairs]
            else:
                more = {'masked': wanted['masked']} if 'masked' in wanted else {}
                batches = [make_inputs(wanted['batch'], wanted['length'], vocab_size, **more)]
            began = time.perf_counter()
            for inputs in batches:
                run(inputs)
            answer['ms'] = 1e3 * (time.perf_counter() - began)
        answer['peak_mb'] = peak_mb()
        say(answer)
