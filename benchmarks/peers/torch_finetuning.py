"""Fine-tuning with Transformers on PyTorch: python torch_finetuning.py CHECKPOINT JOB.npz SCORES.npz SETTINGS

Run by compare_finetuning.py, which settles the batches and their order, the learning rate of every step
and OMP_NUM_THREADS; SETTINGS is JSON, JOB what its function `job` gives. It is eager, in float32, with the
attention and the optimizer (fused AdamW) that Transformers takes unless told otherwise. A line of JSON comes
out when the job is read, after every epoch and at the end; SCORES has ``EPOCH/NAME``, the logits of a
held-out set."""

import json
import os
import sys
import time

import numpy as np
import torch
import transformers
from protocol import speaker

UNDECAYED = ('bias', 'LayerNorm.weight')


def load(checkpoint, settings):
    """The checkpoint with the head of the task, new unless the checkpoint has it."""
    dropout, outputs = settings['dropout'], settings['outputs']
    config = transformers.AutoConfig.from_pretrained(
        checkpoint,
        num_labels=outputs,
        problem_type=settings['problem'],
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        classifier_dropout=dropout,
    )
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint, config=config, dtype=torch.float32
    )


def optimizer_of(model, settings):
    """AdamW, which decays no bias and no LayerNorm."""
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[not name.endswith(UNDECAYED)].append(parameter)
    return torch.optim.AdamW(
        [
            {'params': parameters, 'weight_decay': settings['weight_decay'] * decayed}
            for decayed, parameters in groups.items()
        ],
        lr=0.0,
        eps=settings['epsilon'],
        fused=True,
    )


def read(job):
    """The learning rates, and the batches of every part of the job in their order."""
    parts = {}
    with np.load(job, allow_pickle=False) as file:
        for key in file.files:
            part, *place = key.split('/')
            if place:
                number, name = place
                parts.setdefault(part, {}).setdefault(number, {})[name] = file[key]
        return file['learning_rates'], {part: list(batches.values()) for part, batches in parts.items()}


def tensors(batch):
    """Inputs of the network, of a batch."""
    return {name: torch.from_numpy(values) for name, values in batch.items() if name != 'rows'}


def train(model, optimizer, batches, rates, clip_norm):
    """A step on each of some batches, at its learning rate; the mean loss over the instances."""
    model.train()
    total = instances = 0
    for batch, rate in zip(batches, rates):
        if os.getppid() != CALLER:
            sys.exit('the caller has ended')  # killed, it could not end this process
        loss = model(**tensors(batch)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        for group in optimizer.param_groups:
            group['lr'] = float(rate)
        optimizer.step()
        total, instances = total + loss.item() * len(batch['rows']), instances + len(batch['rows'])
    return total / instances


def predict(model, batches, outputs):
    """The logits of a held-out set, shape (instances, outputs)."""
    model.eval()
    scores = np.zeros((sum(len(batch['rows']) for batch in batches), outputs), np.float32)
    with torch.inference_mode():
        for batch in batches:
            scores[batch['rows']] = model(**tensors(batch)).logits.numpy()
    return scores


def main(checkpoint, job, scores, settings):
    """Train for all epochs, predicting after each."""
    say, settings = speaker(), json.loads(settings)
    rates, parts = read(job)
    versions = {module.__name__: module.__version__ for module in (transformers, torch, np)}
    say({'ready': {**versions, 'python': sys.version.split()[0]}})
    began = time.perf_counter()
    torch.set_num_threads(int(os.environ['OMP_NUM_THREADS']))
    torch.manual_seed(settings['seed'])
    model = load(checkpoint, settings)
    optimizer = optimizer_of(model, settings)
    scores_by_epoch, per_epoch = {}, len(rates) // settings['epochs']
    for epoch in range(settings['epochs']):
        started, own = time.perf_counter(), slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        loss = train(model, optimizer, parts['train'][own], rates[own], settings['clip_norm'])
        trained = time.perf_counter()
        for name in settings['heldout']:
            scores_by_epoch[f'{epoch + 1}/{name}'] = predict(model, parts[name], settings['outputs'])
        seconds = {'training_seconds': trained - started, 'evaluation_seconds': time.perf_counter() - trained}
        say({'epoch': epoch + 1, 'loss': loss, **seconds})
    seconds = time.perf_counter() - began
    np.savez(scores, **scores_by_epoch)
    say({'seconds': seconds})


if __name__ == '__main__':
    CALLER = os.getppid()
    main(*sys.argv[1:])
