"""Training steps of Transformers' BertForPreTraining, eager, AdamW: python torch_training.py THREADS CONFIG
PRECISION

CONFIG is JSON for its BertConfig, with the dropout. PRECISION is float32, or bfloat16 for PyTorch's autocast:
weights, gradients and the optimizer are float32 then, and the products of the forward pass and of its
gradients bfloat16.
"""

import json
import sys

import torch
import transformers
from protocol import serve, training_inputs

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
config = transformers.BertConfig(**json.loads(sys.argv[2]))
model = transformers.BertForPreTraining(config).train()
low = sys.argv[3] == 'bfloat16'
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)


def run(inputs):
    """One step: forward, backward, update."""
    feed = {name: torch.from_numpy(value) for name, value in inputs.items()}
    labels = torch.full_like(feed['input_ids'], -100)  # what Transformers does not predict
    labels.scatter_(1, feed['masked_positions'], feed['masked_ids'])
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=low):
        loss = model(
            feed['input_ids'],
            token_type_ids=feed['token_types'],
            labels=labels,
            attention_mask=torch.ones_like(feed['input_ids']),
            next_sentence_label=feed['next_sentence_labels'],
        ).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach().float().numpy()]


serve(
    run,
    {'torch': torch.__version__, 'transformers': transformers.__version__},
    config.vocab_size,
    training_inputs,
)
