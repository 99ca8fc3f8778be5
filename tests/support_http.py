"""A scripted OpenAI-compatible server in the test's process: it streams, refuses, cuts or withholds what it is told."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Play = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Answers by the server's script."""

    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        pages = {"/v1/models": json.dumps({"data": [{"id": name} for name in self.server.models]}), **self.server.pages}
        found = pages.get(self.path)
        self.whole(200 if found is not None else 404, found or "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(body)
            self.server.paths.append(self.path)
            play = self.server.plays.popleft() if self.server.plays else self.server.usual
        try:
            play(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def whole(self, code: int, text: str, **headers: str) -> None:
        data = text.encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        """Headers of a stream that ends with the connection."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, document: object) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@dataclass
class Answer:
    """A stream of these chunks: texts with token ids or without, then a finish reason and fields of the last chunks."""

    chunks: tuple[tuple[str, tuple[int, ...] | None], ...] = (("one", (11,)), (" two", (12, 13)))
    finish: str | None = "length"
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 3, "completion_tokens": 3})
    last: dict[str, Any] = field(default_factory=dict)
    done: bool = True
    pause_s: float = 0.0

    def __call__(self, handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        for index, (text, ids) in enumerate(self.chunks):
            time.sleep(self.pause_s)
            ends = self.finish if index == len(self.chunks) - 1 else None
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": ends}
            if "messages" in body:
                choice = {"index": 0, "delta": {"content": text}, "finish_reason": ends}
            if ids is not None:
                choice["token_ids"] = list(ids)
            handler.event({"choices": [choice]})
        if self.usage is not None or self.last:
            handler.event({"choices": [], "usage": self.usage, **self.last})
        if self.done:
            handler.event("[DONE]")


def refusal(code: int, message: str = "no", **headers: str) -> Play:
    """A refusal before anything is streamed."""
    return lambda handler, body: handler.whole(code, json.dumps({"error": {"message": message}}), **headers)


def breaking(after: Play) -> Play:
    """What ``after`` streams, and then the connection is cut."""

    def play(handler: Handler, body: dict[str, Any]) -> None:
        after(handler, body)
        handler.connection.shutdown(2)

    return play


def silent(seconds: float, comments: bool = False) -> Play:
    """Headers, and then nothing (or comments alone) for a while."""

    def play(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not handler.server.closing.is_set():
            if comments:
                handler.wfile.write(b": still here\n\n")
                handler.wfile.flush()
            handler.server.closing.wait(0.05)

    return play


class ScriptedServer(ThreadingHTTPServer):
    """``plays`` are used up one a request, then ``usual`` answers. ``pages`` are what GET finds beside the models."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.models = ["tiny"]
        self.pages: dict[str, str] = {}
        self.plays: deque[Play] = deque()
        self.usual: Play = Answer()
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    """One that serves until the test is over."""
    server = ScriptedServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
