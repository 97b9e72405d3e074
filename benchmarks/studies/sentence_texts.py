"""Gather texts for a sentence encoder from GLUE, STS-B, SQuAD and Wikipedia: to learn from, and to search.

    OUTPUT/train/sentences.txt   training texts of STS-B, MNLI, MRPC, RTE and SST-2 without labels, questions
                                 and titles of SQuAD, titles and a quarter of the sentences of Wikipedia
    OUTPUT/train/paragraphs.txt  paragraphs of SQuAD's training set and of Wikipedia
    OUTPUT/search/squad.json     questions of SQuAD's development set, and the paragraphs that answer them
    OUTPUT/search/wiki.json      titles of every tenth article of Wikipedia, and the articles without their
                                 first paragraph
    OUTPUT/pairs.csv             STS-B's development pairs

Articles that are searched are not learnt from. A text is a line.

example:
  python benchmarks/studies/sentence_texts.py --data data --output texts"""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.files import write_file
from gluon_optbert.text.documents import split_sentences

COLUMNS = {
    'SST-2': ('sentence',),
    'MNLI': ('sentence1', 'sentence2'),
    'MRPC': ('#1 String', '#2 String'),
    'RTE': ('sentence1', 'sentence2'),
}
SENTENCES, PARAGRAPHS = 222_000, 32_000  # at most
HELD = 10  # of so many articles, one is searched
SHORTEST, LONGEST = 200, 2_000  # characters of a paragraph


def glue_texts(data: Path) -> Iterator[str]:
    """The texts of training sets of GLUE."""
    for task, columns in COLUMNS.items():
        with open(data / 'glue' / task / 'train.tsv', encoding='utf-8-sig', newline='') as file:
            for row in csv.DictReader(file, delimiter='\t', quoting=csv.QUOTE_NONE):
                yield from (row[column] for column in columns if row[column])


def articles(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Titles and paragraphs of Wikipedia, as WikiExtractor leaves them."""
    for path in sorted((data / 'wiki').rglob('wiki_*')):
        for body in re.findall(r'<doc [^>]*>\n(.*?)</doc>', path.read_text(encoding='utf-8'), re.DOTALL):
            lines = [line.strip() for line in body.splitlines() if line.strip()]
            if len(lines) > 2:
                yield lines[0], lines[1:]


def squad_articles(data: Path, part: str) -> list[dict]:
    return json.loads((data / 'squad' / f'{part}-v1.1.json').read_text(encoding='utf-8'))['data']


@command
def main(argv=None):
    """Write the texts."""
    parser = Parser(__doc__)
    parser.add_argument('--data', type=Path, required=True, help='with glue/, stsb/, squad/ and wiki/')
    parser.add_argument('--output', type=Path, required=True, help='directory to write')
    options = parser.parse_args(argv)
    data, drawn = options.data, random.Random(1)
    sentences, paragraphs = set(glue_texts(data)), set()
    with open(data / 'stsb' / 'train.csv', encoding='utf-8', newline='') as file:
        sentences.update(text for row in csv.reader(file) for text in row[:2])
    for article in squad_articles(data, 'train'):
        sentences.add(article['title'].replace('_', ' '))
        for paragraph in article['paragraphs']:
            paragraphs.add(paragraph['context'])
            sentences.update(one['question'].strip() for one in paragraph['qas'])
    searched: dict[str, list[str]] = {'queries': [], 'documents': []}
    for number, (title, body) in enumerate(articles(data)):
        if number % HELD == HELD - 1:
            searched['queries'].append(title)
            searched['documents'].append(' '.join(body[1:6])[:3000])  # the first one has the title
            continue
        sentences.add(title)
        for paragraph in body:
            if len(paragraph) > SHORTEST:
                paragraphs.add(paragraph[:LONGEST])
            if drawn.random() < 0.25:
                sentences.update(split_sentences(paragraph))
    asked: dict[str, list] = {'queries': [], 'documents': [], 'right': []}
    for article in squad_articles(data, 'dev')[::3]:
        for paragraph in article['paragraphs']:
            asked['queries'].append(paragraph['qas'][0]['question'])
            asked['right'].append(len(asked['documents']))
            asked['documents'].append(paragraph['context'])
    searched['right'] = list(range(len(searched['queries'])))
    (options.output / 'train').mkdir(parents=True)
    (options.output / 'search').mkdir()
    for name, texts, most in (('sentences', sentences, SENTENCES), ('paragraphs', paragraphs, PARAGRAPHS)):
        lines = sorted({' '.join(text.split()) for text in texts} - {''})
        drawn.shuffle(lines)
        write_file(options.output / 'train' / f'{name}.txt', '\n'.join([*lines[:most], '']).encode())
        print(f'{name}: {min(len(lines), most):,} of {len(lines):,}')
    for name, found in (('squad', asked), ('wiki', searched)):
        write_file(options.output / 'search' / f'{name}.json', json.dumps(found).encode())
        print(f'{name}: {len(found["queries"]):,} queries, {len(found["documents"]):,} documents')
    shutil.copyfile(data / 'stsb' / 'dev.csv', options.output / 'pairs.csv')


if __name__ == '__main__':
    sys.exit(main())
