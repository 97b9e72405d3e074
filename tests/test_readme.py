"""The README: its commands and its Python run, and its table is that of the result files."""

import json
import shlex
import textwrap

import numpy as np
from helpers.checkpoints import HEADS, named, write_hugging_face
from helpers.commands import succeed
from helpers.documents import blocks, code_of, text_of
from helpers.finetuned import sentences, write_glue
from helpers.pages import check_page
from helpers.tiny import ROOT, network, random_parameters
from plot_encoders import times_of
from plot_tasks import score_of
from points import read_points
from sentence_scores import NAMES, apart, score_of as search_score

from gluon_optbert.runs.progress import paired_error

README = ROOT / 'README.md'
TASKS = {
    'sst2': 'SST-2, accuracy',
    'mrpc': 'MRPC, accuracy',
    'mnli': 'MNLI, accuracy',
    'squad': 'SQuAD 1.1, F1',
}


def pruned(task, method='fisher'):
    """A network of a task and its cuts to a half, a third and a quarter, from the files of results."""
    runs = read_points(ROOT / 'results' / 'tasks' / task / 'points.json')['runs']
    cuts = [runs[f'{task}-{method}-minutes-{number}']['rounds'] for number in (2, 3, 4)]
    return [cuts[0][0], *(rounds[1] for rounds in cuts)]


def lost(network, first):
    """The points that a network scores less than the first one, and their paired standard error."""
    loss = score_of(first) - score_of(network)
    return loss, paired_error([loss], *([one['recovered']['right']] for one in (network, first)))


def cell_of(network, first):
    """A cell of the table."""
    loss, error = lost(network, first)
    return f'{score_of(network):.1f} ({-loss:+.1f}, {error:.1f})'.replace('-', '−')


def speed_of(network):
    """Speed as a multiple of that of the network before pruning."""
    own, first = network['times']['onnxruntime']['float32']['8x128']
    return first / own


def test_the_table_says_what_the_results_say():
    lines = [line for line in text_of(README).splitlines() if line.startswith('| ')]
    for task, name in TASKS.items():
        (cells,) = [line.split(' | ')[1:] for line in lines if line.startswith(f'| {name} |')]
        first, *cuts = pruned(task)
        wanted = [f'{score_of(first):.1f}', *(cell_of(one, first) for one in cuts)]
        assert [cell.strip(' |') for cell in cells] == wanted
        loss, error = lost(cuts[0], first)
        assert loss < 2 * error  # as the text says
    (cells,) = [line.split(' | ')[1:] for line in lines if line.startswith('| times as fast |')]
    columns = list(zip(*(map(speed_of, pruned(task)) for task in TASKS)))
    spans = [f'{min(speeds):.1f} to {max(speeds):.1f}' for speeds in columns]
    assert [cell.strip(' |') for cell in cells] == ['1.0', *spans[1:]]
    for task in ('sst2', 'mrpc'):
        first, *cuts = pruned(task, 'uniform')
        losses = [f'{lost(one, first)[0]:.1f}' for one in cuts]
        assert f'{losses[0]}, {losses[1]} and {losses[2]}' in ' '.join(text_of(README).split())


ENCODERS = {  # a number for the seed follows
    'half, trained gates': 'long-alpha-2-1300',
    'three of six layers': 'long-layers-2-1300',
    'a third, trained gates': 'long-alpha-3-1300',
    'a third of the time, trained gates': 'long-time-3-1300',
    'two of six layers': 'long-layers-3-1300',
}


def test_the_table_of_sentence_encoders_says_what_their_results_say():
    place = ROOT / 'results' / 'encoders'
    scores = json.loads((place / 'scores.json').read_text(encoding='utf-8'))
    times = times_of(json.loads((place / 'times_trained.json').read_text(encoding='utf-8')), '8x128')
    whole, nothing = scores['parent'], np.empty(0)

    def row(label, names, sizes, int8):
        runs, cells = [scores[name] for name in names], []
        for search in NAMES[1:]:
            own = search if runs != [whole] else search.split()[0]
            cells.append(f'{np.mean([search_score(one, own, nothing) for one in runs]):.1f}')
            if runs != [whole]:
                gained, error = apart(runs, whole, search, nothing)
                changed = f'{gained:.1f}'.replace('-', '−').replace('−0.0', '0.0')
                cells[-1] += f' ({changed}, {error:.1f})'
        keys = [(size['parameters'], size['flops'], int8) for size in sizes]
        took = [times[key] for key in keys if key in times]
        first = times[whole['parameters'], whole['flops'], False]
        return [label, str(len(runs)), *cells, f'{np.mean([first / one for one in took]):.1f}']

    wanted = [
        row('the whole network', ['parent'], [whole], False),
        row('the whole network, int8', ['int8-minilm'], [whole], True),
    ]
    for label, way in ENCODERS.items():
        names = [name for name in (f'{way}-{seed}' for seed in (1, 2, 3)) if name in scores]
        wanted.append(row(label, names, [scores[name] for name in names], False))
        int8 = [name for name in names if f'int8-{name}' in scores]
        if int8:
            sizes = [scores[name] for name in int8]
            wanted.append(row(f'{label}, int8', [f'int8-{name}' for name in int8], sizes, True))
    lines = [line.strip('| ').split(' | ') for line in text_of(README).splitlines() if line.startswith('| ')]
    labels = {one[0] for one in wanted}
    assert [[*one[:2], *one[3:]] for one in lines if one[0] in labels] == wanted


FEW = {  # what makes the commands of the block short, beside one round instead of four
    'pretrain/make_shards.py': '--max-seq-length 16 --dupe-factor 2 --held-out 0.2 --workers 1',
    'pretrain/run_pretraining.py': '--steps 2 --batch-size 8 --evaluation-limit 8',
    'pretrain/run_prune.py': '--alpha-steps 2 --recovery-steps 2 --batch-size 8 --evaluation-limit 8',
    'tools/verify.py': '--batches 1',
    'finetune/run_glue.py': '--epochs 1 --max-length 16',
    'tools/report.py': '--time false',
}


def write_inputs(place):
    """Write the inputs of the block: a checkpoint without heads, two kinds of text, a task, sentences to
    predict.
    """
    write_hugging_face(place / 'downloads' / 'bert-base-uncased', named('Hugging Face', without=HEADS))
    lines = [' '.join(word) + '.' for word in ('abcdef', 'bcdefg', 'cdefgh', 'defghi')]
    (place / 'wiki').mkdir()
    articles = [
        f'<doc id="{i}" title="a">\na\n' + '\n'.join(lines[i % 3 :] * 3) + '\n</doc>' for i in range(12)
    ]
    (place / 'wiki' / 'wiki_00').write_text('\n'.join(articles) + '\n', encoding='utf-8')
    (place / 'books').mkdir()
    (place / 'books' / 'book.txt').write_text(
        '\n\n'.join([textwrap.fill(' '.join(lines * 4), 50)] * 4) + '\n', encoding='utf-8'
    )
    write_glue(place / 'glue')
    (place / 'sentences.txt').write_text('a b c\nx y z\n', encoding='utf-8')
    for folder in ('pretrain', 'finetune', 'tools'):
        (place / folder).symlink_to(ROOT / folder)


def run_block(block, place, few):
    """Output of the programs of a block, run one after another with a few words more."""
    said = {}
    for line in block.replace('\\\n', ' ').splitlines():
        if line.startswith('python '):
            program, *words = shlex.split(line)[1:]
            said[program] = succeed(program, *words, *few.get(program, '').split(), cwd=place)
    return said


def test_the_block_goes_from_a_checkpoint_to_predictions_and_a_page(tmp_path):
    write_inputs(tmp_path)
    (block,) = [content for _, content in blocks(README) if 'make_shards' in content]
    assert '--rounds 4' in block and 'round-4' in block
    said = run_block(block.replace('--rounds 4', '--rounds 1').replace('round-4', 'round-1'), tmp_path, FEW)
    assert len(said) == 9  # fine-tuning twice
    assert 'random' in said['tools/import_checkpoint.py']  # the heads, which are trained next
    answers = [json.loads(answer) for answer in said['tools/predict.py'].splitlines() if answer[0] == '{']
    assert len(answers) == 2 and all('label' in answer for answer in answers)
    text = ' '.join(check_page((tmp_path / 'report.html').read_text(encoding='utf-8')).text)
    assert 'of the parameters of the base' in text and 'on SST-2 accuracy: ' in text


def write_first_inputs(place):
    """Write the inputs of the first commands and of the Python example: a checkpoint without heads, and a
    table.
    """
    arrays = random_parameters(network(max_length=128))
    write_hugging_face(
        place / 'downloads' / 'minilm',
        named('Hugging Face', arrays, without=HEADS),
        max_position_embeddings=128,
    )
    lines = [f'{text},{"good" if label else "bad"}' for text, label in sentences(60, 0)]
    (place / 'reviews.csv').write_text('\n'.join(['text,label', *lines]) + '\n', encoding='utf-8')


def test_the_first_commands_go_from_a_table_to_a_pruned_export(tmp_path):
    write_first_inputs(tmp_path)
    for folder in ('finetune', 'tools'):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (_, block), *_ = blocks(README)
    assert len(run_block(block, tmp_path, {})) == 4
    assert list((tmp_path / 'deploy').glob('*.onnx'))


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    write_first_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = code_of(README, 'python')
    exec(compile(code, 'README.md', 'exec'), {})
    assert capsys.readouterr().out.strip().splitlines()[-1] in ('good', 'bad')
