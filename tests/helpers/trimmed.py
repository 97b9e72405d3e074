"""Networks whose vocabulary has words beside the letters, so that something of it can go."""

from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.network.saved_model import SavedModel, write_model
from gluon_optbert.runs.progress import Progress
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, vocabulary_of
from helpers.tiny import network, random_parameters

LETTERS = 'abcdefghijklmnopqrstuvwxyz.'
WORDS = ['[unused0]', 'abc', 'the', 'cat', '##cat', 'mat', '##s', 'sits', 'on', 'dog', '##gone', '[MARK]']
TOKENS = [*SPECIAL_TOKENS, *LETTERS, *('##' + letter for letter in LETTERS if letter != 's'), *WORDS]
TEXT = 'The cats sit on the mat.\n\nThe dogs sit on the cats.\n\nA cat sits.\n\nThe end.\n'


def whole_model(*layers, head=PRETRAINING, **widths):
    """A network with random weights and the vocabulary of `TOKENS`."""
    architecture = network(*layers, vocab_size=len(TOKENS), **widths)
    parameters = random_parameters(architecture, head=head)
    progress = Progress.from_dict({'step': 7, 'mlm_loss': 2.5, 'other': 1})
    return SavedModel(architecture, parameters, vocabulary_of(TOKENS), {'seed': 3}, progress, head=head)


def write_whole(directory, **more):
    """It as a model directory, with the files of a run, and a file of text beside it."""
    extra = {
        'metrics.jsonl': b'{"phase": "pretraining", "step": 1, "mlm": 2.0}\n',
        'origin.json': b'[{"commit": "0"}]\n',
        'other.txt': b'x',
    }
    write_model(directory, whole_model(**more), extra=extra)
    (directory.parent / 'text.txt').write_text(TEXT, encoding='utf-8')
    return directory
