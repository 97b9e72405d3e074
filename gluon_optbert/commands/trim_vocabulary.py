"""Trim the vocabulary of a network to a text: tokens that the text does not use lose their embedding.

Special tokens and single characters stay."""

from __future__ import annotations

from typing import List, Optional, Sequence

from .. import TrimRecipe, trim_vocabulary
from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING
from ..pruning.trimming import Trimmed
from ..runs.command_line import parse
from ..text.trimming import Splits, SplitWord
from .starting import command, line


def _shown(word: SplitWord) -> str:
    return f'  {word.word} ({word.uses:,}): {" ".join(word.before)} -> {" ".join(word.after)}'


def described_splits(splits: Splits) -> List[str]:
    """How the words of a text split now, for people."""
    lines = [
        f'text: {splits.words:,} words, {splits.tokens:,} tokens; {splits.tokens_gone:,} of these '
        f'({splits.share:.2%}) are gone and split, so there are {splits.tokens_after:,} tokens now'
    ]
    if splits.examples:
        lines += ['the most frequent words that split anew:', *map(_shown, splits.examples)]
    lines.append(f'unknown words: {splits.unknown:,} before, {splits.unknown_after:,} now')
    if splits.now_unknown:
        lines += ['the most frequent words that are unknown now:', *map(_shown, splits.now_unknown)]
    return lines


def described(trimmed: Trimmed) -> List[str]:
    """What went, for people."""
    before, after = trimmed.before, trimmed.model.architecture
    cost, left = ParameterCost().cost(before), ParameterCost().cost(after)
    return [
        *described_splits(trimmed.splits),
        f'tokens: {before.vocab_size:,} before, {after.vocab_size:,} left '
        f'({after.vocab_size / before.vocab_size:.0%})',
        f'parameters of embeddings and encoder: {cost / 1e6:.2f} M before, {left / 1e6:.2f} M left '
        f'({left / cost:.0%}), {(cost - left) / 1e6:.2f} M went',
    ]


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Trim, and say what went and how the text splits now."""
    words = ['--model', 'models/base', '--text', 'wiki', '--output', 'models/trimmed']
    recipe = parse(
        TrimRecipe, argv, description=__doc__, example=line('optbert-trim-vocabulary', *words), positional=''
    )
    trimmed = trim_vocabulary(recipe)
    print('\n'.join(described(trimmed)))
    print(f'wrote {recipe.output}')
    if trimmed.model.head == PRETRAINING:
        making = ['--input', 'TEXT_DIR', '--vocab', recipe.output / 'vocab.txt', '--output', 'SHARDS']
        anew = line('optbert-make-shards', *making)
        print(f'shards of the whole vocabulary do not fit it; to train it, make them anew: {anew}')
    print(f'next: {line("optbert-verify", recipe.output)}')
