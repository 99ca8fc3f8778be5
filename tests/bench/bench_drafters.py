"""What each method's drafting costs on the demo shape, by draft length and batch, with forced acceptance."""

from __future__ import annotations

import statistics
from typing import Any

from specbench_drafters.vanilla import VanillaDrafter

from specbench.config import geometric_rate
from specbench.engine.engine import Engine
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.target import Target
from tests.bench.support_demo import model_path, requests, use_threads
from tests.bench.support_random_drafters import METHODS, random_drafter

LENGTHS, BATCHES, ROUNDS = (4, 7, 15), (1, 8, 32), 8


class Arm:
    """One method in an engine of its own, advanced step by step so that arms can be interleaved."""

    def __init__(self, target: Target, method: str, *, k: int, rows: int) -> None:
        wanted = requests("starter-chat", rows, new=400, ignore_eos=True, target=target)
        longest = max(len(r.prompt_ids) for r in wanted) + 400
        view = target.view(max_rows=rows, max_context=longest)
        drafter: Any = VanillaDrafter() if method == "vanilla" else random_drafter(method, k=k, target=view)
        self.tau = 1.0 if method == "vanilla" else (k + 2) / 2
        rates = None if method == "vanilla" else [geometric_rate(self.tau, draft_length=k)] * k
        self.engine = Engine(
            target,
            drafter,
            FixedPolicy(0 if method == "vanilla" else k),
            max_rows=rows,
            max_context=longest,
            synthetic=rates,
            prefill_budget=10**6,
        )
        self.target, self.rows = target, rows
        for request in wanted:
            self.engine.submit(request)
        self.step()  # the prompts

    def step(self) -> None:
        """One cycle; the taps are the target's, so they are set again where arms take turns."""
        self.target.lm.set_taps(self.engine.drafter.taps)
        self.engine.poll()

    def finish(self) -> dict[str, float]:
        """Medians in milliseconds, and the rate against the formula."""
        trace = self.engine.close()
        steps = [s for s in trace.steps if s.decode_rows == self.rows and s.prefill_tokens == 0][1:]
        chosen = {s.step for s in steps}
        committed = sum(r.committed for r in trace.rounds if r.step in chosen)
        seconds = sum(s.total_s for s in steps)
        tau = committed / (len(steps) * self.rows)
        formula = (sum(s.draft_s for s in steps) + sum(s.verify_s for s in steps)) / len(steps) / tau / self.rows
        return {
            "draft": statistics.median(s.draft_s for s in steps) * 1e3,
            "verify": statistics.median(s.verify_s for s in steps) * 1e3,
            "round": statistics.median(s.total_s for s in steps) * 1e3,
            "rate": committed / seconds,
            "against_formula": seconds / committed / formula,
            "tau": tau,
        }


def main() -> None:
    """One table a batch size; the arms of a batch size take turns round by round."""
    use_threads()
    target = Target.load(model_path(), dtype="float32")
    for rows in BATCHES:
        for k in LENGTHS:
            arms = {m: Arm(target, m, k=k, rows=rows) for m in ("vanilla", *METHODS)}
            for _ in range(ROUNDS + 1):
                for arm in arms.values():
                    arm.step()
            found = {m: arm.finish() for m, arm in arms.items()}
            print(f"\nbatch {rows}, k = {k}: medians in ms (float32, random weights, forced tau)", flush=True)
            for method, v in found.items():
                print(
                    f"  {method:12s} T_draft {v['draft']:8.2f}  T_verify {v['verify']:8.2f}  round {v['round']:8.2f}  "
                    f"tau {v['tau']:.2f}  {v['rate']:7.1f} tok/s  time / formula {v['against_formula']:.3f}"
                )
            extra = found["dspark"]["draft"] - found["dflash"]["draft"]
            print(f"  dspark over dflash: {extra:+.2f} ms, {extra / found['dspark']['round']:+.2%} of the round")
