"""Records for the site's tests: made through the schema, with the shape of real sweeps and values from formulas."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support_records import KEY, make_record

from specbench.records import sla_result, store
from specbench.records.schema import Record, digest
from specbench.records.sla_result import SlaResult
from specbench.report import series

HOSTILE = '<img src=x onerror="window.hacked=1">'
HOSTILE_TARGET = "</script><script>window.hacked=2</script>"
BUSY = {"cpu": {"logical_cores": 2}, "load": {"others_cores": 1.0, "busy": "other processes use 1.0 of 2 processors"}}
DOMAINS = ("chat", "code", "math")
METHODS = {"vanilla": 0.0, "ngram": 0.45, "mtp": 0.62, "eagle3": 0.7, "dflash": 0.68, "dspark": 0.76}
DRAFT_MS = {"vanilla": 0.0, "ngram": 0.3, "mtp": 0.9, "eagle3": 3.1, "dflash": 1.4, "dspark": 1.7}


def _row(metric: str, value: float, unit: str, *, n: int = 60, n_of: str = "requests", spread: float | None = None,
         interval: str = "bootstrap over prompts", **scope: Any) -> dict[str, Any]:  # fmt: skip
    row: dict[str, Any] = {
        "metric": metric, "value": value, "unit": unit, "n": n, "n_of": n_of,
        "scope": {name: str(text) for name, text in scope.items()},
    }  # fmt: skip
    if spread is not None:
        row |= {"low": value - spread, "high": value + spread, "interval": interval}
    return row


def _positions(rate: float, k: int, decay: float, noise: random.Random) -> list[dict[str, Any]]:
    rows, survived = [], 1.0
    for position in range(1, k + 1):
        conditional = min(0.98, max(0.05, rate * decay ** (position - 1) + noise.uniform(-0.015, 0.015)))
        survived *= conditional
        rows.append(_row("conditional", conditional, "fraction", n=1000, n_of="rounds", spread=0.02, k=position))
        rows.append(_row("survival", survived, "fraction", n=1000, n_of="rounds", spread=0.02, k=position))
    return rows


def _confidence(k: int, noise: random.Random) -> list[dict[str, Any]]:
    rows = []
    for position in range(1, k + 1):
        rows.append(
            _row("ece", 0.01 + 0.01 * position + noise.uniform(0, 0.004), "fraction", n_of="positions", k=position)
        )
        for step in range(1, 20, 2):
            forecast = step / 20 + 0.025
            where = {"k": position, "bin": f"{step / 20:g}-{(step + 1) / 20:g}"}
            rows.append(_row("reliability_forecast", forecast, "fraction", n=40, n_of="positions", **where))
            outcome = max(0.0, forecast - 0.02 * position * forecast)
            rows.append(_row("reliability_outcome", outcome, "fraction", n=40, n_of="positions", **where))
    return rows


def estimates(
    method: str, k: int, users: int, *, threshold: float | None, detail: bool, seed: int
) -> list[dict[str, Any]]:
    """Every estimate that the site shows, from the acceptance rate of the method and a cost that grows with load."""
    noise = random.Random(f"{method}-{k}-{users}-{threshold}-{seed}")
    rate = METHODS[method]
    cut = 1.0 if threshold is None else 1 - 0.35 * threshold
    rows: list[dict[str, Any]] = []
    plain_ms = 12 + 0.18 * users
    budget = 1 + k * cut
    verify_ms = plain_ms * (1 + 0.012 * budget * users**0.6) + noise.uniform(0, 0.2)
    draft_ms = DRAFT_MS[method] * (1 + 0.02 * users)
    for domain in ("", *DOMAINS):
        a = min(0.95, rate * {"": 1.0, "chat": 0.86, "code": 1.08, "math": 1.05}[domain])
        tau = 1.0 if not k else (1 - a ** (k + 1)) / (1 - a) * (1 - 0.04 * (1 - cut)) + noise.uniform(-0.02, 0.02)
        scope = {"domain": domain} if domain else {}
        user = 1000 * tau / (verify_ms + draft_ms + 0.4)
        rows.append(_row("tau", tau, "tokens per round", n=1800, n_of="rounds", spread=0.0 if not k else 0.06, **scope))
        rows.append(_row("tokens_per_s_user", user, "tokens/s", spread=user * 0.03, stat="mean", **scope))
        if method != "vanilla":
            rows.append(_row("speed_up", user / (1000 / (plain_ms + 0.4)), "ratio", spread=0.05,
                             interval="paired bootstrap over prompts", **scope))  # fmt: skip
        for phase, ms in (("T_draft", draft_ms), ("T_verify", verify_ms)):
            rows.append(_row(phase, ms / 1000, "s", n=900, n_of="steps", steps="decode", stat="mean", **scope))
        if not domain:
            rows.append(
                _row("steady_tokens_per_s", user * users * 0.97, "tokens/s", n=4000, n_of="output tokens in the window")
            )
    for phase, ms in (("T_schedule", 0.05), ("T_accept", 0.15), ("T_other", 0.2)):
        rows.append(_row(phase, ms / 1000, "s", n=900, n_of="steps", steps="decode", stat="mean"))
    rows.append(_row("verification_budget", budget, "tokens per round", n=1800, n_of="rounds"))
    if k:
        rows += _positions(rate, k if detail else 1, 0.93 if method == "dflash" else 0.99, noise)
    if detail and method == "dspark":
        rows += _confidence(k, noise)
    return rows


def _key(users: int, temperature: float, target: str, hardware: str) -> dict[str, Any]:
    key = copy.deepcopy(KEY)
    key |= {"load": f"closed:{users}", "target_weights": digest(target)}
    key["sampling"]["temperature"] = temperature
    key["timing"] |= {"row_limit": users, "hardware": hardware}
    return key


def cell(method: str, *, k: int = 7, users: int = 1, policy: str | None = None, temperature: float = 0.0, seed: int = 0,
         target: str = "smollm2-135m", hardware: str = "a processor", drafter: str | None = None, detail: bool = True,
         outcome: str = "pass", created: str = "2026-01-02T03:04:05Z", **more: Any) -> Record:  # fmt: skip
    """One record of a sweep."""
    k = 0 if method == "vanilla" else k
    policy = policy or f"fixed:{k}"
    threshold = float(policy.partition(":")[2]) if policy.startswith("threshold") else None
    reason = {"pass": "4800 tokens agree", "inconclusive": "only 12 rounds verified a draft, 30 are needed",
              "fail": "the text differs from plain decoding's"}[outcome]  # fmt: skip
    verdict = {"outcome": outcome, "rule": "greedy", "reason": reason, "requests_compared": 60,
               "rounds_with_drafts": 900, "share_compared": 0.98, "noise_floor": 1e-4}  # fmt: skip
    trained = method in ("mtp", "eagle3", "dflash", "dspark")
    name = drafter or f"{method}-{target}"
    fields: dict[str, Any] = {
        "method": method,
        "draft_length": k,
        "created": created,
        "command": ["specbench", "run", "--method", f"{method}:{k}", "--concurrency", str(users)],
        "spec": {"method": method, "policy": policy, "temperature": temperature, "concurrency": users,
                 "dtype": "float32", "seed": seed, "threads": 1,
                 "tasks": ["starter-math", "starter-code", "starter-chat"]},
        "key": _key(users, temperature, target, hardware),
        "target": {"name": target, "sha256": digest(target), "source": "hub"},
        "drafter": {"name": name, "sha256": digest(name), "source": "package"} if trained or drafter else None,
        "provenance": {"git_sha": "f" * 40, "git_dirty": False, "device_name": hardware, "python": "3.11.7",
                       "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
                       "memory": {"peak_rss_bytes": 1_100_000_000 + 40_000_000 * users + 7_000_000 * k}},
        "estimates": estimates(method, k, users, threshold=threshold, detail=detail, seed=seed),
        "verdict": verdict if method != "vanilla" else None,
        "counts": {"ok": 60, "warmup": 1},
        "samples": [{"request": "starter-math/1", "task": "starter-math", "prompt": "What is 2 + 2?", "text": "4."}],
    }  # fmt: skip
    return make_record(**{**fields, **more})


def sweep() -> list[Record]:
    """A board with everything on it: loads, lengths, thresholds, and every kind of row that is not ranked."""
    found = [cell(method, users=users) for method in METHODS for users in (1, 2, 4, 8, 16, 32)]
    found += [cell(method, k=k) for method in ("eagle3", "dflash", "dspark") for k in (1, 2, 3, 5)]
    found += [cell("dspark", policy=f"threshold:{p}") for p in (0.1, 0.3, 0.5, 0.7, 0.9)]
    found += [cell(method, temperature=1.0) for method in METHODS]
    found += [
        cell("dspark", seed=1, created="2026-01-03T03:04:05Z"),  # a repeat; the newer one is ranked
        cell("ngram", k=3, outcome="inconclusive"),
        cell("dflash", k=9, outcome="fail"),
        cell("dspark", drafter=HOSTILE),
        cell("dspark", k=4, key={**_key(1, 0.0, "smollm2-135m", "a processor"), "synthetic_acceptance": True}),
        cell("eagle3", k=9, status="failed", estimates=[], verdict=None, counts={"failed": 60}, samples=[],
             error={"kind": "CapacityError", "message": "the cache of 2 GiB does not hold 64 requests"}),
        cell("mtp", k=2, provenance={"git_sha": "f" * 40, "git_dirty": True, "device_name": "a processor",
             "not_rankable_because": ["the code has uncommitted changes"]}),
        cell("eagle3", k=6, provenance={"git_sha": "f" * 40, "git_dirty": False, "device_name": "a processor", **BUSY}),
    ]  # fmt: skip
    return found


def hostile() -> Record:
    """Markup wherever a record holds text that a person chose."""
    return cell(
        "dspark",
        drafter=HOSTILE,
        target=HOSTILE_TARGET,
        hardware="<b>GPU</b>",
        samples=[{"request": HOSTILE, "task": HOSTILE, "prompt": HOSTILE, "text": HOSTILE_TARGET}],
        notes=[HOSTILE],
        command=["specbench", HOSTILE],
        alarms=[{"name": HOSTILE, "message": HOSTILE}],
    )


def many(count: int) -> Iterator[Record]:
    """As many different records as asked for: targets, loads, seeds and methods in turn."""
    number = 0
    while True:
        for target in range(4):
            for users in (1, 2, 4, 8, 16, 32, 64):
                for method in METHODS:
                    for k in (1, 2, 3, 5, 7) if method != "vanilla" else (0,):
                        yield cell(method, k=k, users=users, target=f"target-{target}", seed=number, detail=False,
                                   drafter=f"{method}-{number % 97}")  # fmt: skip
                        number += 1
                        if number == count:
                            return


def write_all(folder: Path, records: Sequence[Record]) -> None:
    """Write records as a run does."""
    for record in records:
        store.write(folder, record)


def search(records: Sequence[Record]) -> SlaResult:
    """A search over the loads of a sweep: dspark and dflash against plain decoding, which no load lets through."""
    probes, searches = [], []
    for method in ("dspark", "dflash", "vanilla"):
        runs = {r.spec["concurrency"]: r for r in records if r.method == method and r.draft_length in (0, 7)
                and str(r.spec["policy"]).startswith("fixed") and not r.spec["temperature"]}  # fmt: skip
        for load, record in sorted(runs.items()):
            run = {"run_id": record.run_id, "repeat": 0, "seed": 0, "requests": 60, "throughput": 1.0, "speed": 1.0,
                   "in_flight": 1.0, "served": 1.0}  # fmt: skip
            probes.append({"method": method, "load": load, "runs": [run], "estimates": []})
        row = {"method": method, "level": 0, "outcome": "not attainable", "reason": "no load holds the floor"}
        if method != "vanilla":
            row |= {"outcome": "attained", "reason": "8 users pass, 16 fail", "requests": 60, "best": 8, "max_pass": 8,
                    "first_fail": 16, "throughput": runs[8].find("steady_tokens_per_s"),
                    "speed": runs[8].find("tokens_per_s_user", stat="mean")}  # fmt: skip
        searches.append(row)
    return sla_result.build(
        created="2026-01-05T00:00:00Z", command=["specbench", "sla", "--floor", "120", HOSTILE], metrics_version="1",
        complete=True, levels=[{"label": "tok/s/user >= 120", "floor": 120.0}], repeats=1, few=3.0, baseline="vanilla",
        space={"over": "concurrency", "start": 1, "low": 1, "high": 32, "tolerance": 0.1, "beyond": 1},
        family=series.family_key(records[0]), probes=probes, searches=searches, notes=[HOSTILE],
    )  # fmt: skip
