"""Steps of recovery by states alone, written plainly in PyTorch: python torch_recovery.py THREADS NETWORKS
PRECISION

NETWORKS is JSON: the layers of teacher and student, each a list of [a, k, v, f], and h, vocab_size and
max_length of both. PRECISION is float32, or bfloat16 for PyTorch's autocast. Weights are random. The teacher
runs in inference mode, word embeddings are frozen, and AdamW is the fused one.
"""

import json
import sys

import torch
from protocol import serve
from torch import nn
from torch.nn import functional

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
networks, low = json.loads(sys.argv[2]), sys.argv[3] == 'bfloat16'
h = networks['h']


class Layer(nn.Module):
    """A layer of any widths."""

    def __init__(self, a, k, v, f):
        super().__init__()
        self.a = a
        self.query, self.key, self.value = nn.Linear(h, a * k), nn.Linear(h, a * k), nn.Linear(h, a * v)
        self.output, self.expand, self.contract = nn.Linear(a * v, h), nn.Linear(h, f), nn.Linear(f, h)
        self.norms = nn.ModuleList([nn.LayerNorm(h), nn.LayerNorm(h)])

    def forward(self, states, mask):
        query, key, value = (
            one(states).unflatten(2, (self.a, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        states = self.norms[0](states + self.output(context.transpose(1, 2).flatten(2)))
        return self.norms[1](states + self.contract(functional.gelu(self.expand(states))))


class Encoder(nn.Module):
    """BERT without heads."""

    def __init__(self, layers):
        super().__init__()
        self.words = nn.Embedding(networks['vocab_size'], h)
        self.types, self.places = nn.Embedding(2, h), nn.Embedding(networks['max_length'], h)
        self.norm, self.layers = nn.LayerNorm(h), nn.ModuleList(Layer(*widths) for widths in layers)

    def forward(self, ids, types, real):
        states = self.words(ids) + self.types(types) + self.places(torch.arange(ids.shape[1]))
        states = self.norm(states)
        for layer in self.layers:
            states = layer(states, real[:, None, None, :])
        return states.float() * real[:, :, None]


teacher, student = (Encoder(networks[name]) for name in ('teacher', 'student'))
student.words.weight.requires_grad_(False)
trained = [one for one in student.parameters() if one.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-5, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def run(inputs):
    """One step: both networks, the loss, backward, update."""
    feed = {name: torch.from_numpy(value) for name, value in inputs.items()}
    ids, valid = feed['input_ids'], feed['valid_length']
    real = torch.arange(ids.shape[1]) < valid[:, None]
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=low):
        with torch.inference_mode():
            wanted = teacher(ids, feed['token_types'], real)
        wanted = wanted.clone()
        states = student(ids, feed['token_types'], real)
    ours, theirs = (functional.normalize(one.sum(dim=1) / valid[:, None], dim=1) for one in (states, wanted))
    gap = ((ours @ ours.T - theirs @ theirs.T) ** 2).sum() / (len(ids) * (len(ids) - 1))
    loss = (1 - (ours * theirs).sum(dim=1)).mean() + 20 * gap
    loss = loss + 0.5 * ((states - wanted) ** 2).sum() / (wanted**2).sum()
    loss.backward()
    nn.utils.clip_grad_norm_(trained, 10.0)
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach().numpy()]


serve(run, {'torch': torch.__version__}, networks['vocab_size'])
