"""The page of a service in a browser: at any width and in any scheme, by keyboard alone."""

import contextlib

import pytest
from helpers.browser import VIEWS, Page, needs_chromium
from helpers.services import HEADS, Running

CARD = '\n'.join(['# A card', '', '| a | b |', '| --- | --- |', f'| {"wide " * 40} | x |'])


@pytest.fixture(scope='module')
def addresses():
    """The address of a service of each kind of network."""
    options = {'name': 'a-network-with-a-long-name' * 3, 'card': CARD, 'max_characters': 400}
    with contextlib.ExitStack() as stack:
        services = {kind: stack.enter_context(Running.fake(kind=kind, **options)) for kind in HEADS}
        yield {kind: service.said.strip() for kind, service in services.items()}


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize('width, scheme', VIEWS)
@pytest.mark.parametrize('kind', HEADS)
def test_page_is_used_by_keyboard_and_answers_wrong_input_in_words(addresses, kind, width, scheme):
    results = 'document.getElementById("results").innerText'
    with Page(addresses[kind], width, scheme) as page:
        page.check(scheme)
        assert '128 tokens is cut there' in page.value('document.getElementById("limits").innerText')
        page.tab_to('e.tagName === "TEXTAREA" || e.tagName === "INPUT"')
        page.type('a fine film')
        page.tab_to('e.tagName === "BUTTON"')
        page.press('Enter')
        page.until(
            f'!{results}.includes("Nothing was sent yet") && !document.querySelector("button").disabled'
        )
        assert page.value('document.querySelectorAll("#results .error").length') == 0
        page.check(scheme)
        page.value('document.body.focus() || document.activeElement.blur() || true')
        page.tab_to('e.tagName === "TEXTAREA" || e.tagName === "INPUT"')
        page.type('a text that is too long ' * 20)
        page.tab_to('e.tagName === "BUTTON"')
        page.press('Enter')
        assert page.until('document.querySelector("#results .error")?.innerText')
        page.console.clear()  # the browser's own line on a status of 413
        page.check(scheme)
