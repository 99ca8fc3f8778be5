"""SGLang: ``python -m sglang.launch_server`` with a --speculative-algorithm for the method."""

from __future__ import annotations

from specbench.errors import DrafterError
from specbench.serving.launching import HOST, SERVED_NAME, Launch, LaunchAsk, check_method, stated_dtype

_ALGORITHMS = {
    "ngram": "NGRAM",
    "draft-model": "STANDALONE",
    "eagle3": "EAGLE3",
    "mtp": "EAGLE",  # its name for layers of the target's own that draft
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
_CHAINS = ("draft-model", "eagle3", "mtp")


class Sglang:
    """Its count of draft tokens includes the anchor: K drafts a step are K + 1 of them."""

    name = "sglang"
    distributions = ("sglang",)
    methods = ("vanilla", *_ALGORITHMS)

    def check(self, ask: LaunchAsk) -> None:
        """See `ServerEngine`."""
        check_method(self, ask, options={})
        if ask.device == "cpu" and ask.method != "vanilla":
            raise DrafterError(f"sglang has {ask.method} on a GPU only; use --device cuda")

    def launch(self, ask: LaunchAsk) -> Launch:
        """See `ServerEngine`. Trees are not asked for: one branch, so that a draft length means what it does here."""
        argv = [ask.python, "-m", "sglang.launch_server"]
        argv += ["--model-path", str(ask.weights or ask.model), "--served-model-name", SERVED_NAME]
        argv += ["--host", HOST, "--port", str(ask.port), "--dtype", stated_dtype(ask)]
        argv += ["--context-length", str(ask.max_context), "--max-running-requests", str(ask.rows)]
        argv += ["--disable-radix-cache", "--enable-metrics"]
        if ask.device == "cpu":
            argv += ["--device", "cpu"]
        if ask.method != "vanilla":
            argv += ["--speculative-algorithm", _ALGORITHMS[ask.method]]
            argv += ["--speculative-num-draft-tokens", str(ask.draft_length + 1)]
            if ask.method in _CHAINS:
                argv += ["--speculative-num-steps", str(ask.draft_length), "--speculative-eagle-topk", "1"]
            if ask.drafter is not None:
                argv += ["--speculative-draft-model-path", str(ask.drafter)]
        environment = {"HF_HUB_OFFLINE": "1", "TMPDIR": str(ask.scratch)}
        return Launch((*argv, *ask.args), environment)


PLUGIN = Sglang()
