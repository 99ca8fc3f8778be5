"""llama.cpp: its own server inside a Python process, by the package xllamacpp; weights are GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench.errors import DrafterError
from specbench.serving import llamacpp_main
from specbench.serving.launching import HOST, SERVED_NAME, Launch, LaunchAsk, check_method

_TYPES = {
    "ngram": "NGRAM_SIMPLE",
    "draft-model": "DRAFT_SIMPLE",
    "eagle3": "DRAFT_EAGLE3",
    "mtp": "DRAFT_MTP",
    "dflash": "DRAFT_DFLASH",
    "dspark": "DRAFT_DSPARK",
}


class LlamaCpp:
    """The target's GGUF is given as weights; a drafter is a GGUF file too."""

    name = "llama.cpp"
    distributions = ("xllamacpp",)
    methods = ("vanilla", *_TYPES)

    def check(self, ask: LaunchAsk) -> None:
        """See `ServerEngine`."""
        check_method(self, ask, options={"ngram": ("max_ngram",)})
        if ask.weights is None:
            raise DrafterError("llama.cpp reads GGUF files; give the target's with --engine-weights FILE.gguf")
        for path in (ask.weights, ask.drafter):
            if path is not None and not path.is_file():
                raise DrafterError(f"llama.cpp reads GGUF files, and {path} is none; give the file itself")

    def launch(self, ask: LaunchAsk) -> Launch:
        """See `ServerEngine`. The context is shared out among the rows."""
        settings: dict[str, Any] = {
            "model": str(ask.weights),
            "alias": SERVED_NAME,
            "host": HOST,
            "port": ask.port,
            "threads": ask.threads,
            "rows": ask.rows,
            "context": ask.max_context * ask.rows,
            "kind": _TYPES.get(ask.method),
            "drafter": str(ask.drafter) if ask.drafter is not None else None,
            "drafts": ask.draft_length,
            "ngram": ask.options.get("max_ngram", 3),
        }
        argv = [ask.python, str(Path(llamacpp_main.__file__)), json.dumps(settings), *ask.args]
        return Launch(tuple(argv), {"OMP_NUM_THREADS": str(ask.threads)})


PLUGIN = LlamaCpp()
