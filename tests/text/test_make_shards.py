"""From raw text to a directory of shards."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time

import pytest
from helpers.commands import call
from helpers.stricken import living
from helpers.tiny import ROOT, contents, environment, run, seal

from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.recipe import fill, to_dict
from gluon_optbert.text import make_shards as chunk_workers, shards
from gluon_optbert.text.make_shards import ShardRecipe, make_shards
from gluon_optbert.text.shards import Shards
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, read_vocabulary, vocabulary_of, write_vocabulary

WORDS = [f'{a}{b}{c}' for a in 'bdfgklmn' for b in 'aeiou' for c in 'rstx']


def make_input(directory, documents=40, *, seed=0):
    """Two files of documents, one sentence per line; sentence j of document i begins with d<i> s<j>."""
    chance = random.Random(seed)
    directory.mkdir(parents=True)
    texts = []
    for i in range(documents):
        lines = [
            f'd{i} s{j} {" ".join(chance.choices(WORDS, k=chance.randint(3, 12)))} .'
            for j in range(chance.randint(4, 20))
        ]
        texts.append('\n'.join(lines))
    (directory / 'one.txt').write_text('\n\n'.join(texts[: documents // 2]))
    (directory / 'two.txt').write_text('\n\n'.join(texts[documents // 2 :]))
    names = [*(f'd{i}' for i in range(documents)), *(f's{j}' for j in range(20))]
    write_vocabulary(vocabulary_of([*SPECIAL_TOKENS, '.', *WORDS, *names]), directory.parent / 'vocab.txt')


def recipe_of(root, output='shards', **changes):
    values = {
        'input': f'{root / "text"},{root / "vocab.txt"}',  # the vocabulary is no text
        'vocab': root / 'vocab.txt',
        'output': root / output,
        'layout': 'sentences',
        'max_seq_length': 48,
        'dupe_factor': 2,
        'held_out': 0.1,
        'instances_per_shard': 50,
        'chunk_characters': 3000,
        'seed': 3,
        'workers': 1,
    }
    return fill(ShardRecipe, {**values, **changes})


@pytest.fixture
def root(tmp_path):
    make_input(tmp_path / 'text')
    return tmp_path


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """Input with its shards, what was said of the text before they were made, and their summary."""
    root, said = tmp_path_factory.mktemp('made'), []
    make_input(root / 'text')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_workers, '_COUNTED', 1000)
        return root, said, make_shards(recipe_of(root), say=said.append)


def texts_of(directory, split):
    """Every instance with its predictions put back, as words, and its label."""
    shards = Shards.open(directory, split=split)
    vocab, texts = shards.vocabulary(), []
    for number in range(len(shards.files)):
        fields = shards.read(number)
        for row in range(shards.files[number].instances):
            ids = fields['input_ids'][row].astype(int)
            masked = fields['masked_lm_weights'][row] > 0
            ids[fields['masked_lm_positions'][row][masked]] = fields['masked_lm_ids'][row][masked]
            text = ' '.join(vocab.to_tokens(ids[: fields['valid_lengths'][row]].tolist()))
            texts.append((text, int(fields['next_sentence_labels'][row])))
    return texts


def owners(text):
    return {word for word in text.split() if word[0] == 'd' and word[1:].isdigit()}


def test_same_bytes_whatever_the_number_of_workers_from_a_script_without_a_guard(made):
    """Processes that are spawned run the script that started them again, unless it is hidden."""
    root = made[0]
    first, script = contents(root / 'shards'), root / 'script.py'
    values = to_dict(recipe_of(root, 'two', workers=2))
    script.write_text(f'import gluon_optbert as opt\nopt.make_shards(**{values!r})\n')
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert contents(root / 'two') == first and len(first) > 5
    make_shards(recipe_of(root, 'other', seed=4))
    assert contents(root / 'other')['train-00000.npz'] != first['train-00000.npz']


def test_the_manifest_and_the_survey_count_what_is_there(made):
    root, said, summary = made
    manifest = json.loads((root / 'shards' / 'manifest.json').read_text())
    splits = manifest['splits'].values()
    assert set(os.listdir(root / 'shards')) == {
        'manifest.json',
        'vocab.txt',
        *(file['name'] for split in splits for file in split['shards']),
    }
    texts = [path.read_text() for path in (root / 'text').iterdir()]
    words = sum(len(text.split()) for text in texts)
    wanted = {'documents': 40, 'tokens': words}
    wanted['sentences'] = sum(len(text.replace('\n\n', '\n').split('\n')) for text in texts)
    assert {noun: sum(split[noun] for split in splits) for noun in wanted} == wanted
    assert sum(summary.tokens.values()) == words
    assert manifest['recipe']['seed'] == 3 and manifest['max_predictions'] == 8
    sizes = [file['instances'] for file in manifest['splits']['train']['shards']]
    assert max(sizes) <= 50 and max(sizes) - min(sizes) <= 1
    (line,) = said
    assert re.match(
        r'2 files as sentences: 40 documents, [0-9.]+ sentences a document \(of the first \d\), 0.0% of them',
        line,
    )


def test_held_out_documents_are_never_trained_on(made):
    texts = texts_of(made[0] / 'shards', 'train')
    train = set().union(*(owners(text) for text, _ in texts))
    heldout = set().union(*(owners(text) for text, _ in texts_of(made[0] / 'shards', 'heldout')))
    assert not train & heldout and len(heldout) == 4 and len(train) == 36
    assert len(set().union(*(owners(text) for text, _ in texts[:50]))) > 20  # neighbours are strewn


def test_documents_of_one_sentence_make_no_pairs(root):
    for path in (root / 'text').iterdir():
        path.write_text(path.read_text().replace('\n', '\n\n'))
    with pytest.raises(
        ValueError, match='no document has two sentences in 2 files as .*--next-sentence false'
    ):
        make_shards(recipe_of(root))
    make_shards(recipe_of(root, next_sentence=False))
    assert not Shards.open(root / 'shards').next_sentence
    assert all(label == 0 for _, label in texts_of(root / 'shards', 'train'))


def test_duplicates_have_fresh_pairs_and_masks(made):
    root = made[0]
    make_shards(recipe_of(root, 'once', dupe_factor=1))
    once, twice = texts_of(root / 'once', 'train'), texts_of(root / 'shards', 'train')
    assert 1.7 < len(twice) / len(once) < 2.3
    assert set(once) <= set(twice)  # the first pass is the same
    assert len(set(twice)) > 1.5 * len(set(once))
    assert len(texts_of(root / 'once', 'heldout')) == len(texts_of(root / 'shards', 'heldout'))


@pytest.mark.parametrize(
    'documents, changes, said',
    [
        (3, {}, '3 documents in 2 files as sentences: .*; at least 4 .*--held-out 0'),
        (0, {'held_out': 0.0}, '0 documents'),
        (3, {'layout': 'auto'}, '3 documents in 2 files as moses'),
    ],
)
def test_too_few_documents_are_refused_with_the_way_out(tmp_path, documents, changes, said):
    make_input(tmp_path / 'text', documents)
    with pytest.raises(ValueError, match=said):
        make_shards(recipe_of(tmp_path, **changes))
    assert sorted(os.listdir(tmp_path)) == ['text', 'vocab.txt']


@pytest.mark.parametrize(
    'tokens, stated, text',
    [(['Café', 'café', 'cafe'], None, 'Café café [UNK]'), (['café', 'cafe'], False, 'cafe cafe cafe')],
)
def test_the_vocabulary_decides_whether_capitals_and_accents_are_kept(root, tokens, stated, text):
    for path in (root / 'text').iterdir():
        path.write_text(path.read_text().replace(' .', ' Café café CAFÉ .'), encoding='utf-8')
    known = read_vocabulary(root / 'vocab.txt').idx_to_token
    write_vocabulary(vocabulary_of([*known, *tokens]), root / 'vocab.txt')
    make_shards(recipe_of(root, cased=stated))
    assert any(text in made for made, _ in texts_of(root / 'shards', 'train'))
    path = root / 'shards' / 'manifest.json'
    manifest, cased = json.loads(path.read_text()), 'Café' in tokens
    assert manifest['cased'] == manifest['recipe']['cased'] == cased
    seal(path, {**manifest, 'cased': not cased})
    with pytest.raises(ValueError, match=f'text that {"lost" if cased else "kept"} its capitals'):
        Shards.open(root / 'shards')


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_job_and_leaves_nothing(root, monkeypatch):
    def strike(*_):
        for worker in multiprocessing.active_children():
            worker.kill()

    monkeypatch.setattr(chunk_workers.Buckets, 'scatter', strike)
    with pytest.raises(RunFailed, match='a worker process died'):
        make_shards(recipe_of(root, workers=2))
    assert sorted(os.listdir(root)) == ['text', 'vocab.txt']


def command(root, *more):
    flags = {'input': root / 'text', 'vocab': root / 'vocab.txt', 'output': root / 'shards'}
    words = [word for name, value in flags.items() for word in (f'--{name}', str(value))]
    script = str(ROOT / 'pretrain' / 'make_shards.py')
    return [sys.executable, script, *words, '--layout', 'sentences', '--chunk-characters', '500', *more]


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_looks_finished_and_a_restart_works(root):
    silent = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
    words = command(root, '--dupe-factor', '400', '--workers', '2')
    process = subprocess.Popen(words, env=environment(), cwd=root, **silent)
    deadline = time.monotonic() + 60
    while not list(root.glob('.shards.partial-*/train.buckets/*')):  # workers are at it
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    found = subprocess.run(['pgrep', '-P', str(process.pid)], capture_output=True).stdout.split()
    workers = [int(pid) for pid in found]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(living, workers)):  # no orphans
        assert time.monotonic() < deadline, workers
        time.sleep(0.02)
    partial = [path for path in root.glob('.shards.partial-*') if path.is_dir()]
    assert workers and len(partial) == 1 and not (root / 'shards').exists()
    done = call(*command(root, '--dupe-factor', '1', '--workers', '2')[1:])
    assert done.returncode == 0, done.stderr
    assert 'next: python pretrain/run_pretraining.py' in done.stdout.splitlines()[-1]
    assert sorted(os.listdir(root)) == ['shards', 'text', 'vocab.txt']
    assert texts_of(root / 'shards', 'train')


def test_bad_input_is_one_line_and_status_2(root):
    for change, said in (
        (['--output', ROOT / 'docs'], 'docs: exists'),
        (['--cased'], 'vocab.txt: none of its 221 tokens has a capital'),
    ):
        done = call(*command(root)[1:], *change)
        assert done.returncode == 2 and said in done.stderr.splitlines()[-1]
    assert sorted(os.listdir(root)) == ['text', 'vocab.txt']


def test_shards_that_could_not_be_opened_are_refused_before_any_text_is_read(made, monkeypatch):
    root = made[0]
    tokens = len(read_vocabulary(root / 'vocab.txt'))
    row = shards.record_dtype(48, recipe_of(root).predictions, tokens).itemsize
    monkeypatch.setattr(shards, 'MOST_SHARD_BYTES', 51 * row - 1)
    Shards.open(root / 'shards')  # whose shards have at most 50 instances
    monkeypatch.setattr('gluon_optbert.text.make_shards.survey', None)
    with pytest.raises(ValueError, match=f'51: an instance takes {row} bytes, so a shard has at most 50; '):
        make_shards(recipe_of(root, 'refused', instances_per_shard=51))
    assert not (root / 'refused').exists()
