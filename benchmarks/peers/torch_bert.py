"""Transformers' BertModel with its fastest attention: python torch_bert.py WEIGHTS.npz THREADS VOCAB_SIZE
CONFIG [WAY …]

WEIGHTS has the names of Transformers' checkpoints, CONFIG is JSON for its BertConfig. It is eager and in
float32; the ways are ``bfloat16`` for weights and activations in it, and ``compile`` for torch.compile.
"""

import json
import sys

import numpy as np
import torch
import transformers
from protocol import serve

torch.set_num_threads(int(sys.argv[2]))
config = transformers.BertConfig(**json.loads(sys.argv[4]), attn_implementation='sdpa')
model = transformers.BertModel(config).eval()
with np.load(sys.argv[1]) as arrays:
    model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files}, strict=False)
    missing = set(dict(model.named_parameters())) - set(arrays.files)
    assert not missing, missing
ways = sys.argv[5:]
if 'bfloat16' in ways:
    model = model.to(torch.bfloat16)
if 'compile' in ways:
    model = torch.compile(model)


def run(inputs):
    """Forward, down to NumPy; padding is set to zero, as in the exports."""
    ids = torch.from_numpy(inputs['input_ids'].astype(np.int64))
    valid = torch.arange(ids.shape[1])[None] < torch.from_numpy(inputs['valid_length'])[:, None]
    with torch.inference_mode():
        answer = model(
            ids,
            attention_mask=valid.long(),
            token_type_ids=torch.from_numpy(inputs['token_types'].astype(np.int64)),
        )
        encoded = answer.last_hidden_state * valid[..., None]
    return [encoded.float().numpy(), answer.pooler_output.float().numpy()]


serve(run, {'torch': torch.__version__, 'transformers': transformers.__version__}, int(sys.argv[3]))
