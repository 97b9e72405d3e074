"""Compare every activation of an imported Hugging Face checkpoint with Transformers on PyTorch, which the
interpreter of another environment runs."""

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import mxnet as mx
import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt
from workers import SCRIPTS, Worker

from gluon_optbert.deployment.hub import CLASSES
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_hugging_face
from gluon_optbert.network.model import OptBERTModel, build, load
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.network.settings import NetworkSettings
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.recipe import Recipe, option
from gluon_optbert.text.tokenizer import make_tokenizer

EXAMPLE = (
    'python benchmarks/compare_transformers.py downloads/bert-base-uncased --peer peers/torch/bin/python '
    '--sentences sentences.txt'
)
SCORED = 8  # tokens of a sentence whose MLM scores are compared, as in the peer
PEER = SCRIPTS / 'transformers_outputs.py'
Arrays = dict[str, np.ndarray]


class CompareRecipe(Recipe):
    """Programs to compare, and the sentences for it."""

    source: Path = option('Hugging Face directory')
    peer: Path = option('Python interpreter of an environment with torch and transformers')
    sentences: Path = option('text to compare on, one sentence a line')
    count: PositiveInt = option('sentences to take, the first ones that are not blank', 32)
    length: Annotated[int, Field(ge=3)] = option('tokens that a longer sentence is cut to', 128)
    cased: bool | None = option('keep capitals and accents; as the vocabulary is, if not given', None)
    tolerance: NonNegativeFloat = option('largest difference allowed', 1e-4)


def encode(sentences: Sequence[str], saved: SavedModel, recipe: CompareRecipe) -> Arrays:
    """Ids with [CLS] and [SEP], token types and mask, each of shape (sentences, length)."""
    words, tokenize = saved.vocabulary, make_tokenizer(saved.vocabulary, cased=recipe.cased)
    most = min(recipe.length, saved.architecture.max_length)
    rows = [[words['[CLS]'], *tokenize(sentence)[: most - 2], words['[SEP]']] for sentence in sentences]
    ids = np.full((len(rows), max(map(len, rows))), words['[PAD]'])
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return {'input_ids': ids, 'token_type_ids': np.zeros_like(ids), 'attention_mask': mask}


def activations(saved: SavedModel, feed: Arrays) -> Arrays:
    """Every activation of the network here, by the names that the peer gives them; none that hangs on random
    weights.
    """
    inputs = [
        mx.nd.array(values, dtype='float32')
        for values in (feed['input_ids'], feed['token_type_ids'], feed['attention_mask'].sum(1))
    ]
    untrained = saved.progress.untrained or ()
    pooled = 'pooler.weight' in saved.parameters and 'pooler' not in untrained
    settings = NetworkSettings(
        trainable=False,
        output_attention=True,
        output_all_encodings=True,
        use_pooler=pooled,
        use_decoder=False,
        use_classifier=False,
    )
    network = OptBERTModel(saved.architecture, settings)
    network.initialize(mx.init.Zero())
    load(network, saved.parameters)
    encoded, attention, *rest = network(*inputs)
    arrays = {f'encoded of layer {i}': value for i, value in enumerate(encoded)}
    arrays.update((f'attention of layer {i}', value) for i, value in enumerate(attention))
    arrays.update(zip(['pooled'], rest))
    whole = build(saved.architecture, saved.parameters, head=saved.head, trainable=False)
    if saved.head.outputs:
        arrays['task scores'] = whole(*inputs)
    else:
        count, length = feed['input_ids'].shape
        first = mx.nd.array(np.tile(np.arange(min(SCORED, length)), (count, 1)))
        _, _, next_sentence, masked = whole(*inputs, first)
        scores = (('MLM scores', masked, {'mlm'}), ('NSP scores', next_sentence, {'pooler', 'nsp'}))
        arrays.update({name: value for name, value, parts in scores if not parts & set(untrained)})
    return {name: value.asnumpy() for name, value in arrays.items()}


def peer_activations(
    recipe: CompareRecipe, saved: SavedModel, feed: Arrays, sentences: Sequence[str]
) -> tuple[Arrays, dict[str, Any]]:
    """The same of Transformers, and what it says of itself; RunFailed with the last line that it said."""
    with tempfile.TemporaryDirectory() as directory:
        inputs, outputs = Path(directory, 'inputs.npz'), Path(directory, 'outputs.npz')
        np.savez(inputs, sentences=np.array(sentences), **feed)
        words = [recipe.peer, PEER, recipe.source, f'Bert{CLASSES[saved.head.kind]}', inputs, outputs]
        peer = Worker(str(recipe.peer), words, threads=None)
        peer.close()
        with np.load(outputs, allow_pickle=False) as arrays:
            return dict(arrays), peer.versions


def differences(arrays: Arrays, wanted: Arrays, mask: np.ndarray) -> list[tuple[str, float, float]]:
    """Name, largest difference and largest value of every activation that both have, at the tokens that are
    no padding.
    """
    rows = []
    for name, here in arrays.items():
        there = wanted[name]
        if name.startswith('attention'):  # (batch, heads, length, length), one distribution a row
            here, there = (values.transpose(0, 2, 1, 3) for values in (here, there))
        if here.ndim > 2:
            tokens = mask[:, : here.shape[1]].astype(bool)
            here, there = here[tokens], there[tokens]
        rows.append((name, float(np.abs(here - there).max()), float(np.abs(there).max())))
    return rows


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; fail if an activation is beyond the tolerance or a sentence has other ids."""
    recipe = parse(CompareRecipe, argv, description=__doc__, positional='source', example=EXAMPLE)
    lines = recipe.sentences.read_text(encoding='utf-8', errors='replace').splitlines()
    sentences = [line.strip() for line in lines if line.strip()][: recipe.count]
    saved = convert(read_hugging_face(recipe.source)).model
    feed = encode(sentences, saved, recipe)
    wanted, peer = peer_activations(recipe, saved, feed, sentences)
    rows = differences(activations(saved, feed), wanted, feed['attention_mask'])
    print(
        f'{len(sentences)} sentences, {int(feed["attention_mask"].sum())} tokens, and both networks '
        f'read the ids made here; Transformers {peer["transformers"]} on PyTorch {peer["torch"]}\n'
    )
    cells = [(name, f'{difference:.1e}', f'{value:.3g}') for name, difference, value in rows]
    print(markdown_table(['activation', 'largest difference', 'largest value'], cells))
    name, worst, _ = max(rows, key=lambda row: row[1])
    problems = []
    if not worst <= recipe.tolerance:
        problems.append(f'{name} differs by {worst:.1e}, more than {recipe.tolerance:.0e}')
    if peer['other_ids']:
        number = min(map(int, peer['other_ids']))
        problems.append(
            f'the ids of {len(peer["other_ids"])} sentences differ, first of {sentences[number]!r:.60}; see '
            'do_lower_case, strip_accents and the vocabulary that Transformers reads beside the checkpoint'
        )
    if problems:
        raise RunFailed('not the same: ' + '; '.join(problems))
    print(f'\nagreed: the same ids of every sentence, and all activations within {recipe.tolerance:.0e}')


if __name__ == '__main__':
    sys.exit(main())
