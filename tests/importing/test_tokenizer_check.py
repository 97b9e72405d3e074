"""The tokenizer of a checkpoint: the ids of the library `tokenizers`, or a refusal that names the piece."""

import json

import pytest
import tokenizers
from helpers.checkpoints import write_hugging_face
from helpers.commands import call
from helpers.examples import examples
from helpers.tiny import TOKENS
from hypothesis import given, strategies as st
from tokenizers import models, processors

from gluon_optbert.deployment.description import read_description
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.library_exports import export_transformers
from gluon_optbert.importing.tokenizer_check import read_tokenizer
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.text.tokenizer import (
    SPECIAL_TOKENS,
    AddedToken,
    TokenizerSettings,
    make_aligner,
    make_tokenizer,
    vocabulary_hash,
    vocabulary_of,
    word_splitter,
)
from gluon_optbert.text.trimming import count_words, trimmed_vocabulary

LETTERS = 'abcdehilmnorsuςσéＡA東京が한ﬁ'
VOCABULARY = [*SPECIAL_TOKENS, *LETTERS, *('##' + letter for letter in LETTERS), *"'-.<>"]
VOCABULARY += ['the', 'old', 'house', '##ouse', 'user']
SMALL = [token for token in VOCABULARY if token == token.lower() or token in SPECIAL_TOKENS]
SIGNS = LETTERS + 'HDMI<>[]. \u0301\u00ad\x01İΣß'
TEXTS = st.lists(
    st.text(SIGNS, max_size=8) | st.sampled_from(['HDMI', 'hdmi', '<user>', 'cat', 'cats', '[MASK]']),
    max_size=6,
)
BERT = {
    'type': 'BertNormalizer',
    'clean_text': True,
    'handle_chinese_chars': True,
    'strip_accents': None,
    'lowercase': True,
}
FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')}
)


def library(
    *, normalizer=BERT, pre_tokenizer='BertPreTokenizer', added=(), limit=100, tokens=VOCABULARY, **model
):
    """A tokenizer of `tokenizers` with the special tokens and some added ones, with their flags."""
    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(numbers, unk_token='[UNK]', max_input_chars_per_word=limit, **model)
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    values = json.loads(tokenizer.to_str())
    more = {'individual_digits': True} if pre_tokenizer == 'Digits' else {}
    values.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer and {'type': pre_tokenizer, **more})
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
    for content, flags in added:
        tokenizer.add_tokens([tokenizers.AddedToken(content, **flags)])
    tokenizer.post_processor = processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
    return tokenizer


def written(directory, tokenizer=None, *, vocabulary=VOCABULARY, **files):
    """The files of a tokenizer: that of the library, ``vocab.txt``, and JSON values by the names of files."""
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        (directory / 'tokenizer.json').write_text(tokenizer.to_str())
    if vocabulary:
        (directory / 'vocab.txt').write_text('\n'.join(vocabulary) + '\n')
    for name, values in files.items():
        (directory / f'{name}.json').write_text(json.dumps(values))
    return directory


def assert_same_ids(vocabulary, tokenizer, text):
    wanted = tokenizer.encode(text, add_special_tokens=False).ids
    assert make_tokenizer(vocabulary)(text) == wanted == make_aligner(vocabulary)(text)[0], text


def sequence(*parts):
    return {'type': 'Sequence', 'normalizers': list(parts)}


# What can be expressed


NORMALIZERS = st.fixed_dictionaries(
    {
        **{name: st.just(value) if name == 'type' else st.booleans() for name, value in BERT.items()},
        'strip_accents': st.sampled_from([None, True, False]),
    }
)
OTHERS = [
    ({'type': 'NFKC'}, BERT),
    ({'type': 'NFC'}, BERT),
    ({'type': 'NFD'}, {'type': 'Lowercase'}, {'type': 'StripAccents'}),
    ({'type': 'Lowercase'},),
    ({'type': 'Replace', 'pattern': {'String': '-'}, 'content': ' '}, BERT),
    ({'type': 'Strip', 'strip_left': True, 'strip_right': True}, BERT),
]
SPLITTERS = ['BertPreTokenizer', 'Whitespace', 'WhitespaceSplit', 'Digits', None]
ADDED = st.lists(
    st.tuples(st.sampled_from(['HDMI', '<user>', 'cat', 'the', 'É', 'un re', '東京']), FLAGS),
    max_size=4,
    unique_by=lambda pair: pair[0],
)


@examples(25)
@given(
    normalizer=NORMALIZERS | st.sampled_from(OTHERS).map(lambda parts: sequence(*parts)),
    splitter=st.just('BertPreTokenizer') | st.sampled_from(SPLITTERS),
    added=ADDED,
    limit=st.integers(1, 300),
    texts=TEXTS,
    whole=st.booleans(),
)
def test_bert_tokenizers_are_taken_over_and_others_are_if_they_read_alike(
    tmp_path_factory, normalizer, splitter, added, limit, texts, whole
):
    tokenizer = library(normalizer=normalizer, pre_tokenizer=splitter, added=added, limit=limit)
    files = written(tmp_path_factory.mktemp('hf'), tokenizer, vocabulary=None if whole else VOCABULARY)
    try:
        vocabulary, notes = read_tokenizer(files)
    except ValueError as error:
        assert normalizer['type'] == 'Sequence' or splitter != 'BertPreTokenizer'
        assert 'normalizer of tokenizer.json' in str(error) or 'the pre_tokenizer of' in str(error)
    else:
        assert notes == () and vocabulary.settings.max_input_chars_per_word == limit
        for text in (' '.join(texts), ''.join(texts)):
            assert_same_ids(vocabulary, tokenizer, text)


def other_ends():
    tokenizer = library()
    tokenizer.post_processor = processors.TemplateProcessing('[CLS] $A', '[CLS] $A $B:1', [('[CLS]', 2)])
    return tokenizer


CLASS = {'tokenizer_class': 'BertTokenizer', 'do_lower_case': True}
USER = {str(len(VOCABULARY)): {'content': 'HDMI', 'single_word': True, 'normalized': True}}
NFKC = library(normalizer=sequence({'type': 'NFKC'}, BERT))
REFUSED = {
    'mecab': (None, {'word_tokenizer_type': 'mecab'}, 'word_tokenizer_type: "mecab"'),
    'other class': (None, {'tokenizer_class': 'MPNetTokenizer'}, 'tokenizer_class: "MPNetTokenizer"'),
    'cls': (None, {'cls_token': '<s>'}, "cls_token: '<s>', wanted .CLS."),
    'nothing said': (None, {'do_lower_case': None}, 'does not say do_lower_case, .* such as Ａ'),
    'NFKC': (NFKC, {}, r'normalizer of tokenizer.json \(Sequence\): the word'),
    'no splitter': (library(pre_tokenizer=None), {}, 'pre_tokenizer of tokenizer.json .none.'),
    'unigram': (
        tokenizers.Tokenizer(models.Unigram([('a', -1.0), ('b', -2.0)], 0, False)),
        {},
        'is Unigram, wanted WordPiece',
    ),
    'prefix': (library(continuing_subword_prefix='@@'), {}, "continuing_subword_prefix '@@'"),
    'case': (library(), {'do_lower_case': False}, 'do_lower_case: false, and tokenizer.json .* true'),
    'number': (
        library(tokens=[*VOCABULARY[:-2], 'user', '##ouse']),
        {},
        "'##ouse' has number .* in vocab.txt",
    ),
    'flags': (library(added=[('HDMI', {})]), {'added_tokens_decoder': USER}, "'HDMI' has other flags"),
    'ends': (other_ends(), {}, 'post_processor of tokenizer.json'),
}


@pytest.mark.parametrize('tokenizer, config, said', REFUSED.values(), ids=REFUSED)
def test_what_is_read_otherwise_is_refused_by_its_piece_or_imported_as_it_is(
    tmp_path, tokenizer, config, said
):
    files = written(tmp_path / 'hf', tokenizer, tokenizer_config={**CLASS, **config})
    with pytest.raises(ValueError, match=f'{said}.*--tokenizer as-is') as error:
        read_tokenizer(files)
    assert len(str(error.value).splitlines()) == 1
    vocabulary, notes = read_tokenizer(files, as_is=True)
    assert vocabulary.settings.as_is and vocabulary.settings.as_is in notes[-1]


@pytest.mark.parametrize('vocabulary', [None, VOCABULARY])
def test_a_model_without_its_unknown_token_is_refused(tmp_path, vocabulary):
    """`tokenizers` fails at the first word that it does not know."""
    values = json.loads(library().to_str())
    values['model']['vocab'] = {'a': len(SPECIAL_TOKENS)}  # the special tokens are added ones alone
    directory = written(tmp_path / 'hf', vocabulary=vocabulary)
    (directory / 'tokenizer.json').write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"tokenizer.json: its model lacks '\[UNK\]'"):
        read_tokenizer(directory, as_is=True)


def test_a_tokenizer_that_panics_is_refused(tmp_path):
    nothing = {'type': 'Replace', 'pattern': {'Regex': ''}, 'content': 'a'}
    files = written(tmp_path / 'hf', library(normalizer=sequence(nothing, BERT)))
    with pytest.raises(ValueError, match='tokenizer.json: `tokenizers` fails with it .index out of bounds'):
        read_tokenizer(files, as_is=True)


def test_a_limit_that_no_word_reaches_is_read(tmp_path):
    vocabulary, _ = read_tokenizer(written(tmp_path, library(limit=1 << 40), vocabulary=None))
    assert vocabulary.settings.max_input_chars_per_word == 1 << 40


def test_added_tokens_are_read_from_every_file(tmp_path):
    numbers = len(VOCABULARY)
    decoder = {str(numbers): {'content': 'HDMI', 'single_word': True, 'normalized': False, 'special': False}}
    files = written(
        tmp_path / 'hf',
        tokenizer_config={**CLASS, 'added_tokens_decoder': decoder, 'extra_special_tokens': ['<user>']},
        added_tokens={'HDMI': numbers, 'USB': numbers + 1},
        special_tokens_map={'additional_special_tokens': [{'content': '<url>'}, 'USB']},
    )
    vocabulary, _ = read_tokenizer(files)
    assert vocabulary.idx_to_token[numbers:] == ['HDMI', 'USB', '<user>', '<url>']
    tokens = {token.content: token for token in vocabulary.settings.added_tokens}
    assert tokens['HDMI'] == AddedToken(content='HDMI', single_word=True, normalized=False, piece=False)
    assert tokens['USB'].special and tokens['[MASK]'].piece and tokens.keys() >= set(SPECIAL_TOKENS)
    ids = make_tokenizer(vocabulary)('the HDMI hdmis <user>s [MASK]USB')
    assert [vocabulary.idx_to_token[i] for i in ids][:2] == ['the', 'HDMI'] and ids.count(numbers) == 1
    assert numbers + 1 in ids and numbers + 2 in ids and 4 in ids
    for name, values, said in (
        ('added_tokens', {'HDMI': numbers, 'USB': numbers + 3}, "'USB' has number .*, and would be token"),
        ('special_tokens_map', {'cls_token': {'content': []}}, 'special_tokens_map.json: content must be'),
        ('added_tokens', {'a\nb': numbers}, r"added_tokens.json.*'a\\nb'.*line"),
        ('added_tokens', {'\n': numbers}, r"added_tokens.json.*'\\n'.*line"),
    ):
        with pytest.raises(ValueError, match=said):
            read_tokenizer(written(files, **{name: values}))


def test_one_capital_in_an_added_token_does_not_make_a_vocabulary_cased(tmp_path):
    tokenizer = library(tokens=SMALL, added=[('HDMI', {'normalized': True})])
    vocabulary, _ = read_tokenizer(written(tmp_path, tokenizer, vocabulary=None))
    assert_same_ids(vocabulary, tokenizer, 'The old House HDMI hdmi')
    assert vocabulary['[UNK]'] not in make_tokenizer(vocabulary)('The old House')
    (tmp_path / 'tokenizer.json').unlink()
    written(tmp_path, vocabulary=[*SMALL, 'HDMI'], tokenizer_config=CLASS)
    assert read_tokenizer(tmp_path)[0].settings.lowercase


@pytest.mark.parametrize('cased', [False, True])
def test_without_any_settings_the_vocabulary_decides(tmp_path, cased):
    vocabulary, notes = read_tokenizer(written(tmp_path, vocabulary=VOCABULARY if cased else SMALL))
    assert vocabulary.settings.lowercase != cased and vocabulary.settings.max_input_chars_per_word == 100
    assert len(notes) == cased and all('no file says do_lower_case' in note for note in notes)


# What the settings decide later


SETTINGS = TokenizerSettings(
    lowercase=True,
    strip_accents=False,
    final_sigma=False,
    max_input_chars_per_word=5,
    added_tokens=(AddedToken(content='HDMI', piece=False),),
)


@examples(30)
@given(st.lists(st.text('abHDMIhdmi é\u0301\x01東Σ.', max_size=5), max_size=4).map('hDmI'.join))
def test_words_with_added_tokens_are_those_without_and_the_tokens(text):
    words = word_splitter(SETTINGS)(text)
    plain = word_splitter(SETTINGS.model_copy(update={'added_tokens': ()}))
    pieces = text.lower().split('hdmi')
    if len(pieces) == 1:
        assert words == plain(text)
    assert words.count('HDMI') == len(pieces) - 1
    assert ''.join(words).replace('HDMI', 'hdmi') == ''.join(plain(text))


def test_settings_go_with_the_vocabulary_wherever_it_goes(tmp_path):
    source = write_hugging_face(tmp_path / 'hf', vocab_size=len(TOKENS))
    tokenizer = library(
        normalizer=sequence({'type': 'NFKC'}, {**BERT, 'strip_accents': False}), tokens=TOKENS, limit=7
    )
    (source / 'tokenizer.json').write_text(tokenizer.to_str())
    command = ('tools/import_checkpoint.py', source, '--output', tmp_path / 'model')
    assert call(*command).returncode == 2 and not (tmp_path / 'model').exists()
    done = call(*command, '--tokenizer', 'as-is')
    assert done.returncode == 0
    assert 'note: the tokenizer is not that of the checkpoint: the normalizer' in done.stdout
    saved = read_model(tmp_path / 'model')
    settings = saved.vocabulary.settings
    assert (settings.strip_accents, settings.max_input_chars_per_word) == (False, 7)
    assert 'normalizer' in settings.as_is
    plain = vocabulary_of(TOKENS)
    assert vocabulary_hash(saved.vocabulary) != vocabulary_hash(plain) and saved.vocabulary != plain
    export(saved, tmp_path / 'deploy', head='encoder')
    assert read_description(tmp_path / 'deploy').vocabulary == saved.vocabulary
    assert json.loads((tmp_path / 'deploy/manifest.json').read_text())['tokenizer']['as_is'] == settings.as_is
    assert 'Text is not read as by the tokenizer' in (tmp_path / 'deploy/README.md').read_text()
    export_transformers(saved, tmp_path / 'again')
    again, _ = read_tokenizer(tmp_path / 'again')
    assert again.settings == settings.model_copy(update={'as_is': ''})
    trimmed = trimmed_vocabulary(saved.vocabulary, count_words(['ab'], saved.vocabulary))
    assert trimmed.settings == settings
    (tmp_path / 'model/tokenizer_settings.json').write_text('{}')
    with pytest.raises(ValueError, match='tokenizer_settings.json has'):
        read_model(tmp_path / 'model')


def test_an_added_token_stays_when_the_vocabulary_is_trimmed_and_has_to_be_among_the_last():
    vocabulary = vocabulary_of([*VOCABULARY, 'HDMI'], settings=SETTINGS)
    words = count_words(['the old HDMIs'], vocabulary)
    assert words == {'the': 1, 'old': 1, 'HDMI': 1, 's': 1}
    trimmed = trimmed_vocabulary(vocabulary, words)
    assert 'house' not in trimmed and trimmed.idx_to_token[-1] == 'HDMI' and trimmed.settings == SETTINGS
    for tokens in (VOCABULARY, ['HDMI', *VOCABULARY]):
        with pytest.raises(ValueError, match="the added tokens 'HDMI' are not"):
            vocabulary_of(tokens, settings=SETTINGS)
