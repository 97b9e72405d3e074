"""``config.json`` and the tokenizer of a directory that Transformers loads: plain JSON, without MXNet."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, processors

from ..architecture.architecture import Architecture
from ..architecture.heads import Head
from ..architecture.parameters import INITIAL_STD
from ..text.tokenizer import SPECIAL, Vocabulary, library_tokenizer, settings_of, vocabulary_bytes
from .description import MASKED_LM

OWN = 'gluon_optbert'  # the key of config.json that other programs leave alone
CODE = Path(__file__).parent / 'hub_code' / 'modeling_optbert.py'  # computes uneven widths; no MXNet in it
DROPOUT = 0.1  # of fine-tuning, BERT's
# A capital sigma at the end of a word, as `str.lower` finds it: after a letter with a case and before none.
# Marks, and signs such as an apostrophe, are skipped.
_CASED, _SKIPPED = '[\\p{Lu}\\p{Ll}\\p{Lt}]', "[\\p{Mn}\\p{Me}\\p{Cf}\\p{Lm}\\p{Sk}'.:·’‘․‧]"
_FINAL_SIGMA = f'(?<={_CASED}|{_CASED}{_SKIPPED}|{_CASED}{_SKIPPED}{_SKIPPED})Σ(?!{_SKIPPED}*{_CASED})'
# The classes of Transformers by what an export computes, or by the kind of the head of its task. They follow
# `Bert` for plain widths and `OptBert` for uneven ones.
CLASSES = {
    'encoder': 'Model',
    'pretraining': 'ForPreTraining',
    MASKED_LM: 'ForMaskedLM',
    **dict.fromkeys(('classification', 'regression', 'multi_label'), 'ForSequenceClassification'),
    'question_answering': 'ForQuestionAnswering',
    'token_classification': 'ForTokenClassification',
}
PROBLEMS = {
    'regression': 'regression',
    'classification': 'single_label_classification',
    'multi_label': 'multi_label_classification',
}
_HEADS = ('PreTraining', 'MaskedLM', 'SequenceClassification', 'QuestionAnswering', 'TokenClassification')
AUTO = {'AutoModel': 'Model', **{f'AutoModelFor{head}': f'For{head}' for head in _HEADS}}


def is_plain(architecture: Architecture) -> bool:
    """Whether BERT's own configuration describes the widths: equal layers, k = v = h/a, f > 0, no factorised
    embedding.
    """
    layers = set(architecture.layers)
    if architecture.e is not None or len(layers) != 1:
        return False
    (dims,) = layers
    return dims.k == dims.v and dims.a * dims.k == architecture.h and dims.f > 0


def bert_config(architecture: Architecture, head: Head, kind: str) -> dict[str, Any]:
    """The fields of a ``config.json`` for ``BertConfig``.

    Where widths are uneven, the number of heads and the filter size are the largest of all layers, for
    programs that want one number.
    """
    labels = {}
    if kind == 'task' and head.kind != 'question_answering':
        names = head.names or head.labels or ('LABEL_0',)
        labels = {
            'id2label': {str(i): name for i, name in enumerate(names)},
            'label2id': {name: i for i, name in enumerate(names)},
            **({'problem_type': PROBLEMS[head.kind]} if head.kind in PROBLEMS else {}),
            **({'finetuning_task': head.task} if head.task else {}),
        }
    return {
        'model_type': 'bert',
        'architectures': ['Bert' + CLASSES[head.kind if kind == 'task' else kind]],
        'vocab_size': architecture.vocab_size,
        'hidden_size': architecture.h,
        'num_hidden_layers': len(architecture.layers),
        'num_attention_heads': max((dims.a for dims in architecture.layers), default=1),
        'intermediate_size': max((dims.f for dims in architecture.layers), default=0),
        'max_position_embeddings': architecture.max_length,
        'type_vocab_size': architecture.token_types,
        'layer_norm_eps': architecture.layer_norm_eps,
        'hidden_act': 'gelu',
        'position_embedding_type': 'absolute',
        'hidden_dropout_prob': DROPOUT,
        'attention_probs_dropout_prob': DROPOUT,
        'initializer_range': INITIAL_STD,
        'tie_word_embeddings': True,
        'torch_dtype': 'float32',
        **labels,
    }


def transformers_config(
    architecture: Architecture, head: Head, kind: str, *, untrained: Sequence[str] = ()
) -> dict[str, Any]:
    """A ``config.json`` for Transformers: BERT's own for plain widths, else one that names our code.

    Under the key `OWN` it has what only this package reads: the head with its labels, and the parts that are
    random. Arguments as of `bert_config`.
    """
    config = bert_config(architecture, head, kind)
    if not is_plain(architecture):
        config.update(
            model_type='optbert',
            architectures=['Opt' + name for name in config['architectures']],
            auto_map={
                'AutoConfig': f'{CODE.stem}.OptBertConfig',
                **{auto: f'{CODE.stem}.OptBert{name}' for auto, name in AUTO.items()},
            },
            embedding_size=architecture.e,
            layer_widths=[dataclasses.asdict(dims) for dims in architecture.layers],
        )
    own = {'head': head.to_dict(), 'untrained': list(untrained)} if kind == 'task' or untrained else {}
    return {**config, **({OWN: own} if own else {})}


def hub_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """A tokenizer of the library `tokenizers`, whose ids are those of this package's, with [CLS] and [SEP].

    A text that spells a special token has that token there; here, it has it if the token is an added one.
    """
    settings = settings_of(vocabulary)
    tokenizer = library_tokenizer(vocabulary, settings)
    if settings.lowercase and settings.final_sigma:
        sigma = normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), 'ς')
        tokenizer.normalizer = normalizers.Sequence([sigma, tokenizer.normalizer])
    known = {token.content for token in settings.added_tokens}
    added = [token for token in SPECIAL.values() if token not in known]
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    tokenizer.post_processor = processors.TemplateProcessing(
        single='[CLS] $A [SEP]',
        pair='[CLS] $A [SEP] $B:1 [SEP]:1',
        special_tokens=[(token, vocabulary[token]) for token in ('[CLS]', '[SEP]')],
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def tokenizer_config(vocabulary: Vocabulary, max_length: int) -> dict[str, Any]:
    """Settings of Transformers' tokenizer beside `hub_tokenizer`."""
    settings = settings_of(vocabulary)
    return {
        'tokenizer_class': 'PreTrainedTokenizerFast',  # takes tokenizer.json as it is
        'model_max_length': max_length,
        'model_input_names': ['input_ids', 'token_type_ids', 'attention_mask'],
        'do_lower_case': settings.lowercase,
        'strip_accents': settings.strip_accents,
        'tokenize_chinese_chars': settings.handle_chinese_chars,
        'clean_up_tokenization_spaces': True,
        **SPECIAL,
    }


def write_hub_files(directory: Path, config: Mapping[str, Any], saved: Any) -> None:
    """Write ``config.json``, with the number of [PAD], and the tokenizer's files into a directory.

    The configuration is as `bert_config` or `transformers_config` give it, `saved` the `SavedModel`.
    """
    vocabulary, max_length = saved.vocabulary, saved.architecture.max_length
    files = {
        'config.json': {**config, 'pad_token_id': vocabulary['[PAD]']},
        'tokenizer.json': json.loads(hub_tokenizer(vocabulary).to_str()),
        'tokenizer_config.json': tokenizer_config(vocabulary, max_length),
        'special_tokens_map.json': SPECIAL,
    }
    for name, values in files.items():
        write_hub_json(directory / name, values)
    (directory / 'vocab.txt').write_bytes(vocabulary_bytes(vocabulary))


def write_hub_json(path: Path, values: Any) -> None:
    """Write JSON as these files have it."""
    path.write_bytes((json.dumps(values, ensure_ascii=False, indent=2) + '\n').encode('utf-8'))
