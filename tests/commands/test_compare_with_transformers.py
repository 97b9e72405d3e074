"""The comparison with Transformers, whose part is played by the network here and by given ids."""

import json

import compare_with_transformers
import pytest
from helpers.checkpoints import write_hugging_face
from helpers.tiny import TOKENS


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """A function (ids that the peer makes of some sentences, what it adds to activations) → status, what was
    said.
    """
    source = write_hugging_face(tmp_path / 'hf')
    (tmp_path / 'sentences').write_text('ab c .\nb c\nc b a\n', encoding='utf-8')

    def run(other_ids, added=0.0):
        def peer(recipe, saved, feed, sentences):
            arrays = compare_with_transformers.activations(saved, feed)
            said = {'torch': '1', 'transformers': '2', 'other_ids': other_ids}
            return {name: value + added for name, value in arrays.items()}, json.loads(json.dumps(said))

        monkeypatch.setattr(compare_with_transformers, 'peer_activations', peer)
        status = compare_with_transformers.main(
            [str(source), '--peer', 'none', '--sentences', str(tmp_path / 'sentences')]
        )
        return status, *capsys.readouterr()

    return run


def test_equal_ids_and_activations_agree(compare):
    status, said, complaint = compare({})
    assert status == 0 and not complaint
    assert said.splitlines()[-1] == (
        'agreed: the same ids of every sentence, and all activations within 1e-04'
    )


def test_other_ids_are_a_failure_that_says_where(compare):
    specials = [TOKENS.index('[CLS]'), TOKENS.index('[SEP]')]
    ids = [specials[0], *map(TOKENS.index, 'bbc'), specials[1]]
    status, said, complaint = compare({1: ids, 2: specials})
    assert status == 1 and 'agreed' not in said
    assert complaint.startswith(
        "error: not the same: the ids of 2 of 3 sentences differ: sentence 2 ('b c') goes on as c [SEP] here "
        'and as b c [SEP] there'
    )
    assert len(complaint.splitlines()) == 1


def test_other_activations_are_a_failure(compare):
    status, said, complaint = compare({}, added=0.5)
    assert status == 1 and 'agreed' not in said and 'differs by 5.0e-01, more than 1e-04' in complaint


def test_other_ids_and_other_activations_are_said_in_one_line(compare):
    status, _, complaint = compare({1: [TOKENS.index('[CLS]')]}, added=0.5)
    assert status == 1 and len(complaint.splitlines()) == 1
    assert 'differs by 5.0e-01' in complaint and 'the ids of 1 of 3 sentences differ' in complaint
