"""Exported directories in Transformers: a program for the environment of a peer, which has Torch and
Transformers and not this package.

    python with_transformers.py JOBS

JOBS is JSON, a list of (directory, automatic class, whether to train). Each directory has ``feed.npz`` beside
it. The program runs the network, writes its outputs to ``out.npz`` there, and prints a line of JSON. To train
is to fine-tune with Trainer, save to ``DIRECTORY-trained``, load that and run it."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

NEW_LABELS = {
    'AutoModelForSequenceClassification': {'labels': [0, 1, 0, 1]},
    'AutoModelForQuestionAnswering': {'start_positions': [1, 2, 1, 2], 'end_positions': [2, 3, 1, 4]},
}


def trust(directory):
    """The argument that a directory with code of its own needs; none for any other."""
    config = json.loads((Path(directory) / 'config.json').read_text())
    return {'trust_remote_code': True} if 'auto_map' in config else {}


def load(directory, auto, **more):
    """A network in its mode of prediction, and what loading said of its weights."""
    more.update(trust(directory))
    network, said = getattr(transformers, auto).from_pretrained(directory, output_loading_info=True, **more)
    return network.eval(), {name: sorted(map(str, values)) for name, values in said.items()}


def outputs_of(network, feed, **more):
    """The outputs by name."""
    with torch.no_grad():
        given = network(**feed, **more)
    return {name: value.numpy() for name, value in given.items() if isinstance(value, torch.Tensor)}


def feed_beside(directory):
    """Token ids, types and mask for a directory."""
    with np.load(Path(directory).parent / 'feed.npz') as arrays:
        return {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in arrays.files}


def run(directory, auto):
    """Run an export, by both implementations of attention."""
    network, said = load(directory, auto)
    feed = feed_beside(directory)
    outputs = outputs_of(network, feed)
    eager, _ = load(directory, auto, attn_implementation='eager')
    mask = feed['attention_mask'].bool()
    apart = [
        np.abs(value - outputs[name])[mask.numpy()] if value.ndim > 2 else np.abs(value - outputs[name])
        for name, value in outputs_of(eager, feed).items()
    ]
    np.savez(Path(directory).parent / 'out.npz', **outputs)
    return {**said, 'eager': float(max(map(np.max, apart)))}


def train(directory, auto):
    """Fine-tune a step or two, save, load again and compare."""
    network, _ = load(directory, auto)
    feed = feed_beside(directory)
    labels = NEW_LABELS.get(auto, {'labels': feed['input_ids'].tolist()})
    size = len(feed['input_ids'])
    rows = [
        {
            **{name: value[i] for name, value in feed.items()},
            **{name: torch.tensor(values[i % len(values)]) for name, values in labels.items()},
        }
        for i in range(size)
    ]
    before = outputs_of(network, feed)
    there = f'{directory}-trained'
    options = transformers.TrainingArguments(
        output_dir=there,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=1e-3,
        save_strategy='no',
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **trust(directory))
    trainer = transformers.Trainer(
        network, options, train_dataset=rows, processing_class=tokenizer, eval_dataset=rows
    )
    loss = trainer.train().training_loss
    evaluated = trainer.evaluate()['eval_loss']
    trainer.save_model(there)
    after = outputs_of(network.eval(), feed)
    again, said = load(there, auto)
    apart = max(float(np.abs(value - after[name]).max()) for name, value in outputs_of(again, feed).items())
    moved = max(float(np.abs(value - after[name]).max()) for name, value in before.items())
    return {**said, 'loss': loss, 'evaluated': evaluated, 'moved': moved, 'again': apart}


def main(jobs):
    """Do the jobs, and say what came of each."""
    for directory, auto, trains in jobs:
        said = run(directory, auto)
        if trains:
            said['trained'] = train(directory, auto)
        print(json.dumps({'version': transformers.__version__, **said}), flush=True)


if __name__ == '__main__':
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    main(json.loads(sys.argv[1]))
