"""Answers by an OpenAI-compatible server: a small one in this process that runs the tiny target with transformers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from support_answers import prompt_file, run_prepare
from support_models import END, tiny_llama_dir
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.errors import TargetError, UnknownNameError
from specbench.train.shards import TokenRow


class TinyServer(ThreadingHTTPServer):
    """Greedy completions of token ids, one at a time. ``fail`` codes are sent before the next answers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.lock = threading.Lock()
        self.fail: list[int] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.reply: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        with self.lock:
            self.asked.append(body)
            whole = self.model.generate(torch.tensor([ids]), max_new_tokens=body["max_tokens"], do_sample=False)
        new = whole[0, len(ids) :].tolist()
        text = self.tokenizer.decode(new, skip_special_tokens=True)
        return {"choices": [{"text": text, "finish_reason": "stop" if new[-1] == END else "length"}]}


class _Handler(BaseHTTPRequestHandler):
    server: TinyServer

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.add(self.headers.get("Authorization"))
        if self.server.fail:
            self._send(self.server.fail.pop(), {"error": "busy or wrong"})
        else:
            self._send(200, self.server.reply or self.server.complete(body))

    def _send(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    tiny_llama_dir(made)
    prompt_file(made, count=5, second=1)
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[TinyServer]:
    made = TinyServer(folder / "tiny-llama")
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def serve(folder: Path, out: str, server: TinyServer, **changes: Any) -> Any:
    settings = {"base_url": server.url + "/", "server_model": "tiny", "greedy_share": 1.0, **changes}
    return run_prepare(folder, out, **settings)


def written(row: TokenRow) -> list[int]:
    """What the target wrote in the row."""
    return [token for token, own in zip(row.token_ids, row.loss_mask, strict=True) if own]


def test_a_server_gives_the_rows_that_the_engine_gives(
    folder: Path, server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_API_KEY", "open-sesame")
    _, own = run_prepare(folder, "engine", greedy_share=1.0)
    server.fail = [503, 429]
    manifest, rows = serve(folder, "served", server)
    plain = [i for i, row in enumerate(own) if not any(1 < t < 5 or t == 0 for t in written(row))]
    assert len(plain) >= 3
    assert [rows[i] for i in plain] == [own[i] for i in plain]  # of special tokens a text tells nothing
    assert [row.conversation for row in rows] == [row.conversation for row in own]
    assert manifest["settings"]["answers_by"] == "server"
    assert server.keys == {"Bearer open-sesame"}
    assert {body["temperature"] for body in server.asked} == {0.0}
    assert len({body["seed"] for body in server.asked}) == 6


def test_sampling_is_passed_on(folder: Path, server: TinyServer) -> None:
    serve(folder, "sampled", server, greedy_share=0.0, temperature=0.7, top_p=0.9, top_k=5)
    assert {(b["temperature"], b["top_p"], b["top_k"], b["model"]) for b in server.asked} == {(0.7, 0.9, 5, "tiny")}


def test_what_a_server_refuses_is_said_in_a_line(folder: Path, server: TinyServer) -> None:
    server.fail = [400] * 20
    with pytest.raises(TargetError, match=r"refuses the request: HTTP 400: .*busy or wrong"):
        serve(folder, "wrong", server)
    server.fail = [503] * 20
    with pytest.raises(TargetError, match=r"no answer from .*/completions: HTTP 503"):
        serve(folder, "busy", server, server_tries=1)
    server.fail, server.reply = [], {"greeting": "hello"}
    with pytest.raises(TargetError, match="answers without choices"):
        serve(folder, "strange", server)
    with pytest.raises(UnknownNameError, match="unknown model of the server 'tinny'; did you mean tiny"):
        serve(folder, "name", server, server_model="tinny")


def test_no_server_at_all(folder: Path) -> None:
    with pytest.raises(TargetError, match=r"no answer from http://127.0.0.1:9/v1/models: ConnectError"):
        run_prepare(folder, "absent", base_url="http://127.0.0.1:9/v1", server_model="tiny")
