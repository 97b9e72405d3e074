"""What is fetched: one line before it, none of the attempts, and a short reason where there is no network."""

import pytest

from gluon_optbert.runs.files import fetching, reason


def test_words_of_the_library_are_left_out(capsys):
    with fetching('train.tsv'):
        print('Downloading train.zip, 4 attempts left')
    said = capsys.readouterr()
    assert (said.out, said.err) == ('', 'fetching train.tsv\n')


@pytest.mark.parametrize(
    'text, wanted',
    [
        (
            "HTTPSConnectionPool(host='data.example', port=443): Max retries exceeded (Caused by "
            "NameResolutionError('Failed to resolve'))",
            'no connection to data.example',
        ),
        ('checksum differs\nat byte 7', 'OSError: checksum differs'),
        ('x' * 1000, 'OSError: ' + 'x' * 151),
    ],
)
def test_reason_is_one_short_line(text, wanted):
    assert reason(OSError(text)) == wanted
