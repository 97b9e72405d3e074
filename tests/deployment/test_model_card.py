"""The model card of an export says what is known, loads in hubs, and runs where it is code."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.commands import succeed
from helpers.exported import with_head
from helpers.pages import HOSTILE
from helpers.tiny import TOKENS, network, random_alphas, vocabulary
from hypothesis import given, strategies as st

import gluon_optbert
from gluon_optbert.architecture.embedding import Embedding
from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.rounds import Round
from gluon_optbert.cutting.selection import packed_alphas
from gluon_optbert.deployment.description import MASKED_LM, Deployment, onnx_entry, read_description
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.deployment.lineage import Finetuning, Lineage, Pruning, Trimming
from gluon_optbert.deployment.model_card import FORMATS, escaped, millions, model_card
from gluon_optbert.runs.progress import HeldOut, TaskScores
from gluon_optbert.text.tokenizer import TokenizerSettings, vocabulary_of

EVEN = network((2, 4, 4, 8), (2, 4, 4, 8), (2, 4, 4, 8))
UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (1, 4, 2, 0), e=5)
SST = Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('sentence', 'label'))
STS = Head('regression', (), 'STS-B', (), ('a', 'b', 'score'))
SQUAD = Head('question_answering', task='SQuAD2.0')
MXNET = {'model-0000.params': 1_000_000, 'model-symbol.json': 20_000, 'vocab.txt': 10}
ONNX = {**MXNET, 'model.onnx': 2_000_000}
ORIGIN = {'commit': 'abcdef0', 'versions': {'gluon_optbert': '0.1.0', 'mxnet': '1.9.1'}}
TUNED = Finetuning(
    {'dev/accuracy': 78.784, 'dev/f1': 40.0, 'test/accuracy': 70.0},
    seeds=2,
    mean={'dev/accuracy': 77.0, 'dev/f1': 41.0},
    std={'dev/accuracy': 1.5, 'dev/f1': None},
    majority={'dev/accuracy': 50.917, 'dev/f1': 45.0},
    samples={'train': 2500, 'dev': 872},
    commit='abcdef0123',
    optimistic=True,
)


def rounds_of(sizes, measured):
    return tuple(
        Round(number, size, 1, EVEN, recovered=one) for number, (size, one) in enumerate(zip(sizes, measured))
    )


PRUNED = Pruning(
    EVEN,
    rounds_of(
        (2_000_000, 1_500_000, 1_000_000),
        [HeldOut(3.0, 0.5, instances=9), HeldOut(3.1, 0.5, instances=9), None],
    ),
    {'method': 'alpha', 'prune': 'hakvf', 'penalty': '<b>', 'objective': 'flops'},
    'abcdef0123+',
)
FOR_TASK = Pruning(
    EVEN,
    rounds_of((20, 10), [TaskScores({'accuracy': score}, 'accuracy', 9) for score in (90.0, 88.5)]),
    {},
    metric='accuracy',
    again=True,
)


def facts(architecture, head, kind, format, files, *, words=None, lineage=Lineage(), license='', **more):
    """The arguments of a card: an export, and what is known beside it."""
    origin = more.pop('origin', {})
    beside = {'format': format, 'files': files, 'lineage': lineage, 'license': license, 'origin': origin}
    return Deployment(architecture, words or vocabulary(), head, kind, **more), beside


CASED = TokenizerSettings(lowercase=False, strip_accents=False, as_is='the normalizer (NFKC): | ﬁ')
FACTS = {
    'encoder': facts(
        *(UNEVEN, PRETRAINING, 'encoder', 'mxnet', ONNX),
        untrained=('pooler',),
        words=vocabulary_of(TOKENS, settings=CASED),
        lineage=Lineage(pretrained_steps=1700, checkpoint='my_bert'),
    ),
    'pretraining': facts(
        *(UNEVEN, PRETRAINING, 'pretraining', 'mxnet', ONNX),
        origin=ORIGIN,
        lineage=Lineage(
            pruning=PRUNED, trained_steps=2120, held_out=HeldOut(2.345678, 0.56789, 0.5, 0.99, instances=1000)
        ),
    ),
    'sentences': facts(
        *(UNEVEN, SST, 'task', 'mxnet', ONNX),
        license='apache-2.0',
        origin=ORIGIN,
        lineage=Lineage(TUNED, PRUNED, 1700, checkpoint='minilm', trimming=Trimming(30522, 14750, False)),
        text_length=128,
    ),
    'sentences_int8': facts(
        *(EVEN, SST, 'task', 'mxnet', {**ONNX, 'model_dynamic.onnx': 500_000}),
        onnx={'model.onnx': onnx_entry('task', SST, 'int8', 'transformers')},
        measured={'score': 0.7, 'float32_score': 0.8, 'agreement': {'texts': 9, 'same_label': 0.9}},
    ),
    'pairs': facts(
        *(UNEVEN, STS, 'task', 'transformers', {'model.safetensors': 9_000_000, 'modeling_optbert.py': 10}),
        lineage=Lineage(Finetuning({'dev/pearson': 80.0}), FOR_TASK, trimming=Trimming(30522, 14750, True)),
    ),
    'questions_optimum': facts(
        *(UNEVEN, SQUAD, 'task', 'onnx', {'model.onnx': 2_000_000, 'model_quantized.onnx': 500_000})
    ),
    'tokens_optimum': facts(EVEN, PRETRAINING, MASKED_LM, 'onnx', {'model.onnx': 2_000_000}),
    'sentence_transformers': facts(
        *(EVEN, PRETRAINING, 'encoder', 'sentence-transformers', {'onnx/model_quantized.onnx': 500_000}),
        lineage=Lineage(
            pruning=Pruning(EVEN, PRUNED.rounds[:2], {}, metric='relative error', whole_vocabulary=30522),
            trimming=Trimming(30522, 14750, False),
        ),
    ),
}


def card_of(name):
    deployment, beside = FACTS[name]
    return model_card(deployment, **beside)


def test_a_card_reads_as_it_was_approved():
    assert card_of('sentences') == Path(__file__).with_name('approved_card.txt').read_text(encoding='utf-8')


@pytest.mark.parametrize('name', FACTS)
def test_headings_tables_lists_and_paragraphs_stand_apart(name):
    body = card_of(name).split('---\n', 2)[2]
    for block in re.sub(r'(?ms)^```.*?^```$', 'code', body).strip().split('\n\n'):
        assert re.fullmatch(r'#+ .+|(\|.*\|\n?)+|( *- .+\n?)+|[\w`].*', block), block
        assert block == block.rstrip() and (block[0] == '|' or not re.search(r'\S  ', block)), block


SAID = {
    'pairs': (
        *('import AutoModelForSequence', '- Fine-tuned on STS-B.', '- Pruned again in 1 round:'),
        *('accuracy 90.00', '- The vocabulary', '- Exported.', 'It reads at most 16 tokens'),
    ),
    'questions_optimum': ("file_name='model_quantized.onnx'", 'ORTModelForQuestionAnswering.from'),
    'sentence_transformers': ('- The vocabulary was trimmed', '- Pruned in 1 round:', '- Exported.'),
}


@pytest.mark.parametrize('name', SAID)
def test_a_card_says_how_a_network_is_used_and_was_made_in_order(name):
    places = [card_of(name).find(part) for part in SAID[name]]
    assert places == sorted(places) and places[0] > 0


def front_matter(card):
    opening, block, body = card.split('---\n', 2)
    assert opening == '' and body.startswith('# ')
    return yaml.safe_load(block)


def python_examples(card):
    return re.findall(r'```python\n(.*?)```', card, re.DOTALL)


@pytest.mark.parametrize('name', FACTS)
def test_hubs_read_what_a_card_is_about_and_its_examples_are_python(name):
    (deployment, beside), card = FACTS[name], card_of(name)
    values, files = front_matter(card), ' '.join(beside['files'])
    assert values['library_name'] == beside['format'] and values.get('license', '') == beside['license']
    assert ('pruning' in values['tags']) == bool(beside['lineage'].pruning)
    assert ('onnx' in values['tags']) == ('.onnx' in files)
    assert python_examples(card) and ('The pooler is random' in card) == ('pooler' in deployment.untrained)
    assert ('int8' in card) == bool(deployment.onnx or 'model_quantized.onnx' in files)
    for code in python_examples(card):
        compile(code, 'card', 'exec')


def test_hubs_are_not_told_scores_of_another_network():
    deployment, beside = FACTS['sentences']
    assert front_matter(model_card(deployment, **beside))['model-index']
    reduced = dataclasses.replace(deployment, onnx=FACTS['sentences_int8'][0].onnx)
    assert 'model-index' not in front_matter(model_card(reduced, **beside))
    trimming = dataclasses.replace(beside['lineage'].trimming, last=True)
    beside = {**beside, 'lineage': dataclasses.replace(beside['lineage'], trimming=trimming)}
    assert 'model-index' not in front_matter(model_card(deployment, **beside))


@pytest.mark.parametrize('text', HOSTILE)
def test_names_are_shown_and_not_obeyed(text):
    markdown = pytest.importorskip('markdown_it', reason='markdown-it-py is not installed')
    head = Head('classification', ('no', text), text, ('one', text + '!'))
    tuned = Finetuning({f'{text}/x': 1.0}, samples={text: 3})
    lineage = Lineage(tuned, checkpoint=text)
    deployment = Deployment(UNEVEN, vocabulary(), head, 'task')
    card = model_card(deployment, format='mxnet', files=MXNET, lineage=lineage)
    assert front_matter(card)['pipeline_tag'] == 'text-classification'
    reader = markdown.MarkdownIt('commonmark', {'html': True}).enable('table')
    elements = set(re.findall(r'<([a-zA-Z]\w*)', reader.render(card.split('---\n', 2)[2])))
    assert all(re.fullmatch('h1|h2|p|table|thead|tbody|tr|th|td|pre|code|ul|li', one) for one in elements)


@pytest.mark.parametrize('count', [999_949, 999_950, 999_999, 1e6, 13_560_000, 999.96e6])
def test_a_count_is_below_a_thousand_of_its_unit(count):
    number, unit = millions(count).split()
    size = {'k': 1e3, 'M': 1e6, 'G': 1e9}[unit]
    assert 1 <= float(number) < 1000
    assert float(number) * size == pytest.approx(count, abs=0.051 * size)


@given(st.text(alphabet=st.characters(blacklist_categories=()), max_size=40))
def test_other_words_stay_in_their_line(text):
    line = escaped(text)
    shown = ' '.join(text.encode('utf-8', 'replace').decode('utf-8').split())
    assert line.isprintable() and line.encode('utf-8').decode('utf-8') == line
    assert re.sub(r'\\([\\`*_\[\]<>|~&])', r'\1', line) == ''.join(filter(str.isprintable, shown))


@pytest.mark.filterwarnings('ignore:Cannot decide type')
@pytest.mark.parametrize('head', [PRETRAINING, SST, SQUAD], ids=lambda head: head.kind)
def test_the_examples_of_an_export_run(tmp_path, capsys, head):
    kind, directory = 'task' if head.outputs else 'pretraining', tmp_path / 'deploy'
    export(with_head(UNEVEN, head), directory, head=kind, onnx=True)
    card = (directory / 'README.md').read_text(encoding='utf-8')
    assert 'gluon_optbert 0.1.0' in card and '`model-0000.params`' in card and str(tmp_path) not in card
    (directory / 'README.md').write_text(card + '\nTrained by us.\n', encoding='utf-8')
    assert read_description(directory).kind == kind

    def run_example(code):
        variables = {}
        exec(compile(code.replace('DIRECTORY', str(directory)), 'card', 'exec'), variables)
        return variables.get('outputs')

    own, onnx, plain_mxnet = python_examples(card)
    run_example(own)
    assert capsys.readouterr().out.strip()
    wanted = run_example(plain_mxnet)
    wanted = (wanted[0] if isinstance(wanted, (list, tuple)) else wanted).asnumpy()
    if head == SQUAD:
        wanted = wanted[..., 0]  # ONNX gives starts and ends apart
    pytest.importorskip('onnxruntime')
    np.testing.assert_allclose(run_example(onnx)[0], wanted, atol=1e-5)  # float32, another order


@pytest.mark.parametrize('write', [export, export_onnx, export_transformers])
def test_a_licence_is_checked_before_anything_is_computed(tmp_path, write):
    for license in ('apache 2', 'a\nb', 'x' * 61):
        with pytest.raises(ValueError, match='license: wanted a name'):
            write(None, tmp_path / 'export', license=license)
    assert list(tmp_path.iterdir()) == []


def test_gates_that_are_folded_make_another_network_than_the_one_scored(tmp_path):
    alphas = random_alphas(network())
    alphas['h'][:4] = 0
    (tmp_path / 'alphas.npz').write_bytes(packed_alphas(alphas, h_gate='stream'))
    lineage = Lineage(finetuning=Finetuning({'dev/accuracy': 80.0}))
    for name, gates in (('as it is', None), ('cut', tmp_path / 'alphas.npz')):
        gluon_optbert.export(with_head(network(), SST), tmp_path / name, alphas=gates, lineage=lineage)
        card = (tmp_path / name / 'README.md').read_text(encoding='utf-8')
        assert ('80.00' in card) is (gates is None)


WRITTEN = {
    'mxnet': {'model-symbol.json', 'model-0000.params', 'model.onnx', 'architecture.json', 'manifest.json'},
    'transformers': {'model.safetensors', 'modeling_optbert.py'},
    'onnx': {'model.onnx', 'model_quantized.onnx'},
    'sentence-transformers': {
        'model.safetensors',
        'modeling_optbert.py',
        'modules.json',
        'sentence_bert_config.json',
        'config_sentence_transformers.json',
        '1_Pooling/config.json',
        'onnx/model.onnx',
        'onnx/model_quantized.onnx',
    },
}
TOKENIZER = {'config.json', 'special_tokens_map.json', 'tokenizer.json', 'tokenizer_config.json'}


@pytest.mark.parametrize('format', FORMATS)
def test_the_command_writes_a_directory_for_each_library_and_its_card(tmp_path, pruned_run, format):
    model = pruned_run[0] / 'round-2' / 'model'
    (tmp_path / 'text').write_text('a b c\nd e f\n')
    words = ['--format', format, '--output', tmp_path / 'out', '--license', 'apache-2.0']
    words += {'mxnet': ['--onnx'], 'transformers': []}.get(
        format, ['--precision', 'int8', '--calibrate', tmp_path / 'text']
    )
    succeed('tools/export_model.py', model, *words)
    names = {path.relative_to(tmp_path / 'out').as_posix() for path in (tmp_path / 'out').rglob('*.*')}
    of_hub = TOKENIZER if format != 'mxnet' else set()
    assert names == {'README.md', 'vocab.txt', *of_hub, *WRITTEN[format]}
    card = (tmp_path / 'out' / 'README.md').read_text(encoding='utf-8')
    assert front_matter(card)['license'] == 'apache-2.0' and front_matter(card)['library_name'] == format
    assert 'Pruned in 2 rounds' in card and ('.onnx`' in card or format == 'transformers')
    assert str(tmp_path) not in card and str(pruned_run[0].parent) not in card
    for code in python_examples(card):
        for path in re.findall(r'DIRECTORY/([\w/.-]+)', code):
            assert (tmp_path / 'out' / path).is_file(), path


@pytest.mark.parametrize('format', FORMATS)
def test_text_is_said_to_be_cut_where_the_directory_cuts_it(format):
    head = Head(embedding=Embedding(max_length=8))
    deployment, beside = facts(UNEVEN, head, 'encoder', format, ONNX)
    cuts = format in ('mxnet', 'sentence-transformers')
    assert ('Text is cut to 8 tokens' in model_card(deployment, **beside)) == cuts
