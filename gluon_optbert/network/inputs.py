"""The inputs and outputs of a network by name, with their shapes."""

INPUTS = {
    'input_ids': ('batch', 'length'),
    'token_types': ('batch', 'length'),
    'valid_length': ('batch',),
    'masked_positions': ('batch', 'masked'),
}
TOKEN_INPUTS = ('input_ids', 'token_types', 'valid_length')  # all that an encoder or a task's network reads
OUTPUTS = {
    'encoded': ('batch', 'length', 'h'),
    'pooled': ('batch', 'h'),
    'next_sentence_scores': ('batch', 2),
    'masked_scores': ('batch', 'masked', 'vocab_size'),
}
