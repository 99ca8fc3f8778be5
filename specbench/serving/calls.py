"""Single calls to a server: whole answers, tried again where it is busy or away."""

from __future__ import annotations

import os
import time
from typing import Any

from specbench.errors import TargetError

API_KEY = "SPECBENCH_API_KEY"  # environment variable with the server's key, where it wants one
TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
LONGEST_WAIT_S = 30.0


def auth_headers(variable: str = API_KEY) -> dict[str, str]:
    """The key in this environment variable as a header; none where it is not set."""
    key = os.environ.get(variable)
    return {"Authorization": f"Bearer {key}"} if key else {}


def api_url(base_url: str) -> str:
    """The address of the OpenAI interface: a plain server's is below /v1; no slash at its end."""
    plain = base_url.rstrip("/")
    return plain if plain.rpartition("/")[2] == "v1" else f"{plain}/v1"


def root_url(base_url: str) -> str:
    """The server's own address, where /metrics and /health lie."""
    return api_url(base_url).removesuffix("/v1")


def wait_s(attempt: int, retry_after: str | None) -> float:
    """Seconds before attempt number ``attempt`` (1 is the first repeat): as the server asks, else doubling."""
    try:
        asked = float(retry_after) if retry_after is not None else 0.5 * 2**attempt
    except ValueError:  # a date is allowed too, which no engine sends
        asked = 0.5 * 2**attempt
    return min(max(asked, 0.0), LONGEST_WAIT_S)


def call(client: Any, verb: str, url: str, *, body: dict[str, Any] | None, tries: int) -> dict[str, Any]:
    """One call, tried again after a pause where the server is busy or away. Errors: TargetError."""
    import httpx2

    trouble, retry_after = "", None
    for attempt in range(tries):
        if attempt:
            time.sleep(wait_s(attempt, retry_after))
        try:
            reply = client.request(verb, url, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            trouble, retry_after = f"{type(error).__name__}: {error}", None
            continue
        if reply.status_code in TRY_AGAIN:
            trouble, retry_after = f"HTTP {reply.status_code}", reply.headers.get("retry-after")
            continue
        if reply.status_code != 200:
            raise TargetError(f"{url} refuses the request: HTTP {reply.status_code}: {reply.text[:160]}; see its log")
        try:
            found = reply.json()
        except ValueError as error:
            raise TargetError(f"{url} answers no JSON ({error}); is it an OpenAI-compatible server?") from error
        if isinstance(found, dict):
            return found
        trouble = f"a {type(found).__name__} instead of an object"
    raise TargetError(f"no answer from {url}: {trouble or 'none'}; start the server or correct --base-url")


def text_of(client: Any, url: str) -> str | None:
    """What is at an address that a server need not have; None where there is nothing."""
    import httpx2

    try:
        reply = client.get(url)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None
    return str(reply.text) if reply.status_code == 200 else None
