"""A running server: where it is, which engine it is by its own signs, which model it serves, and its counters."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from specbench.errors import TargetError, unknown_name
from specbench.server_trace import ServerCounts
from specbench.serving import counters
from specbench.serving.calls import api_url, auth_headers, call, root_url, text_of

UNKNOWN = "unknown"
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "tensorrt_llm": "tensorrt-llm"}
_CHECK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``engine`` is "unknown" where the server shows no sign of being one that is known here."""

    base_url: str
    model: str
    engine: str = UNKNOWN
    version: str | None = None
    key_variable: str = "SPECBENCH_API_KEY"

    @property
    def local(self) -> bool:
        """Whether the server is on this machine."""
        host = self.base_url.partition("://")[2].partition("/")[0]
        return host.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]") or host in ("127.0.0.1", "localhost")

    def counts(self) -> ServerCounts | None:
        """What its counters stand at; None where it has none that are known."""
        with _client(self.key_variable, self.base_url) as client:
            text = text_of(client, f"{root_url(self.base_url)}/metrics")
        return None if text is None else counters.read_counts(counters.parse(text))


def _client(key_variable: str, base_url: str) -> Any:
    import httpx2

    secure = base_url.startswith("https")  # else the certificates, which take their time, are not loaded
    return httpx2.Client(timeout=_CHECK_TIMEOUT_S, headers=auth_headers(key_variable), verify=secure)


def answers(base_url: str) -> bool:
    """Whether a server that is being started is ready: its health says so."""
    with _client("", base_url) as client:
        return text_of(client, f"{root_url(base_url)}/health") is not None


def connect(base_url: str, *, model: str | None, key_variable: str, tries: int) -> Endpoint:
    """Look at a server: its models, and what tells its engine.

    Errors: TargetError when nobody answers, or it serves several models and none is named; UnknownNameError for a model
    that it does not serve.
    """
    with _client(key_variable, base_url) as client:
        found = call(client, "GET", f"{api_url(base_url)}/models", body=None, tries=tries)
        entries = [entry for entry in found.get("data", []) if isinstance(entry, dict)]
        served = [str(entry.get("id")) for entry in entries]
        endpoint = Endpoint(base_url, _choose(model, served, base_url), key_variable=key_variable)
        return _identify(client, endpoint, owners=[str(entry.get("owned_by", "")) for entry in entries])


def _choose(model: str | None, served: list[str], base_url: str) -> str:
    if model is not None:
        if served and model not in served:
            raise unknown_name("model of the server", model, served)
        return model
    if len(served) != 1:
        names = ", ".join(served[:6]) or "none"
        raise TargetError(f"{base_url} names {len(served)} models ({names}); say which with --model NAME")
    return served[0]


def _identify(client: Any, endpoint: Endpoint, *, owners: list[str]) -> Endpoint:
    root = root_url(endpoint.base_url)
    metrics = text_of(client, f"{root}/metrics")
    engine = counters.engine_of(counters.parse(metrics)) if metrics is not None else None
    if engine is None:
        engine = next((_OWNERS[owner] for owner in owners if owner in _OWNERS), None)
    if engine is None:
        return endpoint
    return replace(endpoint, engine=engine, version=_version(client, root))


def _version(client: Any, root: str) -> str | None:
    """As the engine says it: vLLM and TensorRT-LLM at /version, SGLang at /server_info, llama.cpp at /props."""
    for path, name in (("version", "version"), ("server_info", "version"), ("props", "build_info")):
        text = text_of(client, f"{root}/{path}")
        try:
            found = json.loads(text) if text is not None else None
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get(name), str):
            return str(found[name])
    return None
