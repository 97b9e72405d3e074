"""The batches that benchmarks/compare_finetuning.py hands to a peer, NumPy alone.

The instances of a part lie in a row, as in `gluon_optbert.tasks.features`; batch b is widths[b] tokens wide
and has the instances rows[row_starts[b]:row_starts[b + 1]]. The parts are ``train``, whose batches
are those of all epochs in order, and ``heldout/NAME``, which comes without labels."""

import numpy as np


def batches(arrays, part, first=0, last=None):
    """Some batches of a part, by their numbers: ``rows``, the numbers of the instances, shape (b,);
    ``input_ids``, ``token_type_ids`` and ``attention_mask``, of int64 and shape (b, width); and, in training,
    ``labels``, shape (b,).
    """
    names = ('ids', 'starts', 'seconds', 'rows', 'row_starts', 'widths')
    ids, starts, seconds, order, row_starts, widths = (arrays[f'{part}/{name}'] for name in names)
    labels = arrays[f'{part}/labels'] if part == 'train' else None
    for number in range(first, len(widths) if last is None else last):
        rows = order[row_starts[number] : row_starts[number + 1]]
        lengths, columns = starts[rows + 1] - starts[rows], np.arange(widths[number])
        mask = columns < lengths[:, np.newaxis]
        padded = np.zeros(mask.shape, np.int64)
        for target, row, length in zip(padded, rows, lengths):
            target[:length] = ids[starts[row] : starts[row] + length]
        batch = {
            'rows': rows,
            'input_ids': padded,
            'attention_mask': mask.astype(np.int64),
            'token_type_ids': ((columns >= seconds[rows][:, np.newaxis]) & mask).astype(np.int64),
        }
        yield batch if labels is None else {**batch, 'labels': labels[rows]}
