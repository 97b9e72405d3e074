"""The result file of fine-tuning: what it says, and what is none."""

import dataclasses
import json
import re

import pytest
from helpers.tiny import ROOT

from gluon_optbert.finetuning.result import FineTuningResult, summary


def test_result_says_where_it_comes_from(finished, glue):
    result = finished[1]
    assert result.task == 'SST-2' and result.metric == 'dev/accuracy'
    assert result.samples == {'train': 41, 'dev': 13, 'SST-2.tsv': 7}
    assert result.seeds == (1, 2) and result.origin['workers'] == 1
    assert set(result.origin['versions']) == {'gluon_optbert', 'mxnet', 'gluonnlp', 'numpy', 'python'}
    assert result.origin['machine']['cores'] >= 1 and result.origin['machine']['cpu']
    assert result.recipe['learning_rate'] == 0.01 and len(result.model_sha256) == 64
    assert [epoch.step for epoch in result.runs[0].epochs] == [6, 12]
    assert all(run.seconds > 0 and run.kept_epoch == 2 for run in result.runs)
    scores = [run.scores['dev/accuracy'] for run in result.runs]
    assert result.mean['dev/accuracy'] == pytest.approx(sum(scores) / 2)
    assert result.std['dev/accuracy'] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    labels = [line.split('\t')[1] for line in (glue / 'SST-2' / 'dev.tsv').read_text().splitlines()[1:]]
    majority = 100 * max(labels.count('0'), labels.count('1')) / len(labels)
    assert result.majority == {'dev/accuracy': pytest.approx(majority)}


def test_file_says_which_instances_were_right_and_may_be_of_another_version(finished):
    result = finished[1]
    for run in result.runs:
        assert set(run.right) == {'dev'} and set(run.right['dev']) <= {'0', '1'}
        assert 100 * run.right['dev'].count('1') / 13 == pytest.approx(run.scores['dev/accuracy'])
        assert len(run.right['dev']) == 13
    content = (finished[0] / 'run' / 'result.json').read_bytes()
    values = json.loads(content)
    assert content == result.to_json() and values['unit'] == 'percent' and values['seeds'] == [1, 2]
    with_more = FineTuningResult.from_dict({**values, 'of a later version': 3}, source='run.json')
    assert with_more.to_dict() == {**values, 'of a later version': 3}
    del values['runs'][0]['right'], values['runs'][1]['right']
    old = FineTuningResult.from_dict(values, source='an earlier file')
    assert [run.right for run in old.runs] == [None, None] and old.to_dict() == values


def test_summary_marks_a_score_that_the_majority_class_has_as_well(finished):
    good, poor = (
        dataclasses.replace(finished[1], majority={'dev/accuracy': finished[1].mean['dev/accuracy'] + more})
        for more in (-1.0, 0.0)
    )
    assert '*' not in summary(good) and 'always the majority class: dev/accuracy' in summary(good)
    first, _, last = summary(poor).splitlines()
    assert first.endswith(' *') and last.startswith('* no better than the majority class')


RECORDED = sorted(
    path
    for path in (ROOT / 'results' / 'finetuning').rglob('*.json')
    if '"format": "gluon_optbert fine-tuning"' in path.read_text()
)


@pytest.mark.parametrize('path', RECORDED, ids=lambda path: path.stem)
def test_recorded_result_is_written_again_as_it_was(path):
    recorded = re.sub(r'\n +"resumed_at": \w+,|,\n +"resumed_at": \w+(?=\n)', '', path.read_text())
    assert FineTuningResult.read(path).to_json().decode() == recorded  # a field of an earlier version


@pytest.mark.parametrize(
    'change',
    [{'format': 'other'}, {'runs': [{'seed': 1}]}, {'samples': None}, {'metric': 'dev/f1'}, {'runs': []}],
)
def test_file_that_is_no_result_is_refused_by_name(finished, change):
    values = {name: value for name, value in {**finished[1].to_dict(), **change}.items() if value is not None}
    for wrong in (values, [values], None):
        with pytest.raises(ValueError, match='run.json: not a result of fine-tuning'):
            FineTuningResult.from_dict(wrong, source='run.json')
