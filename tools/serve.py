"""Serve an export over HTTP: POST /predict or /embed, GET /health, and GET / with a page to try texts in.

The service listens on this machine alone unless --host says otherwise. It checks what it is sent, but it asks
for no password and does not encrypt: put a reverse proxy before it on any other network."""

import sys

from gluon_optbert.commands.serve import main

if __name__ == '__main__':
    sys.exit(main())
