"""Raw text: its layouts, its documents, its sentences."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import textwrap

import pytest
from helpers.examples import examples
from helpers.questions import write
from hypothesis import given, strategies as st

from gluon_optbert.text import documents, sentences
from gluon_optbert.text.documents import list_files, read_documents, sentences_of
from gluon_optbert.text.layouts import ARTICLE, detect_layout
from gluon_optbert.text.sentences import split_sentences

PROSE = """CHAPTER I

The miller rose before it was light, and he looked over the weir where the
water ran black and _very_ fast under the well-
known bridge--
and then he went in.

"Is it you?" she asked. "It is," he said.

* * * * *

He came to the end of the road and saw no licence there."""

SENTENCES = 'This is one sentence.\nThis is another!\n\nA new document begins. \n\n\n   \n"Does it?" \n'
WIKITEXT = """
 = A =

 A is a well @-@ known letter . It weighs 1 @,@ 000 pounds .
 " = = " is no heading = .

 = = First use = =

 = = = In Rome = = =

 It was used .
 x = 2 =

 = B & C =

 B isn 't A .
"""
MOSES = 'It isn &apos;t a well @-@ known &quot; fact &quot; .\nHe paid ( much ) .\n\nNo , he did not !\n'


def lines_of(path, layout='auto'):
    return [list(document.lines) for document in read_documents(path, layout)]


def sentences_in(path):
    return [sentences_of(document) for document in read_documents(path)]


def test_a_first_line_that_is_not_the_title_is_text(tmp_path):
    tags = {
        'url="u" title="A &gt; B"': ['A &gt; B', 'It is &amp; was.', 'Section.'],
        'title="The "Arts" club" url="u"': ['The "Arts" club', '', 'It is & was.', 'Section.'],
        'title="C"': ['It is & was.', 'Section.'],
        'url="u"': ['It is & was.', 'Section.'],
        'title="D" url="u"': ['D', ''],
    }
    text = '\n'.join(f'<doc id="1" {tag}>\n' + '\n'.join(lines) + '\n</doc>' for tag, lines in tags.items())
    assert lines_of(write(tmp_path / 'wiki_00', text)) == [['It is & was.', 'Section.']] * 4


def test_objects_are_documents_whose_title_is_no_text(tmp_path):
    objects = [
        {'id': '1', 'title': 'A > B', 'text': 'A &gt; B\n\nOne &amp; two. Three.\nFour.'},
        {'id': '2', 'title': 'C', 'text': 'C is a letter.'},
        {'title': 'D', 'text': 'D\n\n'},
        {'text': 'Wrapped lines of a &amp; book are\njoined where they go on in the\nnext.\n\nEnd \ud800.'},
    ]
    text = '\r\n'.join(map(json.dumps, objects))
    assert lines_of(write(tmp_path / 'wiki_00', text)) == [
        ['One & two. Three.', 'Four.'],
        ['C is a letter.'],
        ['Wrapped lines of a &amp; book are joined where they go on in the next.', 'End \ufffd.'],
    ]


@pytest.mark.parametrize(
    'content, said',
    [
        ('{"text": "One."}\n{"content": "Two."}', r"line 2: wanted .* found the fields \['content'\]"),
        ('[{"text": "One."}]', 'line 1: wanted an object .* found list'),
        ('{"text": ["A sentence.", "And another one."]}', 'found list in that field'),
        ('{\n"text": "One."\n}', 'line 1: not JSON'),
        ('<!DOCTYPE html>\n<p>One. Two.</p>', 'is HTML or XML'),
        ('sentence\tlabel\nA fine film.\t1\nA dull one.\t0\n', 'its lines have tabs: a table is no text'),
        ('One. Two.\n\nThree. Four.', 'may be paragraphs .* or book'),
        ('One.\n\nTwo.', 'may be sentences .* or book'),
        ('Head\n\nNothing is done. A\nPlace is held\n\n  code', 'may be sentences .* or book'),
        ('the lamp turns all night\nships see it from afar\nit is old', 'may be sentences .* or book'),
        ('One.\nTwo.\nThree. Four.', 'may be sentences .* or paragraphs'),
        (b'caf\xe9 au lait\n', 'not UTF-8 .*convert it'),
        ('A sentence.'.encode('utf-16-le'), 'zero bytes'),
        (gzip.compress(b'A sentence, and another.\n', mtime=0), 'unpack it if it is compressed'),
    ],
)
def test_what_is_no_text_or_cannot_be_told_is_refused_by_name(tmp_path, content, said):
    path = write(tmp_path / 'text', content)
    with pytest.raises(ValueError, match=said) as raised:
        list(read_documents(path))
    assert str(raised.value).startswith(f'{path}: ') and len(str(raised.value).splitlines()) == 1


SCRIPTS = {  # letters, and what ends a sentence
    'Chinese': ('天地玄黄宇宙洪荒', '。！？'),
    'Hindi': ('कखगघचछजझ', '।'),
    'Arabic': ('ابتثجحخد', '.؟'),
    'Georgian': ('აბგდევზთ', '.!?'),
    'Greek': ('αβγδεζηθ', '.;'),
    'Armenian': ('աբգդեզէը', '։'),
    'Ethiopic': ('ሀለሐመሠረሰሸ', '።፧'),
    'Khmer': ('កខគឃងចឆជ', '។'),
    'Latin': ('abcdefgh', '.!?'),
}


@st.composite
def texts(draw):
    """Documents of paragraphs of sentences in one script."""
    letters, marks = SCRIPTS[draw(st.sampled_from(sorted(SCRIPTS)))]
    word = st.text(letters, min_size=3, max_size=8)

    def ended(words, mark):
        return ' '.join(words).capitalize() + mark

    sentence = st.builds(ended, st.lists(word, min_size=2, max_size=12), st.sampled_from(marks))
    paragraph = st.lists(sentence, min_size=2, max_size=4)
    return draw(st.lists(st.lists(paragraph, min_size=2, max_size=4), min_size=2, max_size=4))


def rendered(documents, layout):
    """A file of documents; the headings are those that the layout drops."""
    flat = [[' '.join(paragraph) for paragraph in document] for document in documents]
    match layout:
        case 'wikiextractor':
            return '\n'.join(
                f'<doc id="1" url="u" title="T">\nT\n\n{chr(10).join(lines)}\n</doc>' for lines in flat
            )
        case 'jsonl':
            return '\n'.join(json.dumps({'text': '\n\n'.join(lines)}) for lines in flat)
        case 'sentences':
            return '\n\n'.join('\n'.join(itertools.chain.from_iterable(one)) for one in documents)
        case 'paragraphs':
            return '\n\n'.join(map('\n'.join, flat))


@examples(12)
@given(texts(), st.sampled_from(['wikiextractor', 'jsonl', 'sentences', 'paragraphs']), st.booleans())
def test_documents_of_any_script_are_read_from_any_layout(tmp_path_factory, documents, layout, marked):
    text = rendered(documents, layout)
    text = '\ufeff' + text.replace('\n', '\r\n') if marked else text
    path = write(tmp_path_factory.mktemp('text') / 'text', text)
    assert sentences_in(path) == [list(itertools.chain.from_iterable(document)) for document in documents]


@examples(20)
@given(st.sampled_from(sorted(SCRIPTS)), st.integers(40, 100), st.integers(0, 2**32 - 1))
def test_wrapped_lines_of_any_script_are_joined(tmp_path_factory, script, width, seed):
    (letters, marks), chance = SCRIPTS[script], random.Random(seed)
    space = '' if script in ('Chinese', 'Khmer') else ' '
    words = (''.join(chance.choices(letters, k=chance.randint(1, 9))) for _ in itertools.count())
    paragraphs = [space.join(itertools.islice(words, 60)).capitalize() + marks[0] for _ in range(5)]
    wrapped = '\n\n'.join(textwrap.fill(one, width) for one in paragraphs)
    (found,) = lines_of(write(tmp_path_factory.mktemp('text') / 'text', wrapped))
    assert [space.join(line.split()) for line in found] == paragraphs


@pytest.mark.parametrize(
    'layout, text, wanted',
    [
        (
            'sentences',
            SENTENCES,
            [['This is one sentence.', 'This is another!'], ['A new document begins.'], ['"Does it?"']],
        ),
        ('moses', MOSES, [['It isn\'t a well-known "fact".', 'He paid (much).'], ['No, he did not!']]),
        (
            'wikitext',
            WIKITEXT,
            [
                [
                    *('A is a well-known letter.', 'It weighs 1,000 pounds.', '"= =" is no heading =.'),
                    *('It was used.', 'x = 2 ='),
                ],
                ["B isn't A."],
            ],
        ),
        (
            'book',
            PROSE,
            [
                [
                    'CHAPTER I',
                    'The miller rose before it was light, and he looked over the weir where the water '
                    'ran black and very fast under the well-known bridge--and then he went in.',
                    *('"Is it you?" she asked.', '"It is," he said.'),
                    'He came to the end of the road and saw no licence there.',
                ]
            ],
        ),
    ],
)
def test_a_layout_is_told_and_read_whatever_the_line_ends(tmp_path, layout, text, wanted):
    for name, content in (('plain', text), ('marked', '\ufeff' + text.replace('\n', '\r\n'))):
        path = write(tmp_path / name, content)
        assert detect_layout(path) == layout and sentences_in(path) == wanted


def test_headings_of_wikitext_are_told_by_their_signs(tmp_path):
    rest = WIKITEXT.partition('= = First use')[2]
    assert detect_layout(write(tmp_path / 'part', ' = = First use' + rest)) == 'wikitext'
    signs = '= ' * 20_000  # many of which are read in no time
    path = write(tmp_path / 'signs', f' = A = \n\n {signs}x\n\n = = = B = = = \n {signs}=\n It is.\n')
    assert [line.strip() for line in lines_of(path, 'wikitext')[0]] == [f'{signs}x', 'It is.']


LICENCE = (
    'Updated editions will replace the old ones.\n\nYou may charge a fee under the terms of this agreement.\n'
)


@pytest.mark.parametrize(
    'start, end',
    [
        (
            '*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK\nWITH A LONG TITLE ***\n\nProduced by Some '
            'One\nat home',
            'End of the Project Gutenberg EBook of A Book, by\nNobody\n\n*** END OF THIS PROJECT GUTENBERG '
            'EBOOK A BOOK ***',
        ),
        (
            '***START OF THE PROJECT GUTENBERG EBOOK A BOOK***\n\n\nE-text prepared by Some One',
            "End of Project Gutenberg's A Book, by Nobody\n\n***END OF THE PROJECT GUTENBERG EBOOK A BOOK***",
        ),
        ('*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*', '*** START: FULL LICENSE ***'),
        (
            '*** START OF THE PROJECT GUTENBERG EBOOK, A BOOK ***\n\nsome legal words\n\n'
            '*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*END*',
            'THE FULL PROJECT GUTENBERG LICENSE',
        ),
    ],
)
def test_no_licence_text_survives_and_no_prose_is_lost(tmp_path, start, end):
    header = (
        'The Project Gutenberg EBook of A Book, by Nobody\n\n'
        'This eBook is for the use of anyone.\n\nTitle: A Book\n\n'
    )
    path = write(tmp_path / 'book.txt', f'{header}{start}\n\n\n{PROSE}\n\n\n{end}\n\n{LICENCE}')
    plain = write(tmp_path / 'plain.txt', PROSE)
    legible = [lines for lines in lines_of(path) if 'some legal words' not in lines]
    assert legible == lines_of(plain, 'book')


def test_two_framed_books_in_a_file_are_two_documents(tmp_path):
    frame = (
        '*** START OF THE PROJECT GUTENBERG EBOOK A ***\n{}\n*** END OF THE PROJECT GUTENBERG EBOOK A ***\n'
        + LICENCE
    )
    path = write(tmp_path / 'books.txt', frame.format('One book.') + frame.format('Another book.'))
    assert lines_of(path) == [['One book.'], ['Another book.']]


@examples(50)
@given(
    st.text(
        alphabet=st.characters(blacklist_categories=('Cc', 'Cs'), blacklist_characters='\ufeff'), max_size=150
    )
    | st.text(alphabet='aA .!?"’”-…1', max_size=150)
)
def test_splitting_loses_no_character(text):
    assert ''.join(''.join(split_sentences(text)).split()) == ''.join(text.split())


@pytest.mark.parametrize(
    'text',
    [
        '小船在河上漂着。|真的？！|老人喝茶！|“天快要黑了吗？”|他说：“是的。”|３．５公里。',
        '猫がいます。|「はい。」と彼は言った。|（笑！）|雨ですか？',
        '나는 학교에 갔다.|그는 집에 있었다!|너는?',
        'ذهب الولد إلى المدرسة.|هل عاد؟|نعم!|قال د. أحمد ذلك.',
        'لڑکا اسکول گیا۔|کیا وہ واپس آیا؟',
        'यह एक किताब है।|वह लाल है॥|डॉ. राम आए.|वह यहाँ है.|वह गया।',
        'আমি ভাত খাই।|তুমি কি আসবে?',
        'ბიჭი სკოლაში წავიდა.|ის დაბრუნდა.|სად არის?',
        'Տղան գնաց դպրոց։|Նա եկավ:|Ո՞ւր է։',
        'Το παιδί πήγε σχολείο.|Γύρισε;|Ναι!|Πού είναι;',
        'ልጁ ወደ ትምህርት ቤት ሄደ።|ተመልሶ መጣ፡፡|የት ነው፧',
        'ខ្ញុំទៅសាលា។|គាត់នៅផ្ទះ។',
        'བོད་སྐད་ཡིན།|ཁོ་ཡོང་།',
        'သူ လာသည်။|သူ သွားသည်။',
        'He came (; Greek κομψός; "elegant").|It is.',
        '“Go!|It is late.” he said.|Then Mr. Smith (b. 1920) went at 5 p.m. to St. Ives.',
    ],
)
def test_every_script_has_its_end_marks_and_speech_keeps_its_tag(text):
    space = '' if '。' in text else ' '
    assert split_sentences(text.replace('|', space)) == text.split('|')


def test_long_rows_of_marks_and_of_titles_are_read_once():
    """It takes minutes if every title and every mark is tried."""
    assert ARTICLE.match('<doc' + ' title="a' * 20000 + '>')
    assert not sentences._OWN_MARK.search('。」' * 20000 + 'と')


def test_a_text_without_borders_counts_as_several_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, 'LONGEST_DOCUMENT', 100)
    path = write(tmp_path / 'text', 'This is a sentence of some length.\n' * 10)
    pieces = lines_of(path)
    assert [len(lines) for lines in pieces] == [3, 3, 3, 1]


def test_files_come_once_each_in_the_order_of_their_paths_without_hidden_ones(tmp_path):
    for name in ('b/2', 'b/1', 'a/x', '.hidden', 'b/.git/x', 'b.txt'):
        write(tmp_path / name, 'x')
    names = [str(path.relative_to(tmp_path)) for path in list_files([tmp_path])]
    assert names == 'a/x b/1 b/2 b.txt'.split()
    (tmp_path / 'b' / 'more').symlink_to(tmp_path / 'a')
    (tmp_path / 'a' / 'back').symlink_to(tmp_path / 'b')  # and round again
    (tmp_path / 'b' / 'same').symlink_to(tmp_path / 'b' / '1')
    found = list_files([tmp_path / 'b', tmp_path / 'a', tmp_path / 'b' / '2'])
    assert [str(path.relative_to(tmp_path)) for path in found] == ['b/1', 'b/2', 'b/more/x']


def test_input_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='no such file'):
        list_files([tmp_path / 'none'])
    (tmp_path / '.hidden').symlink_to('nowhere')
    with pytest.raises(FileNotFoundError, match='no files of text'):
        list_files([tmp_path])
    (tmp_path / 'b').symlink_to('gone')
    with pytest.raises(FileNotFoundError, match='b: a link to gone, which is not there'):
        list_files([tmp_path])
    with pytest.raises(ValueError, match='a table is no text'):
        list(read_documents(write(tmp_path / 'a.csv', 'id,text\n1,"A sentence. And another one."\n')))
