"""Outputs of a checkpoint in Transformers on PyTorch: run by benchmarks/compare_transformers.py, in another
environment.
"""

import sys

import numpy as np
import torch
import transformers
from protocol import speaker


def main(directory, network, inputs, outputs):
    """Read ids and the sentences they stand for from `inputs` (npz), write every activation to `outputs`
    (npz).
    """
    say = speaker()
    with np.load(inputs, allow_pickle=False) as arrays:
        names = ('input_ids', 'token_type_ids', 'attention_mask')
        feed = {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in names}
        sentences = [str(sentence) for sentence in arrays['sentences']]
    model = (
        getattr(transformers, network)
        .from_pretrained(directory, attn_implementation='eager', dtype=torch.float32)
        .eval()
    )
    with torch.no_grad():
        base = model.bert(**feed, output_hidden_states=True, output_attentions=True)
        whole = model(**feed)
    arrays = {f'encoded of layer {i}': value for i, value in enumerate(base.hidden_states[1:])}
    arrays.update((f'attention of layer {i}', value) for i, value in enumerate(base.attentions))
    if base.pooler_output is not None:
        arrays['pooled'] = base.pooler_output
    if network == 'BertForPreTraining':
        arrays.update(
            {'MLM scores': whole.prediction_logits[:, :8], 'NSP scores': whole.seq_relationship_logits}
        )
    elif network == 'BertForQuestionAnswering':
        arrays['task scores'] = torch.stack([whole.start_logits, whole.end_logits], dim=-1)
    else:
        arrays['task scores'] = whole.logits
    np.savez(outputs, **{name: value.numpy() for name, value in arrays.items()})
    length = feed['input_ids'].shape[1]
    ids = transformers.BertTokenizerFast.from_pretrained(directory)(
        sentences, truncation=True, max_length=length
    )['input_ids']
    masks = feed['attention_mask'].bool()
    others = [i for i, row in enumerate(ids) if row != feed['input_ids'][i][masks[i]].tolist()]
    versions = {'torch': torch.__version__, 'transformers': transformers.__version__}
    say({'ready': {**versions, 'other_ids': {i: ids[i] for i in others}}})


if __name__ == '__main__':
    main(*sys.argv[1:])
