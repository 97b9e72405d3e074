"""Style that a reader of the sources may expect everywhere."""

import subprocess

import pytest
from helpers.tiny import ROOT

LONGEST = 110
ENDINGS = {'.py', '.sh', '.c', '.yaml', '.yml', '.toml', '.cfg', '.md', ''}


def sources():
    """The text files that people write, by path; data files are data."""
    names = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=str(ROOT), stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    return [
        ROOT / name
        for name in names.split('\0')
        if (ROOT / name).is_file() and (ROOT / name).suffix in ENDINGS and not name.startswith('results/')
    ]


def lines(path):
    """The lines of a file with their numbers; in Markdown without tables, addresses and what stands between
    fences.
    """
    fenced = False
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        fenced ^= path.suffix == '.md' and line.startswith('```')
        if path.suffix != '.md' or not (fenced or line.startswith('|') or '](http' in line):
            yield number, line


@pytest.mark.skipif(
    not (ROOT / '.git').exists(), reason='no git checkout, which says what belongs to the project'
)
def test_no_line_is_too_long():
    long = [
        f'{path.relative_to(ROOT)}:{number}: {len(line)} characters'
        for path in sources()
        for number, line in lines(path)
        if len(line) > LONGEST
    ]
    assert long == []
