"""Commands by method and engine, refusals before anything starts, and processes that always end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specbench import registry
from specbench.errors import ConfigError, DrafterError, TargetError
from specbench.serving.launching import Launch, LaunchAsk, engine_version
from specbench.serving.process import free_port, started


def ask(method: str, folder: Path, **more: Any) -> LaunchAsk:
    needs = method not in ("vanilla", "ngram", "mtp")
    fields: dict[str, Any] = {
        "method": method, "draft_length": 0 if method == "vanilla" else 4, "model": folder / "target",
        "drafter": folder / "drafter" if needs else None, "options": {}, "port": 8123, "device": "cuda",
        "dtype": "bfloat16", "threads": 1, "rows": 8, "max_context": 512, "python": "/env/bin/python",
        "scratch": folder / "scratch",
    }  # fmt: skip
    return LaunchAsk(**{**fields, **more})


def flag(launch: Launch, name: str) -> str:
    return launch.argv[launch.argv.index(name) + 1]


def vllm_config(asked: LaunchAsk) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(flag(registry.load("servers", "vllm").launch(asked), "--speculative-config"))
    return found


def test_vllm_by_method(tmp_path):
    engine = registry.load("servers", "vllm")
    plain = engine.launch(ask("vanilla", tmp_path))
    assert "--speculative-config" not in plain.argv
    assert plain.argv[:3] == ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert (flag(plain, "--max-model-len"), flag(plain, "--max-num-seqs")) == ("512", "8")
    assert "--no-enable-prefix-caching" in plain.argv
    ngram = vllm_config(ask("ngram", tmp_path, options={"max_ngram": 5}))
    assert ngram == {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 1
    }  # fmt: skip
    drafter = str(tmp_path / "drafter")
    assert vllm_config(ask("draft-model", tmp_path)) == {
        "method": "draft_model", "num_speculative_tokens": 4, "model": drafter
    }  # fmt: skip
    assert vllm_config(ask("mtp", tmp_path)) == {"method": "mtp", "num_speculative_tokens": 4}
    dspark = vllm_config(ask("dspark", tmp_path, options={"draft_sampling": "probabilistic"}))
    assert (dspark["method"], dspark["model"], dspark["draft_sample_method"]) == ("dspark", drafter, "probabilistic")


def test_vllm_on_a_cpu_is_eager_and_litters_its_scratch_folder_alone(tmp_path):
    launch = registry.load("servers", "vllm").launch(ask("ngram", tmp_path, device="cpu", args=("--seed", "3")))
    assert "--enforce-eager" in launch.argv
    assert launch.argv[-2:] == ("--seed", "3")
    assert launch.environment["VLLM_CACHE_ROOT"] == str(tmp_path / "scratch")
    assert launch.environment["VLLM_CPU_KVCACHE_SPACE"].isdecimal()


def test_sglang_counts_the_anchor(tmp_path):
    engine = registry.load("servers", "sglang")
    chain = engine.launch(ask("eagle3", tmp_path))
    assert flag(chain, "--speculative-algorithm") == "EAGLE3"
    assert (flag(chain, "--speculative-num-draft-tokens"), flag(chain, "--speculative-num-steps")) == ("5", "4")
    assert flag(chain, "--speculative-eagle-topk") == "1"
    block = engine.launch(ask("dspark", tmp_path))
    assert flag(block, "--speculative-num-draft-tokens") == "5"
    assert "--speculative-num-steps" not in block.argv
    assert "--disable-radix-cache" in engine.launch(ask("vanilla", tmp_path)).argv


def test_flags_in_a_record_name_no_folders(tmp_path):
    asked = ask("draft-model", tmp_path)
    shown = registry.load("servers", "vllm").launch(asked).shown(asked)
    assert str(tmp_path) not in " ".join(shown)
    assert {"target", "PORT"} <= set(shown)


@pytest.mark.parametrize(
    ("engine", "method", "more", "error", "says"),
    [
        ("vllm", "dspark", {"device": "cpu"}, DrafterError, "vllm has dspark only in its second model runner"),
        ("vllm", "eagle3", {"drafter": None}, DrafterError, "give --drafter eagle3=PATH"),
        ("vllm", "medusa", {}, DrafterError, "vllm has no method 'medusa'"),
        ("vllm", "ngram", {"options": {"window": 3}}, ConfigError, "it takes: max_ngram, min_ngram"),
        ("sglang", "ngram", {"device": "cpu"}, DrafterError, "on a GPU only"),
        ("llamacpp", "ngram", {}, DrafterError, "--engine-weights FILE.gguf"),
    ],
)
def test_what_an_engine_lacks_is_said_before_it_starts(tmp_path, engine, method, more, error, says):
    with pytest.raises(error, match=says) as caught:
        registry.load("servers", engine).check(ask(method, tmp_path, **more))
    assert "\n" not in str(caught.value)


def test_an_environment_without_the_engine_is_refused():
    engine = registry.load("servers", "sglang")
    with pytest.raises(TargetError, match=r"has no sglang \(package sglang\); install it there"):
        engine_version(engine, sys.executable)
    with pytest.raises(TargetError, match="correct --engine-python"):
        engine_version(engine, "/no/such/python")


# ----------------------------------------------------------------------------------------------------- processes

PARENT = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)"])
print("child", child.pid, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_a_stubborn_server_and_its_children_are_ended_also_after_ctrl_c(tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.serving.process._GRACE_S", 0.2)
    log = tmp_path / "logs" / "server.log"
    pids: list[int] = []

    def serve() -> None:
        with started(Launch((sys.executable, "-c", PARENT)), name="it", log=log) as server:
            while "up" not in log.read_text():
                time.sleep(0.02)
            words = log.read_text().split()
            pids.extend([server.process.pid, int(words[words.index("child") + 1])])
            assert os.getpgid(pids[1]) == pids[0] != os.getpgid(0)
            raise KeyboardInterrupt

    monkeypatch.setattr("specbench.serving.process._HARDER_S", 0.3)
    with pytest.raises(KeyboardInterrupt):
        serve()
    assert not any(alive(pid) for pid in pids)


def test_a_server_that_dies_shows_the_end_of_its_log(tmp_path):
    code = "import sys; print('loading'); sys.exit('ValueError: no such flag')"
    launch, log = Launch((sys.executable, "-c", code)), tmp_path / "server.log"
    with (
        pytest.raises(TargetError, match=r"exit status 1.*ValueError: no such flag") as caught,
        started(launch, name="it", log=log) as server,
    ):
        server.wait_ready(lambda: False, limit_s=10, stop=lambda: False)
    assert "\n" not in str(caught.value)


def test_a_server_that_never_answers_is_given_up(tmp_path):
    launch = Launch((sys.executable, "-c", "import time; time.sleep(60)"))
    with (
        pytest.raises(TargetError, match=r"did not answer within 0\.3 s"),
        started(launch, name="it", log=tmp_path / "a.log") as server,
    ):
        server.wait_ready(lambda: False, limit_s=0.3, stop=lambda: False)
    assert server.ended is not None
    with (
        pytest.raises(TargetError, match="interrupted"),
        started(launch, name="it", log=tmp_path / "b.log") as server,
    ):
        server.wait_ready(lambda: False, limit_s=30, stop=lambda: True)
    assert server.ended is not None


def test_ports_are_free():
    assert free_port() != free_port()
