"""Serves a built site on the loopback address: for browsers that keep pages from a disk on a short leash."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError

HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    """Files only: no listing of folders, no log line a request."""

    def list_directory(self, path: Any) -> None:
        """A folder without a first page is not found."""
        self.send_error(404)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent: the terminal belongs to the command."""


def serve(folder: Path, *, port: int = 0, ready: Callable[[str], None], stop: threading.Event | None = None) -> None:
    """Serve ``folder`` until Ctrl-C or ``stop``; ``ready`` is told the address. Errors: ConfigError: port taken."""
    handler = functools.partial(_Handler, directory=str(folder))
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise ConfigError(f"cannot serve on port {port}: {error.strerror or error}; choose another --port") from error
    with server:
        if stop is not None:
            threading.Thread(target=_shut_down, args=(server, stop), daemon=True).start()
        ready(f"http://{HOST}:{server.server_address[1]}/")
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return


def _shut_down(server: ThreadingHTTPServer, stop: threading.Event) -> None:
    stop.wait()
    server.shutdown()


PLUGIN = serve
