"""Run every command once on tiny data, and print the SHA-256 of what they leave.

    python tests/jobs/small_run.py WORK_DIR [CHECKOUT] > digests.json

Two checkouts that print the same digests compute the same bits. `CHECKOUT` is the checkout whose commands
run, by default this one. Digests of integers and text are the same on every machine; digests of trained
numbers depend on the processor."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path

EVERYWHERE = ('shards/', 'architecture', 'deploy/model-symbol.json', 'pretraining-export/model-symbol.json')
VOLATILE = (
    'manifest.json',
    'recipe.yaml',
    'metrics.jsonl',
    'origin.json',
    'result.json',
    'vocab.txt',
    'pruning.md',  # its numbers are in rounds.json
    'README.md',  # the model card of an export has commit and versions
)
CHANGING_FIELDS = {
    'seconds',
    'tokens_per_second',
    'data_wait',
    # not yet there when the digests were recorded
    'mlm_standard_error',
    'difference_errors',
    'right',
    'commit',
    'versions',
    'machine',
    'recipe',
    'majority',  # of the data, not of a network
    'workers',
}
WORDS = (
    'the a one old new red small river house ship sea bird stone light wind field good bad fine poor very '
)
WORDS = (WORDS + 'not is was seems and or but near far under over').split()
TRAIN = '--shards {w}/shards --batch-size 8 --log-every 5 --checkpoint-every 5 --evaluation-limit 16'
PRUNE = (
    f'pretrain/run_prune.py {{w}}/gates.yaml {TRAIN} --model {{w}}/model --alpha-steps 4 '
    '--recovery-steps 4 --optimizer bertadam --rounds 2 --target 0.6 --learning-rate 0.001'
)
TUNED = '{w}/sst2/seed-1'
COMMANDS = (
    'pretrain/make_shards.py --input {w}/text --vocab {w}/vocab.txt --output {w}/shards --max-seq-length 32 '
    '--dupe-factor 2 --held-out 0.1',
    f'pretrain/run_pretraining.py {TRAIN} --architecture l2_h16_a2_f32 --steps 12 --learning-rate 0.001 '
    '--initial-std 0.1 --output {w}/model',
    f'{PRUNE} --output {{w}}/pruned --split-half true',
    f'{PRUNE} --output {{w}}/l0 --penalty l0 --split-half true',
    f'{PRUNE} --output {{w}}/proximal --penalty proximal --objective flops --split-half true',
    f'{PRUNE} --output {{w}}/heads --method heads --prune a --target 0.95 --rounds 1',
    f'{PRUNE} --output {{w}}/uniform --method uniform',
    'finetune/run_glue.py --task SST-2 --model {w}/pruned/round-2/model --data {w}/glue --max-length 16 '
    '--batch-size 8 --epochs 2 --learning-rate 0.001 --seeds 1,2 --output {w}/sst2 --results {w}/results',
    f'tools/export_model.py {TUNED} --output {{w}}/deploy --onnx',
    'tools/export_model.py {w}/pruned/round-2/model --output {w}/pretraining-export --head pretraining',
    f'tools/export_model.py {TUNED} --output {{w}}/deploy-int8 --precision int8 '
    '--calibrate {w}/sentences.txt',
    'tools/verify.py {w}/pruned',
    '-m gluon_optbert.architecture optbert_88m --length 128',
    'tools/predict.py {w}/deploy --input {w}/sentences.txt --engine mxnet',  # ONNX Runtime is not everywhere
)
# Runs command lines one after the other, and prints what each has printed.
ONE_PROCESS = """
import contextlib, io, json, runpy, sys
said = []
for module, *words in json.loads(sys.argv[1]):
    sys.argv[:] = words if module == '-m' else [module, *words]
    out = io.TextIOWrapper(io.BytesIO(), encoding='utf-8', newline='')
    with contextlib.redirect_stdout(out):
        try:
            run = runpy.run_module if module == '-m' else runpy.run_path
            run(sys.argv[0], run_name='__main__')
        except SystemExit as ended:
            assert not ended.code, sys.argv
    out.flush()
    said.append(out.buffer.getvalue().decode())
print(json.dumps(said))
"""


def write_text(path: Path, *, paragraphs: int, seed: int) -> None:
    """WikiExtractor's layout: articles of sentences of random words."""
    draw = random.Random(seed)
    articles = []
    for number in range(paragraphs // 4):
        lines = [
            ' '.join(
                ' '.join(draw.choice(WORDS) for _ in range(draw.randint(4, 9))).capitalize() + '.'
                for _ in range(draw.randint(2, 5))
            )
            for _ in range(4)
        ]
        articles.append(
            f'<doc id="{number}" url="" title="T{number}">\nT{number}\n\n' + '\n'.join(lines) + '\n</doc>\n'
        )
    path.parent.mkdir(parents=True)
    path.write_text(''.join(articles), encoding='utf-8')


def write_sst2(directory: Path) -> None:
    """Sentences with and without the word `good`, in GLUE's layout."""
    draw = random.Random(5)
    directory.mkdir(parents=True)
    for part, count in (('train', 48), ('dev', 16)):
        rows = ['sentence\tlabel']
        for _ in range(count):
            words, label = [draw.choice(WORDS) for _ in range(5)], draw.randint(0, 1)
            rows.append(' '.join(words + ['good' if label else 'bad']) + f'\t{label}')
        (directory / f'{part}.tsv').write_text('\n'.join(rows) + '\n', encoding='utf-8')


def run_commands(root: Path, work: Path) -> dict[str, str]:
    """Make shards, pre-train, prune, fine-tune and export below `work`, with one thread; text printed by the
    commands that only print.
    """
    write_text(work / 'text' / 'wiki_00', paragraphs=160, seed=3)
    write_sst2(work / 'glue' / 'SST-2')
    tokens = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS, '.']
    (work / 'vocab.txt').write_text('\n'.join(tokens) + '\n', encoding='utf-8')
    (work / 'gates.yaml').write_text('alpha_learning_rate: 0.05\ngamma: 0.01\n', encoding='utf-8')
    (work / 'sentences.txt').write_text('the old ship is good\na small bird\n', encoding='utf-8')
    lines = json.dumps([[word.format(w=work) for word in line.split()] for line in COMMANDS])
    more = {'PYTHONPATH': str(root), 'OMP_NUM_THREADS': '1', 'PYTHONDONTWRITEBYTECODE': '1'}
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', ONE_PROCESS, lines],
        cwd=str(root),
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    *_, architecture, predictions = json.loads(done.stdout.splitlines()[-1])
    return {'architecture of optbert_88m': architecture, 'predictions': numbers_of(predictions)}


def numbers_of(predictions: str) -> str:
    """The labels and probabilities of predictions, without the texts and names that stand beside them."""
    records = [json.loads(line) for line in predictions.splitlines()]
    kept = [{name: record[name] for name in ('label', 'probabilities')} for record in records]
    return ''.join(json.dumps(record) + '\n' for record in kept)


def without_times(value: object) -> object:
    """JSON values without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in CHANGING_FIELDS}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def digests(work: Path, printed: dict[str, str]) -> dict[str, str]:
    """The SHA-256 of every file below `work`, and of what was printed, by name; files with times in them
    without these.
    """
    contents = {name: text.encode() for name, text in printed.items()}
    for path in sorted(work.rglob('*')):
        if not path.is_file() or path.name in VOLATILE or 'text' in path.parts:
            continue
        content = path.read_bytes()
        if path.suffix == '.json' and 'symbol' not in path.name:
            content = json.dumps(without_times(json.loads(content)), sort_keys=True).encode()
        contents[str(path.relative_to(work))] = content.replace(str(work).encode(), b'WORK')
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}


def processor() -> str:
    """The model of the processor, on which the last bits of trained numbers depend."""
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        lines = [
            line.split(':', 1)[1].strip()
            for line in file
            if line.startswith(('model name', 'model\t', 'cpu family'))
        ]
    return ' '.join(lines[:3]) if lines else platform.processor()


def main() -> None:
    """Print the digests, and the processor that they were made on."""
    work = Path(sys.argv[1]).resolve()
    root = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).resolve().parents[2]).resolve()
    print(
        json.dumps({'processor': processor(), 'digests': digests(work, run_commands(root, work))}, indent=1)
    )


if __name__ == '__main__':
    main()
