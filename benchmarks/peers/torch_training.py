"""Training steps of Transformers' BertForPreTraining, eager, with the AdamW that its Trainer takes: python
torch_training.py THREADS CONFIG PRECISION SCORED

CONFIG is JSON for its BertConfig, with the dropout. PRECISION is float32, or bfloat16 for PyTorch's autocast:
weights, gradients and the optimizer are float32 then, and the products of the forward pass and of its
gradients bfloat16. SCORED is all for the model's own forward pass, which scores every token against the
vocabulary, or masked, which gathers the masked tokens before its heads.
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
low, masked = sys.argv[3] == 'bfloat16', sys.argv[4] == 'masked'
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)


def loss_of_all(feed):
    """The loss as Transformers computes it."""
    labels = torch.full_like(feed['input_ids'], -100)  # what it does not predict
    labels.scatter_(1, feed['masked_positions'], feed['masked_ids'])
    return model(
        feed['input_ids'],
        token_type_ids=feed['token_types'],
        labels=labels,
        attention_mask=torch.ones_like(feed['input_ids']),
        next_sentence_label=feed['next_sentence_labels'],
    ).loss


def loss_of_masked(feed):
    """The same of as many scores as there are masked tokens."""
    mask = torch.ones_like(feed['input_ids'])
    encoded = model.bert(feed['input_ids'], token_type_ids=feed['token_types'], attention_mask=mask)
    places = feed['masked_positions'].unsqueeze(-1).expand(-1, -1, config.hidden_size)
    scores, related = model.cls(encoded.last_hidden_state.gather(1, places), encoded.pooler_output)
    mlm = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), feed['masked_ids'].flatten())
    return mlm + torch.nn.functional.cross_entropy(related.float(), feed['next_sentence_labels'].flatten())


def run(inputs):
    """One step: forward, backward, update."""
    feed = {name: torch.from_numpy(value) for name, value in inputs.items()}
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=low):
        loss = (loss_of_masked if masked else loss_of_all)(feed)
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
