"""Whole model cards, as they were read and approved: a change of a template shows here."""

from pathlib import Path

import pytest
from helpers.tiny import network

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.deployment.card_usage import Usage
from gluon_optbert.deployment.model_card import CardFacts, model_card
from gluon_optbert.deployment.story import Finetuning, Pruning, PruningRound, Story, Trimming
from gluon_optbert.runs.progress import HeldOut

CARDS = Path(__file__).parent / 'cards'
EVEN = network((2, 4, 4, 8), (2, 4, 4, 8), (2, 4, 4, 8))
UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (1, 4, 2, 0), e=5)
SST = Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('sentence', 'label'))
MANY = Head('classification', tuple(map(str, range(42))))
STS = Head('regression', (), 'STS-B', (), ('a', 'b', 'score'))
SQUAD = Head('question_answering', task='SQuAD2.0')
MXNET = {'model-0000.params': 1_000_000, 'model-symbol.json': 20_000, 'vocab.txt': 10}
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
PRUNED = Pruning(
    EVEN,
    (PruningRound(0, 2_000_000, 3.0), PruningRound(1, 1_500_000, 3.1), PruningRound(2, 1_000_000, None)),
    {'method': 'alpha', 'prune': 'hakvf', 'penalty': '<b>', 'objective': 'flops'},
    'abcdef0123+',
)
FOR_TASK = Pruning(
    EVEN,
    (PruningRound(0, 20, score=90.0), PruningRound(1, 10, score=88.5)),
    {},
    metric='accuracy',
    again=True,
)

FACTS = {
    'encoder': CardFacts(EVEN, PRETRAINING, 'encoder', 'mxnet', MXNET, origin=ORIGIN),
    'encoder_random_pooler': CardFacts(
        UNEVEN,
        PRETRAINING,
        'encoder',
        'mxnet',
        {**MXNET, 'model.onnx': 2_000_000},
        untrained=('pooler',),
        lower_case=False,
        story=Story(pretrained_steps=1700, checkpoint='my_bert'),
    ),
    'pretraining': CardFacts(
        UNEVEN,
        PRETRAINING,
        'pretraining',
        'mxnet',
        {**MXNET, 'model.onnx': 2_000_000},
        origin=ORIGIN,
        story=Story(pruning=PRUNED, trained_steps=2120, held_out=HeldOut(2.345678, 0.56789, 0.5, 0.99, 1000)),
        usage=Usage(mxnet_inputs=('input_ids', 'token_types', 'valid_length', 'masked_positions')),
    ),
    'sentences': CardFacts(
        UNEVEN,
        SST,
        'task',
        'mxnet',
        {**MXNET, 'model.onnx': 2_000_000},
        license='apache-2.0',
        origin=ORIGIN,
        story=Story(TUNED, PRUNED, 1700, checkpoint='minilm', trimming=Trimming(30522, 14750, False)),
        text_length=128,
    ),
    'sentences_bfloat16': CardFacts(
        UNEVEN,
        SST,
        'task',
        'mxnet',
        MXNET,
        precision='bfloat16',
        story=Story(Finetuning({'dev/accuracy': 80})),
        measured={'score': 0.7, 'float32_score': 0.8, 'agreement': {'texts': 9, 'same_label': 0.9}},
    ),
    'many_labels': CardFacts(EVEN, MANY, 'task', 'transformers', {'model.safetensors': 9_000_000}),
    'pairs': CardFacts(
        UNEVEN,
        STS,
        'task',
        'transformers',
        {'model.safetensors': 9_000_000, 'modeling_optbert.py': 10},
        story=Story(Finetuning({'dev/pearson': 80.0}), FOR_TASK, trimming=Trimming(30522, 14750, True)),
    ),
    'questions': CardFacts(
        UNEVEN,
        SQUAD,
        'task',
        'mxnet',
        {**MXNET, 'model.onnx': 2_000_000},
        license='mit',
        story=Story(Finetuning({'dev/f1': 60.0, 'dev/best_f1': 61.0, 'dev/best_f1_thresh': 1.36})),
        usage=Usage(('input_ids', 'token_types', 'valid_length')),
    ),
    'questions_optimum': CardFacts(
        UNEVEN, SQUAD, 'task', 'onnx', {'model.onnx': 2_000_000, 'model_quantized.onnx': 500_000}
    ),
    'tokens_optimum': CardFacts(EVEN, PRETRAINING, 'pretraining', 'onnx', {'model.onnx': 2_000_000}),
    'pretraining_transformers': CardFacts(
        EVEN, PRETRAINING, 'pretraining', 'transformers', {'model.safetensors': 9_000_000}
    ),
    'encoder_transformers': CardFacts(
        UNEVEN, PRETRAINING, 'encoder', 'transformers', {'model.safetensors': 1, 'modeling_optbert.py': 10}
    ),
    'sentence_transformers': CardFacts(
        EVEN,
        PRETRAINING,
        'encoder',
        'sentence-transformers',
        {'onnx/model.onnx': 2_000_000, 'onnx/model_quantized.onnx': 500_000},
        story=Story(
            pruning=Pruning(EVEN, PRUNED.rounds[:2], {}, metric='relative error', whole_vocabulary=30522),
            trimming=Trimming(30522, 14750, False),
        ),
    ),
}


@pytest.mark.parametrize('name', FACTS)
def test_a_card_reads_as_it_was_approved(name):
    assert model_card(FACTS[name]) == (CARDS / f'{name}.txt').read_text(encoding='utf-8')
