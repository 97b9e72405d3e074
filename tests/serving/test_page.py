"""The page loads nothing from elsewhere, and text in it cannot become markup."""

import base64
import hashlib
import json
import re

import pytest
from helpers.pages import HOSTILE, Reader
from helpers.services import HEADS, FakePredictor
from hypothesis import given, strategies as st
from starlette.testclient import TestClient

from gluon_optbert.serving.app import make_app
from gluon_optbert.serving.page import TEMPLATE, card_html, page_of

FACTS = {'model': 'tiny', 'labels': [], 'limits': {}}
ALLOWED = set('h1 h2 h3 h4 h5 h6 p ul ol li code pre em strong a hr'.split())
ALLOWED |= set('table thead tbody tr th td blockquote br'.split())


def check_card(content):
    read = Reader(content)
    assert set(read.tags) <= ALLOWED
    for name, key, value in read.attributes:
        assert key in ('href', 'class', 'start', 'title'), (name, key)
        assert key != 'href' or not re.match(r'\s*(javascript|vbscript|data|file):', value, re.I)


LINKS = (
    '[a](javascript:alert(1)) ![a](https://example.org/a.png)',
    '<https://example.org> <javascript:alert(1)> <details open ontoggle=alert(1)>',
    '[a]: data:text/html,<script>alert(1)</script>\n\n[a]',
)


@pytest.mark.parametrize('text', [*HOSTILE, *LINKS])
def test_markup_in_a_card_is_shown_and_not_obeyed(text):
    for card in (text, f'# {text}\n\n| a |\n| --- |\n| {text} |\n', f'`{text}`', f'[{text}]({text})'):
        check_card(card_html(card))


@given(st.text(alphabet='<>"\'`[]()!#|-:&;/\\ \nabj\ud800{}', max_size=60))
def test_no_card_becomes_other_markup(card):
    check_card(card_html(card))


def test_a_card_is_rendered_without_its_front_matter():
    content = card_html('---\ntags: [a]\n---\n# Title\n\n| x | y |\n| --- | --: |\n| 1 | `b` |\n')
    assert '<h1>Title</h1>' in content and 'tags' not in content
    assert '<td class="right"><code>b</code></td>' in content and 'style' not in content


@pytest.mark.parametrize('text', HOSTILE)
def test_names_and_labels_stay_text_in_the_page(text):
    page = page_of({**FACTS, 'model': text, 'labels': [{'label': text, 'name': text}]}, '').html
    plain = page_of(FACTS, '').html
    assert Reader(page).tags == Reader(plain).tags
    facts = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(facts)['model'] == text
    page = page_of({**FACTS, 'model': '{{card}}'}, 'see {{facts}} and {{title}}').html
    assert 'see {{facts}} and {{title}}' in page and '<title>{{card}}</title>' in page


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else():
    page = page_of(FACTS, '# a\n')
    policy = dict(part.strip().split(' ', 1) for part in page.content_security_policy.split(';'))
    for element, rule in (('style', 'style-src'), ('script', 'script-src')):
        (content,) = re.findall(rf'<{element}>(.*?)</{element}>', page.html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[rule] == f"'sha256-{digest}'"
    assert policy['default-src'] == "'none'" and policy['connect-src'] == "'self'"
    assert policy['frame-ancestors'] == "'none'" and 'unsafe' not in page.content_security_policy


def test_the_page_loads_nothing_from_elsewhere():
    content = TEMPLATE.read_text(encoding='utf-8')
    assert not re.search(
        r'https?:|//[a-z]|url\(|@import|innerHTML|eval\(|\son[a-z]+=', content.split('<script>')[0]
    )
    script = content.split('<script>')[1]
    assert not re.search(
        r'https?:|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(', script
    )
    for name, key, value in Reader(content).attributes:
        assert key not in ('src', 'style') and (key != 'href' or value in ('data:,', 'openapi.json')), name


def test_the_service_sends_the_page_with_its_policy():
    app = make_app(FakePredictor(HEADS['sentences']), name='<b>', card='# The card')
    with TestClient(app) as client:
        answer = client.get('/')
    assert answer.status_code == 200 and answer.headers['Content-Type'].startswith('text/html')
    assert "script-src 'sha256-" in answer.headers['Content-Security-Policy']
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'
    assert '&lt;b&gt;' in answer.text and '<h1>The card</h1>' in answer.text
