"""The page of a service in a browser: at any width and in any scheme, by keyboard alone."""

import subprocess
import sys

import pytest
from helpers.browser import VIEWS, Page, needs_chromium
from helpers.services import HEADS
from helpers.tiny import ROOT, environment

pytest.importorskip('uvicorn', reason='the service needs uvicorn, which is not installed')
pytest.importorskip('fastapi', reason='the service needs FastAPI, which is not installed')
pytest.importorskip('markdown_it', reason='the page needs markdown-it-py, which is not installed')

SERVICE = """
import sys
from helpers.services import HEADS, FakePredictor
from gluon_optbert.serving import server
from gluon_optbert.serving.app import make_app
from gluon_optbert.serving.settings import ServiceSettings
listener = server.listen('127.0.0.1', 0)
settings = ServiceSettings(max_characters=400)
card = chr(10).join(['# A card', '', '| a | b |', '| --- | --- |', f'| {"wide " * 40} | x |'])
name = 'a-network-with-a-long-name' * 3
app = make_app(FakePredictor(HEADS[sys.argv[1]]), name=name, card=card, settings=settings)
server.serve(app, listener, settings=settings, ready=lambda address: print(address, flush=True))
"""


@pytest.fixture(scope='module')
def addresses():
    """The address of a service of each kind of network."""
    services = {
        kind: subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', SERVICE, kind],
            env=environment(PYTHONPATH=f'{ROOT}:{ROOT / "tests"}'),
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in HEADS
    }
    yield {kind: service.stdout.readline().strip() for kind, service in services.items()}
    for service in services.values():
        service.kill()
        service.communicate()


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
