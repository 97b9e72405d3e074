"""Pages are whole, say what they are given and nothing else, and fetch nothing."""

import functools
import re

import pytest
from helpers.examples import examples
from helpers.pages import HOSTILE, Reader, check_page
from hypothesis import example, given, strategies as st
from markupsafe import Markup

from gluon_optbert.reporting.page import Chapter, element, page, picture, shown, table, values


@pytest.mark.parametrize('text', HOSTILE)
def test_what_comes_from_files_is_text_wherever_it_stands(text):
    nested = {text: {text: [{text: text, 'b': [text]}, {'c': text}]}, 'list': [text, [text]]}
    sections = (
        (text, values(nested)),
        ('table', table([text], [[text]])),
        ('picture', picture(b'x', 'png', text)),
    )
    content = page(text, [Chapter(text, sections)], note=text)
    read = check_page(content)
    parts = 'html head meta title style body h1 h2 h3 nav div span a b figcaption figure img footer details'
    assert set(read.tags) <= {*parts.split(), *'summary pre table thead tbody tr th td'.split()}
    visible = text.replace('\x00\x1b\ud800', '\ufffd\ufffd?')
    assert sum(visible in part for part in read.text) >= 8
    assert [value for name, key, value in read.attributes if key == 'alt'] == [visible]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
@examples(20)
@example(functools.reduce(lambda inner, _: [inner], range(300), []))
def test_any_json_value_makes_a_balanced_page_however_deep_it_is(data):
    check_page(page('title', [Chapter('chapter', (('section', values(data)),))]))


def test_policy_of_the_page_forbids_what_is_not_in_it():
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page('title', []))
    assert policy.startswith("default-src 'none'; img-src data:")


def test_values_are_readable():
    shown_as = {None: '', True: 'true', 1234567: '1,234,567', 'x': 'x'}
    shown_as |= {0.123456: '0.1235', 16543.21: '16,543', float('nan'): 'nan', 1e30: '1e+30'}
    assert {value: shown(value) for value in shown_as} == shown_as


def test_numbers_stand_at_the_right_under_their_header():
    markup = table(['name', 'size'], [['a', 1], ['b', None], ['c', 2.5]])
    assert '<th class="number">size</th>' in markup and '<th>name</th>' in markup
    assert '<td class="number">2.5</td>' in markup and '<td>a</td>' in markup
    for text in ('81.7 ± 0.4', '68.4 ± 0.0 *', '50 %', '22.6 M', '1,234', '-0.5', '0.62 ×'):
        assert f'<td class="number">{text}</td>' in table(['score'], [[text]])
    for text in ('1.9.1', '1, 2', 'not run', '3 layers'):
        assert f'<td>{text}</td>' in table(['score'], [[text]])


def test_numbers_of_a_column_have_as_many_digits():
    markup = table(['loss'], [[2.2], [2.529], [999.99], [12345.6]])
    for text in ('2.200', '2.529', '1000', '12,346'):
        assert f'<td class="number">{text}</td>' in markup


def test_a_cell_beyond_the_header_has_no_head():
    cells = [(key, value) for _, key, value in Reader(table(list('abcd'), [range(5)])).attributes]
    assert [value for key, value in cells if key == 'data-head'] == list('abcd')


def test_equal_mappings_are_rows_of_one_table():
    markup = values({'before': {'ms': 2.0, 'mb': 1}, 'after': {'ms': 1.0, 'mb': 1}})
    assert markup.count('<table>') == 1 and Reader(markup).text[:3] == ['ms', 'mb', 'before']


def test_markup_is_not_escaped_twice():
    assert element('p', Markup('<b>x</b>')) == '<p><b>x</b></p>' and element('p', '<i>') == '<p>&lt;i&gt;</p>'
