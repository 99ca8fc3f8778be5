"""Run as a program by an interpreter that has xllamacpp: llama.cpp's server until it is told to end.

It imports nothing of this project, whose environment the interpreter need not have.
"""

import json
import signal
import sys
import threading
from typing import Any


def parameters(settings: dict[str, Any]) -> Any:
    """The server's parameters."""
    import xllamacpp  # type: ignore[import-not-found,unused-ignore]

    found = xllamacpp.CommonParams()
    found.model.path = settings["model"]
    found.model_alias = {settings["alias"]}
    found.hostnames, found.port = [settings["host"]], settings["port"]
    found.n_parallel, found.n_ctx = settings["rows"], settings["context"]
    found.endpoint_metrics = True
    for cpu in (found.cpuparams, found.cpuparams_batch, found.speculative.draft.cpuparams):
        cpu.n_threads = settings["threads"]
    if settings["kind"] is not None:
        speculative = found.speculative
        kinds = xllamacpp.common_speculative_type
        speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{settings['kind']}")]
        speculative.draft.n_max = settings["drafts"]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = settings["ngram"], settings["drafts"]
        if settings["drafter"] is not None:
            speculative.draft.mparams.path = settings["drafter"]
    return found


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    import xllamacpp  # type: ignore[import-not-found,unused-ignore]

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    server = xllamacpp.Server(parameters(json.loads(sys.argv[1])))
    print(f"listening at {server.listening_address}", flush=True)
    ended.wait()


if __name__ == "__main__":
    main()
