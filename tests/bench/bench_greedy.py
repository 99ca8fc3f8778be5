"""Greedy text of HumanEval prompts in float32 against transformers' generate, at several concurrencies."""

from __future__ import annotations

import torch
from specbench_drafters.ngram import NgramDrafter
from specbench_drafters.vanilla import VanillaDrafter

from specbench.api import Drafter
from specbench.engine.control import noise_floor
from specbench.engine.target import Target
from tests.bench.support_demo import model_path, reference, requests, serve, use_threads

COUNT, NEW = 64, 64


def main() -> None:
    """Print, per arm, how many texts are identical, and every first difference with its top-2 gap."""
    use_threads()
    model, target = reference("float32"), Target.load(model_path(), dtype="float32")
    wanted = requests("humaneval", COUNT, new=NEW, ignore_eos=False, target=target)
    expected = {}
    for request in wanted:
        ids = torch.tensor([request.prompt_ids])
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :].tolist()
        expected[request.id] = tuple(out)
    floor = noise_floor(target, [(r.prompt_ids, expected[r.id]) for r in wanted[:4]], gamma=7)
    print(f"noise floor {floor.noise_floor:.2e} from {floor.positions} positions")
    longest = max(len(r.prompt_ids) for r in wanted) + NEW
    for rows in (1, 4, 16):
        view = target.view(max_rows=rows, max_context=longest)
        arms: list[tuple[str, Drafter, int]] = [
            ("vanilla", VanillaDrafter(), 0),
            ("ngram", NgramDrafter(view, max_ngram=3, min_ngram=1), 7),
        ]
        for name, drafter, k in arms:
            trace = serve(target, drafter, wanted, k=k, rows=rows)
            same, differences = 0, []
            for done in trace.requests:
                theirs = expected[done.id]
                if done.output_ids == theirs:
                    same += 1
                    continue
                pairs = zip(done.output_ids, theirs, strict=False)
                at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(done.output_ids), len(theirs)))
                gaps = [
                    done.first_token_gap,
                    *(g for r in trace.rounds if r.request == done.id for g in r.top2_gap or ()),
                ]
                differences.append((done.id, at, gaps[at]))
            print(
                f"{name} at concurrency {rows}: {same} of {COUNT} identical; "
                f"differences (prompt, position, gap): {differences}",
                flush=True,
            )
