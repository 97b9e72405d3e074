"""A page in Debian's chromium, without a window, as a person sees and uses it."""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time

import pytest

needs_chromium = pytest.mark.skipif(shutil.which('chromium') is None, reason='chromium is not installed')
VIEWS = [(width, scheme) for width in (360, 1400) for scheme in ('light', 'dark')]
FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-sync', '--disable-quic']
FLAGS += ['--disable-background-networking', '--disable-component-update', '--remote-debugging-pipe']

# What lies beyond the window's edge, or is hidden by its own box, and cannot be scrolled to.
CUT_OFF = """
(() => {
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  const found = [];
  for (const e of document.body.querySelectorAll('*')) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!box.width || !box.height || style.visibility === 'hidden') continue;
    let inside = false;
    for (let p = e.parentElement; p; p = p.parentElement) inside = inside || scrolls(p);
    const hidden = style.overflowX === 'hidden' && e.scrollWidth > e.clientWidth + 1 && e.innerText;
    const beyond = box.right > innerWidth + 1 || box.left < -1;
    if (hidden || (beyond && !inside)) found.push(e.tagName + ' ' + (e.innerText || '').slice(0, 40));
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
  return found;
})()
"""


class Page:
    """A page that is open, at a width and in a colour scheme, and what its console said."""

    def __init__(self, url, width, scheme):
        self._place = tempfile.TemporaryDirectory(prefix='chromium-', ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()
        far = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (ours[0], theirs[1])]

        def wire():  # chromium reads its commands from 3 and answers to 4
            os.dup2(far[0], 3)
            os.dup2(far[1], 4)

        self._process = subprocess.Popen(
            ['chromium', *FLAGS, f'--user-data-dir={self._place.name}', 'about:blank'],
            preexec_fn=wire,
            pass_fds=(3, 4),
            stderr=subprocess.DEVNULL,
        )
        for end in far:
            os.close(end)
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = os.fdopen(ours[1], 'wb', 0), os.fdopen(theirs[0], 'rb', 0)
        self._count, self._read, self._session, self.console = 0, b'', None, []
        target = self._send('Target.createTarget', url='about:blank')['targetId']
        self._session = self._send('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self._send(f'{domain}.enable')
        size = {'width': width, 'height': 800, 'deviceScaleFactor': 1, 'mobile': False}
        self._send('Emulation.setDeviceMetricsOverride', **size)
        feature = {'name': 'prefers-color-scheme', 'value': scheme}
        self._send('Emulation.setEmulatedMedia', features=[feature])
        self._send('Page.navigate', url=url)
        self.until('document.readyState === "complete" && location.href !== "about:blank"')

    def _send(self, method, **parameters):
        self._count += 1
        message = {'id': self._count, 'method': method, 'params': parameters}
        if self._session:
            message['sessionId'] = self._session
        self._to.write(json.dumps(message).encode() + b'\0')
        while True:
            answer = self._next()
            if answer.get('id') == self._count:
                assert 'error' not in answer, answer
                return answer['result']
            self._note(answer)

    def _next(self):
        while b'\0' not in self._read:
            part = os.read(self._from.fileno(), 1 << 16)
            assert part, 'chromium has ended'
            self._read += part
        first, _, self._read = self._read.partition(b'\0')
        return json.loads(first)

    def _note(self, event):
        values = event.get('params', {})
        match event.get('method'):
            case 'Runtime.exceptionThrown':
                self.console.append(str(values['exceptionDetails']))
            case 'Runtime.consoleAPICalled' if values['type'] in ('error', 'warning'):
                self.console.append(str(values['args']))
            case 'Log.entryAdded' if values['entry']['level'] in ('error', 'warning'):
                self.console.append(values['entry']['text'])

    def value(self, script):
        """Value of a script, as JSON values."""
        answer = self._send('Runtime.evaluate', expression=script, returnByValue=True)
        assert 'exceptionDetails' not in answer, answer
        return answer['result'].get('value')

    def until(self, script, seconds=30):
        """Wait until a script gives something true, and give it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.value(script)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f'not within {seconds} seconds: {script}')

    def press(self, key, *, modifiers=0):
        """Press a key: Tab, Enter, or a letter; modifiers 2 is Control."""
        codes = {'Tab': 9, 'Enter': 13, 'Backspace': 8, 'a': 65}
        text = {'text': '\r'} if key == 'Enter' else {}
        more = {'key': key, 'windowsVirtualKeyCode': codes[key], 'modifiers': modifiers}
        commands = {'commands': ['selectAll']} if (key, modifiers) == ('a', 2) else {}
        self._send('Input.dispatchKeyEvent', type='keyDown', **more, **text, **commands)
        self._send('Input.dispatchKeyEvent', type='keyUp', **more)

    def type(self, text):
        """Type over all that is in the field."""
        self.press('a', modifiers=2)
        self.press('Backspace')
        if text:
            self._send('Input.insertText', text=text)

    def tab_to(self, script, most=30):
        """Press Tab until the element that has the focus fits, which is called e."""
        for _ in range(most):
            self.press('Tab')
            if self.value(f'(e => {script})(document.activeElement)'):
                return
        raise AssertionError(f'Tab does not reach {script}')

    def check(self, scheme=None):
        """Nothing is cut off, the console is silent, and text stands out from its ground, in the scheme."""
        assert self.value(CUT_OFF) == []
        assert self.console == []
        shade = '(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0))'
        ground, ink = (
            self.value(f'{shade}(getComputedStyle(document.body).{name})')
            for name in ('backgroundColor', 'color')
        )
        assert abs(ground - ink) > 300 and scheme in (None, 'dark' if ground < ink else 'light')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._to.close()
        self._from.close()
        self._place.cleanup()
