"""Checks of HTML pages."""

import re
from html.parser import HTMLParser

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
VOID = {'meta', 'img', 'link', 'input', 'br', 'hr'}


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

    handle_startendtag = handle_starttag

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
