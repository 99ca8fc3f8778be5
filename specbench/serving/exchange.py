"""One request to a server, sent as often as is allowed, its stream read to the end under a limit of silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.serving.calls import TRY_AGAIN, wait_s
from specbench.serving.reply import Chunk, Reply, ReplyError, error_text
from specbench.serving.stream import DONE, EventParser

_CONNECT_S = 10.0
_BAD_FINISH = frozenset({"abort", "error", "repetition"})


@dataclass(slots=True)
class Exchange:
    """How a request fared. ``sent_s`` is when its last attempt went out; ``error`` None: the answer is whole."""

    reply: Reply
    attempts: int = 0
    sent_s: float | None = None
    http_status: int | None = None
    error: str | None = None


class _PutOff(Exception):
    """The server did not take the request; it may later."""

    def __init__(self, text: str, retry_after: str | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


def open_client(headers: Mapping[str, str], *, timeout_s: float, secure: bool) -> Any:
    """A client without a limit of connections: how many requests are out at once is the load's to say.

    ``secure`` False: no address is https, and the certificates, which take their time, are not loaded.
    """
    import httpx2

    timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S), pool=None)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(timeout=timeout, headers=dict(headers), limits=limits, verify=secure)


async def carry_out(
    client: Any,
    url: str,
    body: Mapping[str, Any],
    *,
    into: Exchange,
    now: Callable[[], float],
    on_chunk: Callable[[Chunk], None],
    timeout_s: float,
    tries: int,
) -> None:
    """Send and read; whatever goes wrong is ``into.error``, one line. What was cut in its stream is not sent again."""
    for attempt in range(tries):
        into.attempts, into.sent_s, into.http_status = attempt + 1, now(), None
        try:
            await _attempt(client, url, body, into=into, now=now, on_chunk=on_chunk, timeout_s=timeout_s)
        except _PutOff as put_off:
            times = "once" if attempt == 0 else f"{attempt + 1} times"
            into.error = f"{put_off} (sent {times})"
            if attempt + 1 < tries:
                await asyncio.sleep(wait_s(attempt + 1, put_off.retry_after))
            continue
        except ReplyError as error:
            into.error = str(error)
        else:
            into.error = None
        return


async def _attempt(
    client: Any,
    url: str,
    body: Mapping[str, Any],
    *,
    into: Exchange,
    now: Callable[[], float],
    on_chunk: Callable[[Chunk], None],
    timeout_s: float,
) -> None:
    """Errors: _PutOff where nothing was answered yet and it may be asked again, ReplyError else."""
    import httpx2

    begun = False
    try:
        async with asyncio.timeout(timeout_s) as silence, client.stream("POST", url, json=dict(body)) as response:
            into.http_status = response.status_code
            if response.status_code != 200:
                await _refused(response)
            begun = True
            if "json" in response.headers.get("content-type", ""):
                _feed(into.reply, (await response.aread()).decode("utf-8", "replace"), now, on_chunk)
            else:
                await _read(response, into.reply, silence, now=now, on_chunk=on_chunk, timeout_s=timeout_s)
    except TimeoutError as error:
        raise ReplyError(f"the server was silent for {timeout_s:g} s (server.timeout)") from error
    except httpx2.TimeoutException as error:
        if begun or not isinstance(error, httpx2.ConnectTimeout):
            raise ReplyError(f"the server was silent for {timeout_s:g} s (server.timeout)") from error
        raise _PutOff("no connection in time") from error
    except httpx2.HTTPError as error:
        text = " ".join(str(error).split())[:160] or type(error).__name__
        if begun:
            raise ReplyError(f"the answer was cut: {text}") from error
        raise _PutOff(f"no connection: {text}") from error
    if into.reply.finish is None:
        raise ReplyError("the answer was cut: its stream ended without a finish reason")
    if into.reply.finish in _BAD_FINISH:
        raise ReplyError(f"the server ended the answer by itself: {into.reply.finish}")


async def _refused(response: Any) -> None:
    text = (await response.aread()).decode("utf-8", "replace")
    try:
        import json

        says = error_text(json.loads(text))
    except ValueError:
        says = " ".join(text.split())[:160]
    said = f"HTTP {response.status_code}: {says or 'no reason given'}"
    if response.status_code in TRY_AGAIN:
        raise _PutOff(said, response.headers.get("retry-after"))
    raise ReplyError(f"the server refuses the request: {said}")


async def _read(
    response: Any,
    reply: Reply,
    silence: asyncio.Timeout,
    *,
    now: Callable[[], float],
    on_chunk: Callable[[Chunk], None],
    timeout_s: float,
) -> None:
    """All events. Comments, which some servers send to keep a connection, do not end the silence."""
    parser, loop = EventParser(), asyncio.get_running_loop()
    async for data in response.aiter_bytes():
        for event in parser.feed(data):
            if event == DONE:
                return
            _feed(reply, event, now, on_chunk)
            silence.reschedule(loop.time() + timeout_s)


def _feed(reply: Reply, data: str, now: Callable[[], float], on_chunk: Callable[[Chunk], None]) -> None:
    chunk = reply.feed(data, now_s=now())
    if chunk is not None:
        on_chunk(chunk)
