"""The model card of an export: ``README.md`` in Markdown, with the front matter that model hubs read.

It says what the directory and the runs behind it know, and nothing else. Names and labels are a user's words,
and are escaped."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING, Head
from ..runs.machine import commit, versions
from ..tasks.task import known_head
from ..text.tokenizer import is_cased
from .card_parts import (
    commit_words,
    finetuning_table,
    millions,
    plain,
    pruning_lines,
    scores_in_percent,
    size_table,
    trimming_line,
    widths_picture,
)
from .card_usage import Usage, pipeline_tag, used
from .description import inputs_of
from .measures import described
from .onnx_names import DYNAMIC, QUANTISED
from .story import Story, story_of

CARD = 'README.md'
# of hubs, by the format of an export
LIBRARIES = {
    'mxnet': 'mxnet',
    'transformers': 'transformers',
    'onnx': 'onnx',
    'sentence-transformers': 'sentence-transformers',
}
LICENSE = re.compile(r'[\w.+-]{1,60}')


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a card is made of.

    Parameters
    ----------
    architecture : Architecture
    head : Head
    kind : str
        What is computed: ``encoder``, ``pretraining`` or ``task``.
    format : str
        A key of `LIBRARIES`.
    files : mapping of str to int
        The files of the directory with their bytes, the card and the manifest left out.
    precision : str
    measured : mapping
        What the export measured of itself.
    untrained : tuple of str
        The parts that are random.
    lower_case : bool
        Whether text is lower-cased.
    story : Story
    license : str
        Of the weights, as hubs name it; empty if it is not known.
    origin : mapping
        ``commit`` and ``versions`` of what wrote the export.
    usage : Usage
        How the directory is loaded.
    text_length : int, optional
        Tokens that a text is cut to before the network reads it; its positions unless given.
    """

    architecture: Architecture
    head: Head
    kind: str
    format: str
    files: Mapping[str, int]
    precision: str = 'float32'
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    untrained: Tuple[str, ...] = ()
    lower_case: bool = True
    story: Story = Story()
    license: str = ''
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    usage: Usage = Usage()
    text_length: Optional[int] = None


def model_card(facts: CardFacts) -> str:
    """The content of ``README.md``."""
    sections = [
        ('Scores', _scores(facts)),
        ('Size', size_table(facts.architecture, facts.story.pruning, facts.files)),
        ('Widths', widths_picture(facts.architecture, facts.story.pruning)),
        ('How to use it', used(facts.format, facts.kind, facts.head, facts.files, facts.usage)),
        ('How it was made', _made(facts)),
        ('Limits', _limits(facts)),
    ]
    body = [f'# {_title(facts)}', _opening(facts)]
    for heading, content in sections:
        if content:
            body += [f'## {heading}', content]
    return f'{_front_matter(facts)}\n' + '\n\n'.join(body) + '\n'


# The front matter


def _front_matter(facts: CardFacts) -> str:
    """The block between two lines of dashes; its values are JSON, which YAML is a superset of."""
    pruned = ['pruning', 'structured-pruning'] if facts.story.pruning else []
    onnx = ['onnx'] if any(name.endswith('.onnx') for name in facts.files) else []
    quantised = [facts.precision] if facts.precision != 'float32' else []
    tags = ['bert', 'optbert', 'gluon_optbert', *pruned, *onnx, *quantised]
    values: Dict[str, Any] = {
        **({'license': facts.license} if facts.license else {}),
        'library_name': LIBRARIES[facts.format],
        'pipeline_tag': pipeline_tag(facts.format, facts.kind, facts.head),
        'tags': list(dict.fromkeys(tags)),
    }
    index = _model_index(facts)
    if index:
        values['model-index'] = index
    lines = [f'{name}: {json.dumps(value)}' for name, value in values.items()]
    return '\n'.join(['---', *lines, '---'])


def _model_index(facts: CardFacts) -> List[Dict[str, Any]]:
    """The scores as hubs read them; nothing if the export is another network than the one scored."""
    tuned = facts.story.finetuning
    trimmed = facts.story.trimming is not None and facts.story.trimming.last
    if tuned is None or not facts.head.task or facts.precision != 'float32' or trimmed:
        return []
    metrics = [
        {'type': metric, 'name': metric, 'value': round(score, 4)}
        for metric, score in _by_metric(tuned.scores)
    ]
    task = {'type': pipeline_tag(facts.format, facts.kind, facts.head)}
    dataset = {'type': facts.head.task.lower(), 'name': facts.head.task, 'split': 'validation'}
    result = {'task': task, 'dataset': dataset, 'metrics': metrics}
    return [{'name': f'optBERT {facts.head.task}', 'results': [result]}]


def _by_metric(scores: Mapping[str, float]) -> List[Tuple[str, float]]:
    """The scores on the first data set, by metric; the others are in the text."""
    first = next(iter(scores)).partition('/')[0]
    return [
        (name.partition('/')[2], score)
        for name, score in scores_in_percent(scores)
        if name.partition('/')[0] == first
    ]


# The sections


def _title(facts: CardFacts) -> str:
    size = millions(ParameterCost().cost(facts.architecture))
    heads = 'with the MLM head' if _scores_tokens_alone(facts) else 'with the heads of pre-training'
    words = {'encoder': 'encoder', 'pretraining': heads}
    what = words.get(facts.kind) or f'for {plain(facts.head.task or facts.head.kind.replace("_", " "))}'
    return f'{"Pruned " if facts.story.pruning else ""}BERT {what}, {size} parameters'


def _scores_tokens_alone(facts: CardFacts) -> bool:
    """Whether an export of pre-training gives the scores of tokens and nothing else: Optimum's."""
    return facts.kind == 'pretraining' and facts.format == 'onnx'


def _opening(facts: CardFacts) -> str:
    head = facts.head
    gives = {
        'encoder': 'It gives the encoded tokens of a text and the pooled output.',
        'pretraining': 'It gives encoded tokens, and the scores of masked tokens and of the next sentence.',
    }.get(facts.kind)
    if _scores_tokens_alone(facts):
        gives = 'It gives the scores of every token of a text over the vocabulary.'
    if facts.format == 'sentence-transformers':
        gives = 'It gives an embedding of a text: the mean of its encoded tokens, scaled to length 1.'
    if gives is None and head.kind == 'classification':
        names = [
            plain(label) if head.name_of(label) == label else f'{plain(label)} ({plain(head.name_of(label))})'
            for label in head.labels
        ]
        texts = {2: ' of a sentence', 3: ' of a pair of texts'}.get(len(head.columns), '')
        gives = f'It gives the label{texts}: {", ".join(names[:40])}{", …" if len(names) > 40 else ""}.'
    elif gives is None and head.kind == 'regression':
        gives = 'It gives one number for its texts.'
    elif gives is None:
        gives = 'It finds the answer to a question in a text.'
    pruned = facts.story.pruning
    made = 'A BERT network.'
    if pruned and not pruned.metric:
        made = 'A BERT whose widths were pruned during pre-training, by optBERT.'
    elif pruned:
        made = f'A BERT whose widths were pruned for {_pruned_for(facts)}, by optBERT.'
    return f'{made} {gives} It was exported by gluon_optbert, in {facts.precision}.'


def _pruned_for(facts: CardFacts) -> str:
    """What a network was pruned for that was not pruned for pre-training."""
    if facts.head == PRETRAINING:
        return 'the embeddings of sentences'
    return plain(facts.head.task or 'its task')


def _scores(facts: CardFacts) -> str:
    """The scores of fine-tuning, and those that the export measured."""
    parts = []
    tuned = facts.story.finetuning
    if tuned is not None and tuned.scores:
        parts.append(finetuning_table(tuned))
    held_out = facts.story.held_out
    if held_out is not None:
        parts.append(
            f'On {held_out.instances:,} held-out instances, the loss of masked tokens is '
            f'{held_out.mlm_loss:.3f} nats and their accuracy {100 * held_out.mlm_accuracy:.1f} %.'
        )
    if 'score' in facts.measured and facts.precision != 'float32':
        parts.append(
            f'This export in {facts.precision} scored {facts.measured["score"]:.4f} on labelled text, and '
            f'the same network in float32 {facts.measured["float32_score"]:.4f}.'
        )
    return '\n\n'.join(parts)


def _made(facts: CardFacts) -> str:
    """What was done to the network, a line each."""
    story, lines = facts.story, []
    if story.checkpoint:
        lines.append(f'Imported from a checkpoint called {plain(story.checkpoint)}.')
    if story.pretrained_steps:
        lines.append(f'Pre-trained for {story.pretrained_steps:,} steps, as far as its directory says.')
    if story.trained_steps:
        lines.append(f'Trained for {story.trained_steps:,} steps, those of recovery from pruning included.')
    trimmed = [trimming_line(story.trimming)] if story.trimming else []
    first = [] if not trimmed or story.trimming.last else trimmed
    tuned, pruned = [], pruning_lines(story.pruning) if story.pruning else []
    if story.finetuning is not None:
        task = f' on {plain(facts.head.task)}' if facts.head.task else ''
        tuned.append(f'Fine-tuned{task}{commit_words(story.finetuning.commit)}.')
    if story.pruning and story.pruning.metric:
        lines += [*tuned, *first, *pruned]
    elif story.pruning and story.pruning.whole_vocabulary:
        lines += [*first, *pruned, *tuned]
    else:
        lines += [*pruned, *first, *tuned]
    if trimmed and story.trimming.last:
        lines += [f'{trimmed[0]} Scores and losses are those before that.']
    versions = facts.origin.get('versions') or {}
    listed = ', '.join(f'{name} {version}' for name, version in versions.items())
    with_versions = f' with {listed}' if listed else ''
    lines.append(f'Exported{with_versions}{commit_words(facts.origin.get("commit") or "")}.')
    return '\n'.join(f'- {line}' for line in lines)


def _limits(facts: CardFacts) -> str:
    """What a user should know before relying on the network, a line each."""
    positions = facts.architecture.max_length
    longer = 'cut, or read in windows' if facts.head.kind == 'question_answering' else 'cut'
    if facts.format in ('transformers', 'onnx'):
        longer = 'an error unless the tokenizer is called with `truncation=True`'
    length = f'It reads at most {positions} tokens; longer text is {longer}.'
    if facts.text_length:
        length = f'Text is cut to {facts.text_length} tokens, as in fine-tuning; {positions} are possible.'
    lines = [
        length,
        'Text is lower-cased, and accents are removed.' if facts.lower_case else 'Capitals are kept.',
    ]
    if facts.story.trimming:
        lines.append(
            'Its vocabulary is that of one kind of text. In other text, more words split into pieces.'
        )
    if 'pooler' in facts.untrained:
        lines.append(
            'The pooler is random, for the checkpoint had none: take the encoded tokens, not its output.'
        )
    if facts.kind == 'encoder':
        lines.append('Cosines of its embeddings mean something only if the network was trained for that.')
    if facts.precision != 'float32':
        agreement = facts.measured.get('agreement')
        measured = f': on {agreement["texts"]} texts, {described(agreement)}' if agreement else ''
        lines.append(f'Results in {facts.precision} differ from those in float32{measured}.')
    int8 = [f'`{name}`' for name in facts.files if PurePosixPath(name).name in (QUANTISED, DYNAMIC)]
    if int8:
        lines.append(f'Results of {", ".join(int8)}, in int8, differ from those in float32.')
    if facts.license:
        lines.append(f'The licence of the weights is {plain(facts.license)}, as their exporter said.')
    else:
        lines.append(
            'The licence of the weights is not stated. That of the first checkpoint may hold for them.'
        )
    return '\n'.join(f'- {line}' for line in lines)


def _example_ids(vocabulary: Any) -> Tuple[int, ...]:
    """The ids of a text of two tokens: the last ones of the vocabulary, between [CLS] and [SEP]."""
    last = len(vocabulary) - 1
    return vocabulary[vocabulary.cls_token], last - 1, last, vocabulary[vocabulary.sep_token]


def check_license(license: str) -> None:
    """Raise ValueError if a licence is not a name as hubs have them; an empty one says nothing."""
    if license and not LICENSE.fullmatch(license):
        raise ValueError(f'license: wanted a name such as apache-2.0, found {license!r:.80}')


def write_card(
    directory: Path,
    saved: Any,
    kind: str,
    *,
    format: str,
    precision: str = 'float32',
    measured: Optional[Mapping[str, Any]] = None,
    untrained: Sequence[str] = (),
    onnx_inputs: Sequence[str] = Usage.onnx_inputs,
    story: Optional[Story] = None,
    license: str = '',
    text_length: Optional[int] = None,
) -> None:
    """Write the model card of a directory whose other files, but for a manifest, are there already.

    Parameters
    ----------
    directory : Path
    saved : SavedModel
        The model that was exported.
    kind : str
        What is computed: ``encoder``, ``pretraining`` or ``task``.
    format : str
        A key of `LIBRARIES`.
    precision : str
    measured : mapping, optional
        What the export measured of itself.
    untrained : sequence of str
        The parts that are random.
    onnx_inputs : sequence of str
        The names of the inputs of the ONNX files.
    story : Story, optional
        By default what the model itself knows.
    license : str
        Of the weights, as hubs name it.
    text_length : int, optional
        Tokens that a text is cut to before the network reads it; its positions unless given.

    Raises
    ------
    ValueError
        If the licence is no name.
    """
    check_license(license)
    files = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob('*'))
        if path.is_file()
    }
    facts = CardFacts(
        saved.architecture,
        known_head(saved.head),
        kind,
        format,
        files,
        precision=precision,
        measured=measured or {},
        untrained=tuple(untrained),
        lower_case=not is_cased(saved.vocabulary),
        story=story or story_of(saved),
        license=license,
        origin={'commit': commit(), 'versions': versions()},
        usage=Usage(tuple(onnx_inputs), tuple(inputs_of(kind)), _example_ids(saved.vocabulary)),
        text_length=text_length,
    )
    (directory / CARD).write_text(model_card(facts), encoding='utf-8')
