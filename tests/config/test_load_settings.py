"""Load pattern and mix as settings: flags, --set, files, what is refused, and cells older than these fields."""

from __future__ import annotations

import pytest

from specbench.config import CellSpec, build_run
from specbench.errors import SpecbenchError, UnknownNameError
from specbench.runner import check_names


def cell(**more) -> CellSpec:
    return CellSpec(
        method="ngram", draft_length=5, policy="fixed:5", drafter=None, options={}, target="t", tasks=("a",),
        num_prompts=1, max_new_tokens=8, ignore_eos=False, stop_ids=(0,), thinking="default", temperature=0.0,
        top_p=1.0, top_k=None, seed=0, workload="closed", concurrency=1, warmup=1, dtype="float32", device="cpu",
        threads=1, kv_memory=None, prefill_chunk=512, max_context=64, backend="engine", inputs={}, **more,
    )  # fmt: skip


def test_flags_beat_set_and_set_beats_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('methods = ["ngram"]\nworkload = "poisson"\n[load]\nrate = 1\n[mix]\nstarter-math = 3\n')
    sets = ["load.rate=2", "tasks=['starter-math', 'starter-code']", "mix.starter-code=0.5"]
    assert build_run(config=file, sets=sets).load == {"rate": 2}
    spec = build_run(config=file, sets=sets, flags={"rate": 4.0})
    assert (spec.workload, spec.load) == ("poisson", {"rate": 4.0})
    assert spec.mix == {"starter-math": 3.0, "starter-code": 0.5}


@pytest.mark.parametrize(
    ("mix", "says"),
    [
        ({"starter-mth": 1}, "no task of this run"),
        ({"starter-math": 1}, "no weight"),
        ({"starter-math": 1, "starter-code": 0}, "greater than 0"),
        ({"starter-math": 1, "starter-code": float("inf")}, "finite"),
        ({"starter-math": 1, "starter-code": "much"}, "number"),
    ],
)
def test_a_mix_weighs_exactly_the_tasks_of_the_run(mix, says):
    flags = {"methods": "ngram", "tasks": ["starter-math", "starter-code"], "mix": mix}
    with pytest.raises(SpecbenchError, match=says) as caught:
        build_run(flags=flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "load", "says"),
    [
        ("closd", {}, "did you mean closed"),
        ("closed", {"think_times": 1}, "did you mean think_time_s"),
        ("closed", {"think_time_s": -1}, "load.think_time_s"),
        ("closed", {"think_time_s": "long"}, "load.think_time_s"),
    ],
)
def test_options_of_a_pattern_are_checked_before_anything_loads(workload, load, says):
    spec = build_run(flags={"methods": "ngram", "workload": workload, "load": load})
    with pytest.raises(SpecbenchError, match=says) as caught:
        check_names(spec)
    assert "\n" not in str(caught.value)


def test_a_load_that_is_no_table_is_refused():
    for flags in ({"load": "fast"}, {"load": 3, "rate": 1.0}):
        with pytest.raises(SpecbenchError, match="load"):
            build_run(flags={"methods": "ngram", **flags})
    with pytest.raises(UnknownNameError, match="did you mean load"):
        build_run(flags={"methods": "ngram"}, sets=["lod=3"])


def test_cells_from_before_the_load_options_keep_their_key():
    later = ("load", "mix", "server", "graphs", "device_map")
    old = {name: value for name, value in cell().model_dump(mode="json").items() if name not in later}
    assert CellSpec.model_validate(old) == cell()
    assert cell().document() == old
    assert cell().key() == "f2747f582a133c3f"
    assert len({cell().key(), cell(load={"think_time_s": 1.0}).key(), cell(mix={"a": 1.0}).key()}) == 3
