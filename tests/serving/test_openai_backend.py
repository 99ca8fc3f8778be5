"""The openai backend against a scripted server: what goes well, and every way in which a server fails a request."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support_http import Answer, ScriptedServer, breaking, refusal, scripted_server, silent
from support_models import tiny_tokenizer

from specbench.backends.openai import OpenAIBackend, ServedRun
from specbench.engine.clock import WallClock
from specbench.metrics._identities import check_identities
from specbench.prompting import Renderer
from specbench.records import rounds
from specbench.serving.body import BodyMaker
from specbench.serving.endpoint import Endpoint, connect
from specbench.types import Request, RequestTrace, RunTrace, Sampling, Status

TOKENISE = Renderer(tiny_tokenizer()).tokenise


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as found:
        yield found


def request(name: str, *, temperature: float = 0.0, ignore_eos: bool = False) -> Request:
    sampling = Sampling(temperature=temperature)
    return Request(name, len(name), (5, 6, 7), 3, sampling, 0, frozenset({1}), ignore_eos, "task", "domain")


def served(url: str, *, engine: str = "unknown", timeout_s: float = 5.0, tries: int = 1, **body: Any) -> ServedRun:
    endpoint = Endpoint(url, "tiny", engine=engine)
    maker = BodyMaker(engine=engine, model="tiny", chat=False, salt="ngram:4", **body)
    return ServedRun(
        endpoint=endpoint,
        body=maker,
        method="ngram",
        draft_length=4,
        sampling=Sampling(),
        concurrency=2,
        dtype="float32",
        tokenise=TOKENISE,
        timeout_s=timeout_s,
        tries=tries,
    )


def run(run_: ServedRun, requests: Sequence[Request], *, limit_s: float = 10.0) -> RunTrace:
    """All at once, to their end; the test fails where one hangs."""
    backend = OpenAIBackend(run_, clock=WallClock())
    for one in requests:
        backend.submit(one)
    pending, end_s = {one.id for one in requests}, time.monotonic() + limit_s
    while pending:
        pending -= {event.request_id for event in backend.poll() if event.finished}
        assert time.monotonic() < end_s, f"{pending} hang"
    trace = backend.close()
    check_identities(trace)
    data = rounds.encode(trace, check=check_identities)
    assert rounds.decode(data, where="here") == trace
    return trace


def only(trace: RunTrace) -> RequestTrace:
    assert len(trace.requests) == 1
    return trace.requests[0]


def test_a_stream_leaves_its_tokens_times_and_counts(server):
    counts = {"num_spec_steps": 1, "num_accepted_draft_tokens": 1, "num_draft_tokens": 4,
              "acceptance_histogram": [0, 1, 0, 0, 0], "per_step_accepted": [1], "per_step_drafted": [4]}  # fmt: skip
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    metrics = {"speculative_decoding": counts, "queue_time_ms": 4.0}
    server.usual = Answer(usage=usage, last={"metrics": metrics}, pause_s=0.02)
    trace = run(served(server.url), [request("a")])
    found, entry = only(trace), trace.served[0]
    assert (found.status, found.output_ids, found.num_tokens, found.stop_reason) == ("ok", (11, 12, 13), 3, "length")
    assert entry.chunk_tokens == (1, 2)
    assert entry.ids_from == "server"
    assert (entry.draft_steps, entry.accepted, entry.drafted, entry.cached_tokens) == (1, 1, 4, 2)
    assert entry.queue_s == pytest.approx(0.004)
    assert found.first_token_s is not None
    assert found.token_times_s[1] - found.first_token_s >= 0.01
    assert trace.rounds == trace.steps == ()  # chunks are no rounds


def test_text_without_ids_is_tokenised_and_counted_by_the_server(server):
    server.usual = Answer(chunks=(("ab", None), ("c", None)), finish="stop", usage={"completion_tokens": 4})
    trace = run(served(server.url), [request("a")])
    found, entry = only(trace), trace.served[0]
    assert found.output_ids == tuple(TOKENISE("abc")[0])
    assert (found.num_tokens, entry.ids_from) == (4, "text")
    assert entry.chunk_tokens == (2, 2)  # the end token has no text: it came with the last chunk
    assert found.stop_reason == "stop"


def test_every_engine_gets_its_own_words_and_others_none(server):
    run(served(server.url, engine="vllm"), [request("a", ignore_eos=True)])
    run(served(server.url), [request("b")])
    run(served(server.url, engine="llama.cpp"), [request("c", temperature=0.5)])
    vllm, plain, llama = server.asked
    assert (vllm["return_token_ids"], vllm["top_k"], vllm["ignore_eos"]) == (True, -1, True)
    assert plain.keys() == {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "stream_options"}
    assert (llama["cache_prompt"], llama["top_k"], llama["min_p"], llama["temperature"]) == (False, 0, 0.0, 0.5)
    assert vllm["prompt"] == [5, 6, 7]


def test_arms_draw_apart_and_repeats_alike():
    seeds = [BodyMaker("vllm", "m", False, salt).make(request("a"), warmup=False)["seed"] for salt in ("x", "x", "y")]
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_chat_sends_messages_and_reads_deltas(server):
    maker = {"messages": {"a": [{"role": "user", "content": "hello"}]}, "thinking": False}
    run_ = served(server.url, **maker)
    body = BodyMaker("unknown", "tiny", True, "s", **maker)  # type: ignore[arg-type]
    trace = run(run_.but(body=body), [request("a")])
    assert server.paths == ["/v1/chat/completions"]
    assert server.asked[0]["messages"][0]["content"] == "hello"
    assert server.asked[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert only(trace).output_ids == (11, 12, 13)


# -------------------------------------------------------------------------------------------------------- faults


def test_a_refused_connection_fails_the_request_after_its_tries():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    trace = run(served(f"http://127.0.0.1:{port}", tries=2), [request("a")])
    found = only(trace)
    assert found.status == Status.FAILED
    assert found.error is not None
    assert found.error.startswith("no connection")
    assert trace.served[0].attempts == 2


def test_a_busy_server_is_asked_again_when_it_says(server):
    server.plays.extend([refusal(429, "slow down", Retry_After="0.2"), refusal(503)])
    trace = run(served(server.url, tries=3), [request("a")])
    found = only(trace)
    assert (found.status, trace.served[0].attempts, trace.served[0].http_status) == ("ok", 3, 200)
    assert found.admitted_s is not None
    assert found.admitted_s - found.arrival_s > 0.2  # its waiting is in its times
    server.plays.extend([refusal(429, "slow down", Retry_After="0")] * 2)
    failed = only(run(served(server.url, tries=2), [request("b")]))
    assert (failed.status, failed.error) == ("failed", "HTTP 429: slow down (sent 2 times)")


@pytest.mark.parametrize(
    ("play", "says"),
    [
        (refusal(404, "The model `x` does not exist"), "HTTP 404: The model `x` does not exist"),
        (refusal(400, "max_tokens is too large"), "max_tokens is too large"),
        (breaking(Answer(finish=None, done=False, usage=None)), "the answer was cut"),
        (Answer(finish=None, done=False, usage=None), "ended without a finish reason"),
        (Answer(finish="abort"), "the server ended the answer by itself"),
        (lambda handler, body: (handler.begin(), handler.event("{not json")), "no JSON"),
        (lambda handler, body: (handler.begin(), handler.event("[1]")), "a list instead of an object"),
        (lambda handler, body: (handler.begin(), handler.event({"choices": [7]})), "a choice that is no object"),
        (lambda handler, body: (handler.begin(), handler.event({"error": {"message": "out of\n memory"}})),
         "reports in its answer: out of memory"),
        (Answer(chunks=(("x", None),) * 200), "the server does not end"),
        (Answer(chunks=(("", None),) * 200), "the server does not end"),
        (lambda handler, body: handler.whole(200, "<html>"), "no JSON"),
        (lambda handler, body: handler.whole(200, "{}"), "without a finish reason"),
    ],
)  # fmt: skip
def test_a_fault_ends_its_own_request_and_no_other(server, play, says):
    server.plays.append(play)
    backend_run = served(server.url, tries=1)
    first = run(backend_run, [request("bad")])
    assert (only(first).status, only(first).finish_s is None) == ("failed", False)
    assert only(first).error is not None
    assert says in str(only(first).error)
    assert "\n" not in str(only(first).error)
    assert only(run(backend_run, [request("good")])).status == Status.OK


def test_an_error_in_mid_stream_keeps_what_came_before(server):
    def play(handler: Any, body: dict[str, Any]) -> None:
        Answer(finish=None, usage=None, done=False)(handler, body)
        handler.event({"error": {"message": "engine died", "code": 500}})

    server.plays.append(play)
    found = only(run(served(server.url, tries=3), [request("a")]))
    assert (found.status, found.output_ids) == ("failed", (11, 12, 13))
    assert len(server.asked) == 1  # an answer that was cut is not asked for again


@pytest.mark.parametrize("comments", [False, True])
def test_a_hang_ends_at_the_limit_of_silence(server, comments):
    server.plays.append(silent(30, comments=comments))
    start_s = time.monotonic()
    found = only(run(served(server.url, timeout_s=0.4), [request("a")]))
    assert time.monotonic() - start_s < 5
    assert found.status == Status.FAILED
    assert found.error == "the server was silent for 0.4 s (server.timeout)"


def test_closing_leaves_what_is_under_way_interrupted(server):
    server.usual = silent(30)
    backend = OpenAIBackend(served(server.url, timeout_s=60), clock=WallClock())
    backend.submit(request("a"))
    backend.poll()
    start_s = time.monotonic()
    trace = backend.close()
    assert time.monotonic() - start_s < 5
    assert only(trace).status == Status.INTERRUPTED
    check_identities(trace)


def test_contradicting_counts_are_dropped_and_said(server):
    bad = {"num_spec_steps": 1, "num_accepted_draft_tokens": 9, "num_draft_tokens": 4}
    server.usual = Answer(last={"metrics": {"speculative_decoding": bad}})
    backend = OpenAIBackend(served(server.url), clock=WallClock())
    backend.submit(request("a"))
    while not any(event.finished for event in backend.poll()):
        pass
    assert backend.close().served[0].accepted is None
    assert "contradict" in backend.notes[0]


# ---------------------------------------------------------------------------------------------- who is the server


def test_a_server_is_known_by_its_signs(server):
    server.pages["/metrics"] = "vllm:generation_tokens_total 3\n"
    server.pages["/version"] = '{"version": "0.32.0"}'
    found = connect(server.url + "/v1/", model=None, key_variable="NO_KEY", tries=1)
    assert (found.engine, found.version, found.model, found.local) == ("vllm", "0.32.0", "tiny", True)
    assert found.counts() is not None


def test_an_unknown_server_stays_unknown(server):
    found = connect(server.url, model="tiny", key_variable="NO_KEY", tries=1)
    assert (found.engine, found.version, found.counts()) == ("unknown", None, None)
