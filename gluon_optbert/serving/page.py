"""The page of a service: one document without outer resources, and the policy that holds it to that."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt

TEMPLATE = Path(__file__).resolve().parent / 'page.html'
_FRONT_MATTER = re.compile(r'\A---\n.*?^---\n', re.DOTALL | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Page:
    """A document, and the content security policy that it goes with."""

    html: str
    content_security_policy: str


def page_of(facts: Mapping[str, Any], card: str) -> Page:
    """The page of a network: the facts of `Service`, and the model card, in Markdown; markup in it is shown,
    not obeyed.
    """
    template = TEMPLATE.read_text(encoding='utf-8')
    style, script = (
        re.search(rf'<{element}>(.*?)</{element}>', template, re.DOTALL).group(1)  # type: ignore[union-attr]
        for element in ('style', 'script')
    )
    shown = card_html(card) if card.strip() else '<p class="note">This export has no model card.</p>'
    content = jinja2.Template(template, autoescape=True).render(facts=facts, card=shown)
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(content, policy)


def card_html(card: str) -> str:
    """A model card as HTML, without its front matter; HTML and images in it are shown as text."""
    reader = MarkdownIt('commonmark', {'html': False}).enable('table').disable('image')
    text = card.encode('utf-8', 'replace').decode('utf-8')
    environment: dict[str, Any] = {}
    tokens = reader.parse(_FRONT_MATTER.sub('', text, count=1), environment)
    for token in tokens:
        style = token.attrs.pop('style', None)  # of the cells of a table; the page's policy allows none
        if style is not None:
            token.attrs['class'] = str(style).rpartition(':')[2]
    return reader.renderer.render(tokens, reader.options, environment)


def _digest(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode()
    return f"'sha256-{digest}'"
