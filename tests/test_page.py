"""Pages are whole, say what they are given and nothing else, and fetch nothing."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page import Chapter, Html, page, picture, shown, table, tag, values

HOSTILE = [
    '<script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '</style><b>',
    '&lt;b&gt;',
    '-->',
    '\x00\x1b\ud800',
    'https://example.org/x.js',
    '$\\frac{1}{',
    '{{7*7}}',
    ']]>',
    'a' * 300,
]
VOID = {'meta', 'img'}


class Reader(HTMLParser):
    """Checks that tags are balanced; collects tags, attributes and text."""

    def __init__(self, content):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += [(name, key, value) for key, value in attributes]
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open and self.open.pop() == name

    def handle_data(self, data):
        if 'style' not in self.open:
            self.text.append(data)


def check_page(content):
    """A page is balanced, and everything that it shows is in it."""
    read = Reader(content)
    assert set(read.tags).isdisjoint({'script', 'link', 'iframe', 'object', 'embed', 'base', 'form', 'svg'})
    for name, key, value in read.attributes:
        assert not key.startswith('on'), (name, key)
        if key in ('src', 'href'):
            assert re.match('data:image/(png|svg[+]xml);base64,' if key == 'src' else '#', value), value
    identifiers = [value for _, key, value in read.attributes if key == 'id']
    assert len(set(identifiers)) == len(identifiers)
    assert all(value[1:] in identifiers for _, key, value in read.attributes if key == 'href')
    assert 'url(' not in content and '@import' not in content
    content.encode('utf-8')
    return read


@pytest.mark.parametrize('text', HOSTILE)
def test_what_comes_from_files_is_text_wherever_it_stands(text):
    nested = {text: {text: [{text: text, 'b': [text]}, {'c': text}]}, 'list': [text, [text]]}
    content = page(
        text,
        [
            Chapter(
                text,
                (
                    (text, values(nested)),
                    ('table', table([text], [[text]])),
                    ('picture', picture(b'x', 'png', text)),
                ),
            )
        ],
        note=text,
    )
    read = check_page(content)
    assert set(read.tags) <= {
        'html',
        'head',
        'meta',
        'title',
        'style',
        'body',
        'h1',
        'h2',
        'h3',
        'nav',
        'div',
        'span',
        'a',
        'b',
        'table',
        'thead',
        'tbody',
        'tr',
        'th',
        'td',
        'figure',
        'img',
        'footer',
        'details',
        'summary',
        'pre',
    }
    visible = text.replace('\x00\x1b\ud800', '\ufffd\ufffd?')
    assert sum(visible in part for part in read.text) >= 8
    assert [value for name, key, value in read.attributes if key == 'alt'] == [visible]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_value_makes_a_balanced_page(data):
    check_page(page('title', [Chapter('chapter', (('section', values(data)),))]))


def test_deep_values_do_not_end_the_program():
    deep = []
    for _ in range(300):
        deep = [deep]
    check_page(page('title', [Chapter('chapter', (('section', values(deep)),))]))


def test_policy_of_the_page_forbids_what_is_not_in_it():
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page('title', []))
    assert policy.startswith('default-src &#x27;none&#x27;; img-src data:')


@pytest.mark.parametrize(
    'value, wanted',
    [
        (None, ''),
        (True, 'true'),
        (1234567, '1,234,567'),
        (0.123456, '0.1235'),
        (16543.21, '16,543'),
        (float('nan'), 'nan'),
        (1e30, '1e+30'),
        ('x', 'x'),
    ],
)
def test_values_are_readable(value, wanted):
    assert shown(value) == wanted


def test_numbers_stand_at_the_right_under_their_header():
    found = table(['name', 'size'], [['a', 1], ['b', None], ['c', 2.5]])
    assert '<th class="number">size</th>' in found and '<th>name</th>' in found
    assert '<td class="number">2.5</td>' in found and '<td>a</td>' in found


def test_equal_mappings_are_rows_of_one_table():
    found = values({'before': {'ms': 2.0, 'mb': 1}, 'after': {'ms': 1.0, 'mb': 1}})
    assert found.count('<table>') == 1 and Reader(found).text[:3] == ['ms', 'mb', 'before']


def test_markup_is_not_escaped_twice():
    assert tag('p', Html('<b>x</b>'), '<i>') == '<p><b>x</b>&lt;i&gt;</p>'
