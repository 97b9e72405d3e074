"""The model card of an export: ``README.md`` in Markdown, with the front matter that model hubs read.

It says what the directory and the runs behind it know, and nothing else. Its words are in the folder
`templates`. Names and labels are a user's words, and are escaped."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import ParameterCost, count_flops
from ..runs.display import markdown_table, markdown_template
from ..runs.machine import commit, versions
from ..runs.progress import NOTE, OPTIMISTIC, exceeds, score_text
from ..text.tokenizer import settings_of
from .description import DYNAMIC, MASKED_LM, QUANTISED, TRANSFORMERS_INPUTS, Deployment
from .hub import CLASSES, CODE
from .lineage import Finetuning, Lineage
from .measures import described

CARD = 'README.md'
TEMPLATE = Path(__file__).parent / 'templates' / 'model_card.md.jinja'
FORMATS = ('mxnet', 'transformers', 'onnx', 'sentence-transformers')  # what hubs call the libraries, too
LICENSE = re.compile(r'[\w.+-]{1,60}')
_WEIGHTS = ('.params', '.safetensors', '.onnx')
_BAR = 10  # characters of the longest bar
_EIGHTHS = ' ▏▎▍▌▋▊▉█'
_TAGS = {  # hubs' names of what a network does, by its kind, or by the kind of the head of its task
    'encoder': 'feature-extraction',
    **dict.fromkeys(('pretraining', MASKED_LM), 'fill-mask'),
    'question_answering': 'question-answering',
    'token_classification': 'token-classification',
}


def model_card(
    deployment: Deployment,
    *,
    format: str,
    files: Mapping[str, int],
    lineage: Lineage = Lineage(),
    license: str = '',
    origin: Mapping[str, Any] | None = None,
) -> str:
    """The content of ``README.md`` in one of `FORMATS`.

    Parameters
    ----------
    files : mapping of str to int
        The files of the directory and their bytes, the card and the manifest left out.
    license : str
        Of the weights, as hubs name it; empty if it is not known.
    origin : mapping, optional
        The commit and the versions of what exported it.
    """
    architecture, head, kind = deployment.architecture, deployment.head, deployment.kind
    int8 = any(entry['precision'] == 'int8' for entry in deployment.onnx.values())
    precision = 'int8' if int8 else deployment.precision
    onnx_inputs = next((entry['inputs'] for entry in deployment.onnx.values()), TRANSFORMERS_INPUTS)
    pruning, tuned = lineage.pruning, lineage.finetuning
    settings = pruning.recipe if pruning else {}
    vocabulary, last = deployment.vocabulary, len(deployment.vocabulary) - 1
    ids = [vocabulary[vocabulary.cls_token], last - 1, last, vocabulary[vocabulary.sep_token]]
    example = {
        'input_ids': [ids],
        'attention_mask': [[1, 1, 1, 1]],
        'token_type_ids': [[0, 0, 0, 0]],
        'token_types': [[0, 0, 0, 0]],
        'valid_length': [4],
        'masked_positions': [[1]],
    }
    when = 'before the last pruning' if pruning and pruning.again else 'before pruning'
    before = pruning.before if pruning else None
    score_table, marked = finetuning_table(tuned) if tuned and tuned.scores else ('', False)
    template = markdown_template(
        TEMPLATE,
        plain=escaped,
        millions=millions,
        thousands='{:,}'.format,
        json=json.dumps,
        commit=_commit_words,
        described=described,
    )
    text = template.render(
        {**vars(deployment), **vars(lineage)},
        format=format,
        precision=precision,
        reads=settings_of(vocabulary),
        license=license,
        front_matter=_front_matter(deployment, format, files, precision, lineage, license),
        parameters=ParameterCost().cost(architecture),
        score_table=score_table,
        note=NOTE if marked else '',
        optimistic=OPTIMISTIC[0].upper() + OPTIMISTIC[1:],
        scored='score' in deployment.measured and precision != 'float32',
        before=before,
        when=when,
        size_table=sizes_beside(architecture, before, when, files),
        picture=widths_picture(architecture, before, when),
        steps=_steps(lineage),
        settings=[
            f'{name} `{settings[name]}`'
            for name in ('method', 'prune', 'penalty', 'objective')
            if isinstance(settings.get(name), str) and re.fullmatch(r'[\w-]{1,40}', settings[name])
        ],
        origin={'versions': {}, 'commit': '', **(origin or {})},
        int8_files=[name for name in files if PurePosixPath(name).name in (QUANTISED, DYNAMIC)],
        quantised=[name for name in files if name.endswith(QUANTISED)],
        own_code=CODE.name in files,
        hub_class=CLASSES[head.kind if kind == 'task' else kind],
        onnx_files=sorted(name for name in files if name.endswith('.onnx')),
        onnx_feed={name: example[name] for name in onnx_inputs},
        mxnet_feed={name: example[name] for name in deployment.inputs},
    )
    return re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


def _steps(lineage: Lineage) -> list[str]:
    """Steps that a network went through after pre-training, in order."""
    pruned = ['pruned'] if lineage.pruning else []
    tuned = ['fine-tuned'] if lineage.finetuning else []
    trimmed, after = ['trimmed'] if lineage.trimming else [], []
    if lineage.trimming and lineage.trimming.last:
        trimmed, after = after, trimmed
    if pruned and lineage.pruning.metric:  # for a task
        return tuned + trimmed + pruned + after
    if pruned and lineage.pruning.whole_vocabulary:
        return trimmed + pruned + tuned + after
    return pruned + trimmed + tuned + after


# The front matter


def _front_matter(
    deployment: Deployment,
    format: str,
    files: Mapping[str, int],
    precision: str,
    lineage: Lineage,
    license: str,
) -> dict[str, Any]:
    """Metadata for hubs; the values are written as JSON, which YAML is a superset of."""
    head, kind = deployment.head, deployment.kind
    pruned = ['pruning', 'structured-pruning'] if lineage.pruning else []
    onnx = ['onnx'] if any(name.endswith('.onnx') for name in files) else []
    reduced = [precision] if precision != 'float32' else []
    tag = _TAGS.get(head.kind if kind == 'task' else kind, 'text-classification')
    values: dict[str, Any] = {
        **({'license': license} if license else {}),
        'library_name': format,
        'pipeline_tag': 'sentence-similarity' if format == 'sentence-transformers' else tag,
        'tags': ['bert', 'optbert', 'gluon_optbert', *pruned, *onnx, *reduced],
    }
    tuned, trimming, task = lineage.finetuning, lineage.trimming, head.task
    if tuned is None or not task or precision != 'float32' or (trimming and trimming.last):
        return values  # without scores: this is another network than the one scored
    first = next(iter(tuned.scores)).partition('/')[0] + '/'  # the other data sets are in the text
    scores = {name.removeprefix(first): one for name, one in _scores(tuned).items() if name.startswith(first)}
    result = {
        'task': {'type': values['pipeline_tag']},
        'dataset': {'type': task.lower(), 'name': task, 'split': 'validation'},
        'metrics': [{'type': name, 'name': name, 'value': round(one, 4)} for name, one in scores.items()],
    }
    return {**values, 'model-index': [{'name': f'optBERT {task}', 'results': [result]}]}


# Words, tables and bars


def escaped(text: Any) -> str:
    """Somebody else's words, in one line of Markdown that shows them as they are."""
    line = ' '.join(str(text).encode('utf-8', 'replace').decode('utf-8').split())
    return re.sub(r'([\\`*_\[\]<>|~&])', r'\\\1', ''.join(filter(str.isprintable, line)))


def millions(count: float) -> str:
    """A number of parameters or operations, such as ``13.6 M``."""
    for unit, size in (('G', 1e9), ('M', 1e6), ('k', 1e3)):
        if round(count / size * 1000, 1) >= 1000:
            return f'{count / size:.1f} {unit}'
    return f'{count:.0f}'


def _commit_words(commit: str) -> str:
    """The commit of a run; ``+`` behind it says that the working tree had changes."""
    return f', commit `{commit}`' if re.fullmatch(r'[0-9a-f]{7,40}\+?', commit) else ''


def _scores(tuned: Finetuning) -> dict[str, float]:
    """The scores without the thresholds that SQuAD's program reports beside them."""
    return {name: score for name, score in tuned.scores.items() if not name.endswith('_thresh')}


def finetuning_table(tuned: Finetuning) -> tuple[str, bool]:
    """The scores of this network and of all seeds, beside the majority class's; and whether one of them is
    marked as no better than that.
    """
    several, rows, marked = tuned.seeds > 1, [], False
    for name, score in _scores(tuned).items():
        majority, mean = tuned.majority.get(name), tuned.mean.get(name)
        marked |= not exceeds(score, majority)
        row = [escaped(name), score_text(score, majority=majority, digits=2)]
        if several:
            row.append(None if mean is None else score_text(mean, tuned.std.get(name), digits=2))
        if tuned.majority:
            row.append(None if majority is None else score_text(majority, digits=2))
        rows.append(row)
    header = [
        'data and metric',
        'this network',
        *([f'mean of {tuned.seeds} seeds'] if several else []),
        *(['majority class'] if tuned.majority else []),
    ]
    return markdown_table(header, rows, numbers=True), marked


def sizes_beside(here: Architecture, before: Architecture | None, when: str, files: Mapping[str, int]) -> str:
    """Parameters, FLOPs and the sizes of files; beside those `before`, if these are known."""
    length = min(128, here.max_length)
    costs = {
        'parameters of embeddings and encoder': lambda widths: ParameterCost().cost(widths),
        f'FLOPs of {length} tokens': lambda widths: float(sum(count_flops(widths, length).values())),
    }
    rows = []
    for name, cost in costs.items():
        rows.append([name, millions(cost(here))])
        if before is not None:
            rows[-1] += [millions(cost(before)), f'{100 * cost(here) / cost(before):.0f} %']
    header = ['', 'this network', *([when, 'share'] if before is not None else [])]
    for name, size in sorted(files.items()):
        if name.endswith(_WEIGHTS):
            rows.append([f'`{name}`', f'{size / 1e6:.1f} MB', *[None] * (len(header) - 2)])
    return markdown_table(header, rows, numbers=True)


def widths_picture(here: Architecture, before: Architecture | None = None, when: str = '') -> str:
    """The widths as bars; the longest bar of a column is the largest width before pruning, or here."""
    columns = {'heads': 'a', 'keys': 'k', 'values': 'v', 'filters': 'f'}
    every = [*here.layers, *(before.layers if before else ())]
    most = {letter: max((getattr(dims, letter) for dims in every), default=0) for letter in columns.values()}
    digits = {letter: max(len(str(width)), 2) for letter, width in most.items()}

    def cell(dims: LayerDims, letter: str) -> str:
        width = getattr(dims, letter)
        return f'{bar(width, most[letter])} {width:>{digits[letter]}}'

    hidden = f'hidden size h {here.h}' + (f', {before.h} {when}' if before else '')
    embedding = f'embedding of {here.vocab_size:,} tokens × {here.h if here.e is None else here.e}'
    heads = (f'{name} {letter}'.ljust(_BAR + 1 + digits[letter]) for name, letter in columns.items())
    lines = [f'{hidden}; {embedding}; {here.max_length} positions', '', 'layer  ' + '  '.join(heads)]
    last = 0
    for dims, equal in itertools.groupby(here.layers):
        first, last = last + 1, last + len(list(equal))
        where = str(first) if first == last else f'{first}-{last}'
        lines.append(f'{where:>5}  ' + '  '.join(cell(dims, letter) for letter in columns.values()))
    return '\n'.join(line.rstrip() for line in lines)


def bar(width: int, most: int) -> str:
    """A bar of block characters, as long as its share of the largest width; a width above zero is seen."""
    eighths = round(8 * _BAR * width / most) if most else 0
    eighths = max(eighths, 1) if width else 0
    full, rest = divmod(eighths, 8)
    return ('█' * full + (_EIGHTHS[rest] if rest else '')).ljust(_BAR)


# Writing


def check_license(license: str) -> None:
    """Raise ValueError if a licence is not a name as hubs have them; an empty one says nothing."""
    if license and not LICENSE.fullmatch(license):
        raise ValueError(f'license: wanted a name such as apache-2.0, found {license!r:.80}')


def write_card(
    directory: Path, deployment: Deployment, *, format: str, lineage: Lineage, license: str
) -> None:
    """Write the model card of a directory whose other files, but for a manifest, are there already.

    Parameters are those of `model_card`.
    """
    paths = sorted(path for path in directory.rglob('*') if path.is_file())
    files = {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}
    origin = {'commit': commit(), 'versions': versions()}
    card = model_card(deployment, format=format, files=files, lineage=lineage, license=license, origin=origin)
    (directory / CARD).write_text(card, encoding='utf-8')
