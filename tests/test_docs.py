"""The pages below docs/: commands, flags, links and modules exist, examples run, and the equations hold. Of
the README: its commands and links.
"""

import functools
import json
import re
import shutil

import numpy as np
import pytest
from helpers.commands import succeed
from helpers.documents import (
    RUNS,
    check_command,
    code_of,
    commands,
    compiled_and_run,
    flags_of,
    is_target,
    prose,
    spans,
    targets_of_make,
    text_of,
)
from helpers.finetuned import flags_of as words_of, recipe_for as tuning_recipe
from helpers.pruned import values_for
from helpers.tiny import (
    ROOT,
    network,
    outputs_of,
    random_alphas,
    random_inputs,
    random_parameters,
    vocabulary,
)
from helpers.transformers_by_hand import gelu

from gluon_optbert.architecture import cost
from gluon_optbert.architecture.heads import Head
from gluon_optbert.architecture.parameters import H_GATES
from gluon_optbert.deployment.export import export
from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.saved_model import SavedModel, read_model, write_model
from gluon_optbert.pruning import methods, penalty
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import fill

PAGES = sorted((ROOT / 'docs').glob('*.md'))
WITH_README = [*PAGES, ROOT / 'README.md']
FOUND = [path for room in ('tools', 'finetune', 'pretrain') for path in (ROOT / room).glob('*.py')]
ELSEWHERE = {'--gloo', '--mpi'}  # horovodrun's flags


@pytest.mark.parametrize('line', commands(*WITH_README))
def test_commands_name_scripts_recipes_flags_and_choices_that_exist(line):
    check_command(line)


def test_flags_in_sentences_are_flags_of_some_command():
    programs = ['-m gluon_optbert.architecture', *(str(path.relative_to(ROOT)) for path in FOUND)]
    known = {'--help', *ELSEWHERE}.union(*map(flags_of, programs))
    for page in PAGES:
        spoken = (span for span in spans(page) if not RUNS.search(span))
        named = {flag for span in spoken for flag in re.findall(r'(?<!\S)--[a-z][a-z-]+', span)}
        assert named <= known, page.name


@functools.cache
def anchors(page):
    """Anchors of the headings of a page, as GitHub makes them."""
    names = []
    for heading in re.findall(r'^#+ (.*)$', prose(page), flags=re.MULTILINE):
        plain = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).lower()
        names.append(re.sub(r'[^\w\- ]', '', plain).replace(' ', '-'))
    return names


@pytest.mark.parametrize('page', WITH_README, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    for target in re.findall(r'\]\(([^)\s]+)\)', prose(page)):
        if re.match(r'[a-z]+:', target):
            continue
        path, _, anchor = target.partition('#')
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and ROOT in file.parents, target
        assert not anchor or anchor in anchors(file), target


def test_the_index_lists_every_page():
    linked = set(re.findall(r'\]\(([a-z_]+\.md)\)', text_of(ROOT / 'docs' / 'README.md')))
    assert linked == {page.name for page in PAGES} - {'README.md'}


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_files_and_names_of_the_code_exist(page):
    package = ROOT / 'gluon_optbert'
    rooms = '|'.join(sorted(path.name for path in package.iterdir() if path.is_dir()))
    for name in re.findall(rf'`(?:gluon_optbert/)?((?:{rooms})/\w+\.py)`', prose(page)):
        assert (package / name).is_file(), name
    for name, words in re.findall(
        rf'`(?:gluon_optbert/)?((?:{rooms})/\w+\.py)`: ((?:`\w+`(?:, )?)+)', prose(page)
    ):
        source = text_of(package / name)
        assert all(re.search(rf'\b{word}\b', source) for word in re.findall(r'\w+', words)), (name, words)
    paths = [
        span
        for span in spans(page)
        if re.fullmatch(r'(benchmarks|pretrain|finetune|tests|tools|results/\w+)/[\w./-]*\w', span)
    ]
    assert all((ROOT / path).exists() for path in paths)


def test_targets_of_make_exist():
    targets = targets_of_make(*WITH_README)
    assert {'install', 'test', 'quickstart', 'clean'} <= targets
    assert all(map(is_target, targets))


# The examples


@pytest.fixture(scope='module')
def place(tmp_path_factory, pruned_run):
    """Files that examples read: text, a pruning run, and the exports of an encoder and of a classifier."""
    directory = tmp_path_factory.mktemp('examples')
    architecture, words = network((2, 3, 5, 7), (1, 4, 2, 0), vocab_size=len(vocabulary())), vocabulary()
    export(SavedModel(architecture, random_parameters(architecture), words), directory / 'deploy', onnx=True)
    head = Head('classification', ('no', 'yes'))
    parameters = read_parameters(build(architecture, head=head, initial_std=0.5))
    export(SavedModel(architecture, parameters, words, head=head), directory / 'deploy-mrpc')
    (directory / 'runs').mkdir()
    (directory / 'runs' / 'pruned').symlink_to(pruned_run[0])
    (directory / 'text').mkdir()
    (directory / 'text' / 'one.txt').write_text(
        'a word and another word, and no other word\n' * 9, encoding='utf-8'
    )
    return directory


def example(name, number, place, monkeypatch):
    """The names that the Python example of a page has when it has run; examples are counted from 0."""
    monkeypatch.chdir(place)
    code = code_of(ROOT / 'docs' / name, 'python')[number]
    variables: dict = {}
    exec(compile(code, name, 'exec'), variables)
    return variables


def test_every_python_example_is_run_here():
    counts = {page.name: len(code_of(page, 'python')) for page in PAGES}
    assert {name: count for name, count in counts.items() if count} == {
        'exports.md': 6,  # the last one is run by Transformers, in tests/deployment
        'extending.md': 4,
        'pruning.md': 1,
        'python.md': 2,  # tests/test_notebook.py runs what they call
        'text_to_shards.md': 1,
    }


def test_the_vocabulary_of_the_example_has_what_pretraining_needs(place, monkeypatch):
    example('text_to_shards.md', 0, place, monkeypatch)
    tokens = (place / 'vocab.txt').read_text(encoding='utf-8').split()
    assert tokens[:5] == ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'] and 'word' in tokens


def test_the_example_shows_every_gate_of_a_round(place, monkeypatch, capsys):
    example('pruning.md', 0, place, monkeypatch)
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == list(np.load(place / 'runs' / 'pruned' / 'round-1' / 'alphas.npz').files) and 'h' in shown


def test_the_examples_of_predicting_give_labels_an_engine_and_embeddings(place, monkeypatch, capsys):
    prediction = example('exports.md', 0, place, monkeypatch)['prediction']
    assert prediction.label in ('no', 'yes') and sum(prediction.probabilities.values()) == pytest.approx(1)
    assert len(capsys.readouterr().out.splitlines()) == 2
    example('exports.md', 1, place, monkeypatch)
    assert capsys.readouterr().out.startswith('mxnet 1.9.1 in float32 ')
    embeddings = example('exports.md', 2, place, monkeypatch)['embeddings']
    assert len(embeddings) == len(capsys.readouterr().out.splitlines()) == 3
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-5)


@pytest.mark.filterwarnings('ignore:Cannot decide type')  # as the page says
def test_the_examples_in_python_c_and_onnx_compute_the_same(place, monkeypatch):
    plain, onnx = (example('exports.md', number, place, monkeypatch) for number in (3, 4))
    wanted = plain['encoded'].asnumpy()
    assert wanted.shape[:2] == (1, 4) and np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(onnx['encoded'], wanted, atol=1e-5)  # float32, sums in another order
    np.testing.assert_allclose(onnx['pooled'], plain['pooled'].asnumpy(), atol=1e-5)
    if not shutil.which('gcc'):
        pytest.skip('no gcc')
    computed = compiled_and_run(ROOT / 'docs' / 'predict.c', place).reshape(wanted.shape)
    np.testing.assert_allclose(computed, wanted, atol=1e-5)  # float32; the C API fuses operators


# The additions of extending.md


@pytest.fixture
def registries(monkeypatch):
    """Names that a test registers are gone after it."""
    for module, name in ((penalty, 'PENALTIES'), (methods, 'METHODS'), (cost, 'OBJECTIVES')):
        registry = getattr(module, name)
        for added in ('elastic', 'sensitivity', 'int8_bytes'):
            monkeypatch.setitem(registry, added, None)
            monkeypatch.delitem(registry, added)


def test_penalty_of_extending_has_the_slope_of_its_value(place, monkeypatch, registries):
    kind = example('extending.md', 0, place, monkeypatch)['ElasticNet']
    assert fill(PruneRecipe, {'model': 'm', 'shards': 's', 'output': 'o', 'penalty': 'elastic'})
    architecture = network()
    weights = cost.beta(architecture, cost.ParameterCost())
    elastic, alphas = kind(0.3, weights), random_alphas(architecture)
    gates = build(architecture, gated=True).gates
    gates.set(alphas)
    for parameter in gates.parameters.values():
        parameter.grad()[:] = 0
    elastic.add_gradient(gates)
    assert elastic.value(alphas) == pytest.approx(
        0.3 * sum(weights[key] * (abs(alpha) + alpha**2 / 2).sum() for key, alpha in alphas.items()), rel=1e-5
    )
    for key, alpha in alphas.items():
        step = np.zeros(len(alpha))
        step[-1] = 1e-3
        up, down = (elastic.value({**alphas, key: alpha + sign * step}) for sign in (1, -1))
        slope = gates.parameters[key].grad().asnumpy()[-1]
        assert slope == pytest.approx((up - down) / 2e-3, rel=1e-4)


def test_objective_of_extending_counts_the_bytes_of_the_arrays(place, monkeypatch, registries):
    example('extending.md', 2, place, monkeypatch)
    architecture = network()
    counted, whole = (cost.cost_model(name).cost(architecture) for name in ('int8_bytes', 'parameters'))
    weights = sum(
        value.size
        for name, value in random_parameters(architecture).items()
        if name.startswith('encoder.transformer_cells') and value.ndim == 2
    )
    assert weights > 0 and counted == 4 * whole - 3 * weights
    assert all(price > 0 for price in cost.cost_model('int8_bytes').prices(architecture).values())


def test_command_of_extending_prunes_by_what_the_loss_feels(
    place, shards_directory, model_directory, registries, monkeypatch
):
    """A filter without outgoing weights changes nothing, so its score is zero, and it goes first."""
    code = code_of(ROOT / 'docs' / 'extending.md', 'python')
    (place / 'additions.py').write_text('\n'.join(code[:3]), encoding='utf-8')
    (place / 'my_prune.py').write_text(code[3], encoding='utf-8')
    start = read_model(model_directory)
    name = 'encoder.transformer_cells.0.ffn.ffn_2.weight'
    assert start.parameters[name].shape[1] == start.architecture.layers[0].f
    start.parameters[name] = start.parameters[name] * (np.arange(start.architecture.layers[0].f) != 1)
    write_model(place / 'silent', start)
    output, more = place / 'extended', {'method': 'sensitivity', 'objective': 'int8_bytes', 'prune': 'f'}
    values = values_for(shards_directory, place / 'silent', output, rounds=1, target=0.9, **more)
    of_gates = ('gamma', 'alpha_learning_rate')  # which the method does not read
    words = words_of({name: value for name, value in values.items() if name not in of_gates})
    monkeypatch.syspath_prepend(place)
    succeed(place / 'my_prune.py', *words)
    story = json.loads((output / 'round-1' / 'selection.json').read_text())
    scores = dict(story['removed_unit_and_alpha']['f0'])
    assert scores[1] == 0 and 0 < story['cost'] <= story['target']
    assert all(score > 0 for unit, score in scores.items() if unit != 1)
    assert 'int8_bytes to 90%' in (output / 'pruning.md').read_text(encoding='utf-8')


def test_task_of_extending_is_fine_tuned(place, tmp_path):
    (described,) = code_of(ROOT / 'docs' / 'extending.md', 'json')
    (tmp_path / 'reviews.json').write_text(described, encoding='utf-8')
    (tmp_path / 'data' / 'reviews').mkdir(parents=True)
    for name, count in (('train', 16), ('new', 5), ('old', 4), ('test', 3)):
        lines = [f'{i + 7}\ta word\t{"good" if i % 2 else "bad"}\n' for i in range(count)]
        (tmp_path / 'data' / 'reviews' / f'{name}.tsv').write_text('id\ttext\tverdict\n' + ''.join(lines))
    start = place / 'runs' / 'pruned' / 'round-2' / 'model'
    task = str(tmp_path / 'reviews.json')
    finetune_glue(tuning_recipe(start, tmp_path / 'data', tmp_path, task=task, epochs=1))
    result = json.loads((tmp_path / 'run' / 'result.json').read_text())
    assert result['task'] == 'reviews' and 0 <= result['mean']['old/accuracy'] <= 100
    lines = (tmp_path / 'run' / 'seed-1' / 'reviews.tsv').read_text().splitlines()
    assert [line.split('\t')[0] for line in lines] == ['index', '7', '8', '9']
    assert {line.split('\t')[1] for line in lines[1:]} <= {'bad', 'good'}


# The equations of what_is_gated.md


def gated_by_hand(architecture, weights, alphas, ids, types, positions, h_gate):
    """Encoded tokens, pooled units, NSP and MLM scores of one sequence without padding, by the page."""
    stream_gate, block_gate = alphas['h'].astype(np.float64), np.ones(architecture.h)
    if h_gate == 'table5':
        stream_gate, block_gate = block_gate, stream_gate

    def layer_norm(y, name):
        alive = stream_gate != 0
        mean = (alive * y).sum(-1, keepdims=True) / alive.sum()
        variance = (alive * (y - mean) ** 2).sum(-1, keepdims=True) / alive.sum()
        gamma, beta = weights[name + '.gamma'] * stream_gate, weights[name + '.beta'] * stream_gate
        return gamma * (y - mean) / np.sqrt(variance + 1e-12) + beta

    def product(x, name, rows=slice(None)):
        return x @ weights[name + '.weight'][rows].T + weights[name + '.bias'][rows]

    words = weights['word_embed.0.weight']
    embedded = words[ids] + weights['token_type_embed.0.weight'][types]
    x = layer_norm(embedded + weights['encoder.position_weight'][: len(ids)], 'encoder.layer_norm')
    for i, dims in enumerate(architecture.layers):
        cell = f'encoder.transformer_cells.{i}.'
        project = cell + 'attention_cell.proj_'
        context, read = [], block_gate * x
        for n in range(dims.a):
            keys, values = slice(n * dims.k, (n + 1) * dims.k), slice(n * dims.v, (n + 1) * dims.v)
            head = alphas[f'a{i}'][n] ** 2
            query = head * alphas[f'k{i}'] ** 2 * product(read, project + 'query', keys) / np.sqrt(dims.k)
            powers = np.exp(query @ product(read, project + 'key', keys).T)
            attention = powers / powers.sum(-1, keepdims=True)
            attended = attention @ product(read, project + 'value', values)
            context.append(head * alphas[f'v{i}'] ** 2 * attended)
        written = block_gate * product(np.concatenate(context, -1), cell + 'proj')
        x = layer_norm(x + written, cell + 'layer_norm')
        inner = alphas[f'f{i}'] * gelu(alphas[f'f{i}'] * product(block_gate * x, cell + 'ffn.ffn_1'))
        x = layer_norm(x + block_gate * product(inner, cell + 'ffn.ffn_2'), cell + 'ffn.layer_norm')
    pooled = np.tanh(product(x[0], 'pooler'))
    transformed = layer_norm(gelu(product(x[positions], 'decoder.0')), 'decoder.2')
    return {
        'encoded': x,
        'pooled': pooled,
        'next_sentence': product(stream_gate * pooled, 'classifier'),
        'masked': transformed @ words.T + weights['decoder.3.bias'],
    }


@pytest.mark.parametrize('h_gate', H_GATES)
def test_the_equations_are_those_of_the_gated_network(h_gate):
    architecture = network((2, 3, 4, 5), (3, 2, 5, 7), h=6)
    weights, alphas = random_parameters(architecture), random_alphas(architecture)
    alphas['h'][[1, 4]] = alphas['k0'][1] = alphas['f1'][2] = 0
    model = build(architecture, weights, gated=True, h_gate=h_gate, trainable=False)
    model.gates.set(alphas)
    inputs = random_inputs(architecture, batch=1, length=5)
    outputs = outputs_of(model, inputs)
    ids, kinds, _, positions = (
        values.asnumpy()[0].astype(int) if values.ndim > 1 else None for values in inputs
    )
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    wanted = gated_by_hand(architecture, weights, alphas, ids, kinds, positions, h_gate)
    for name, value in wanted.items():
        assert np.abs(outputs[name][0] - value).max() <= 1e-5 * np.abs(value).max(), name  # float32 has 6e-8
