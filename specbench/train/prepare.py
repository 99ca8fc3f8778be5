"""Stage 1: prompts, and the target's answers to them, as token shards.

Both steps work block by block. A block is a function of its prompts alone and is written whole, so a run that was
killed at any point goes on from the last whole block and ends with the shards of a run that was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from specbench.errors import TaskError, TrainDataError
from specbench.modeling.host_memory import Trimmer, keep_freed
from specbench.prompting import Renderer
from specbench.resolve import silent_step
from specbench.session import Step, choose_device
from specbench.train.answers import AnswerPlan, EngineWriter, Writer, run_requests, write_answers
from specbench.train.capture import HeadNormaliser, KeptFeatures
from specbench.train.manifest import (
    check_disk,
    fingerprint,
    owned,
    read_manifest,
    readable_bytes,
    same_settings,
    write_manifest,
)
from specbench.train.progress import Meter, Screen, Silence, readable_seconds
from specbench.train.shards import ANSWERS_VERSION, check_file, write_token_shard
from specbench.train.sources import Evaluation, Sieve, load_evaluation, load_prompts
from specbench.train.spec import PrepareSpec
from specbench.train.store_writer import config_number, default_taps
from specbench.train.synthesise import (
    TASK,
    candidate,
    read_prompt_shard,
    turn_prompt,
    turn_request,
    write_prompt_shard,
)
from specbench.train.target import FoundTarget, find_target
from specbench.types import Prompt, Request, Sampling
from specbench.workloads.driver import DriveProgress

_BYTES_PER_TOKEN = 6  # ids and mask before compression: more than a shard ever takes
_BARREN = 256  # candidates in a row without a usable one, after which it is no use to go on


def prepare(spec: PrepareSpec, *, screen: Screen | None = None, step: Step = silent_step) -> dict[str, Any]:
    """Run the stage to its end, or go on with it; the finished manifest.

    Errors: TaskError, ConfigError, TargetError for what cannot be had; TrainDataError when the folder holds other data
    or is in use; CapacityError when the disk is too small.
    """
    screen = screen or Silence()
    if spec.base_url is None and choose_device(spec.device) == "cpu":
        keep_freed()
    with owned(spec.out):
        with step("reading prompts and evaluation tasks"):
            evaluation = load_evaluation(spec.evaluation)
            given, versions = load_prompts(spec, folder=spec.out)
        found = find_target(spec.target, trust_remote_code=spec.trust_remote_code, step=step)
        manifest = _begin(spec, found, evaluation, versions)
        sieve = Sieve(evaluation.index)
        admitted = [prompt for prompt in given if sieve.admits(prompt)]
        manifest["refused_given"] = dict(sorted(sieve.refused.items()))
        _say_sources(screen, given=given, admitted=admitted, evaluation=evaluation, sieve=sieve)
        if given and not admitted and not spec.synthesise:
            raise TaskError(
                f"all {len(given)} prompts are refused, as evaluation prompts or copies; give others, "
                "or name the evaluation with --evaluation"
            )
        with owned(spec.features) if spec.features is not None else nullcontext():
            kept = _keep(spec, found, manifest)
            if _finished(spec, manifest):
                screen.say(f"{spec.out} is complete: {_totals(manifest)}")
            else:
                renderer = found.renderer(thinking=spec.thinking)
                _Run(spec, manifest, renderer, _writer(spec, found, step), sieve, screen, admitted, kept).answer()
            if kept is not None:
                kept.finish(spec.out)
        return manifest


def _keep(spec: PrepareSpec, found: FoundTarget, manifest: dict[str, Any]) -> KeptFeatures | None:
    if spec.features is None:
        return None
    config = found.resolved.config.get("text_config") or found.resolved.config
    taps = spec.taps or default_taps(config_number(config, "num_hidden_layers", "n_layer"))
    return KeptFeatures.begin(spec.features, taps=taps, target=found.identity(), config=config, answers=manifest)


def _begin(spec: PrepareSpec, found: FoundTarget, evaluation: Evaluation, versions: dict[str, str]) -> dict[str, Any]:
    """The folder's manifest where it was begun with the same settings, else a fresh one."""
    settings = {**spec.settings(), "sources": versions, "evaluation": evaluation.tasks}
    try:
        manifest = read_manifest(spec.out, kind="answers", version=ANSWERS_VERSION)
    except TrainDataError:
        if (spec.out / "manifest.json").exists():
            raise
        fresh = {
            "kind": "answers",
            "version": ANSWERS_VERSION,
            "settings": settings,
            "target": found.identity(),
            "evaluation": evaluation.describe(),
            "prompt_shards": [],
            "shards": [],
            "complete": False,
        }
        write_manifest(spec.out, fresh)
        return fresh
    same_settings(manifest["settings"], settings, folder=spec.out)
    same_settings(manifest["target"], found.identity(), folder=spec.out)
    for entry in (*manifest["prompt_shards"], *manifest["shards"]):
        check_file(spec.out, entry, command="prepare")
    return manifest


def _writer(spec: PrepareSpec, found: FoundTarget, step: Step) -> Writer:
    if spec.base_url is not None:
        from specbench.train.server import ServerWriter

        return ServerWriter.connect(spec, found)
    target = found.load(dtype=spec.dtype, device=spec.device, threads=spec.threads, step=step)
    return EngineWriter(target, rows=spec.rows, kv_memory=spec.kv_memory, prefill_chunk=spec.prefill_chunk)


def _finished(spec: PrepareSpec, manifest: dict[str, Any]) -> bool:
    """Every prompt is answered, or as many tokens are written as are asked for."""
    return bool(manifest["complete"]) and (not manifest["stopped_early"] or _enough(spec, manifest))


def _enough(spec: PrepareSpec, manifest: dict[str, Any]) -> bool:
    return spec.target_tokens is not None and _sum(manifest, "target_tokens") >= spec.target_tokens


def _sum(manifest: dict[str, Any], key: str) -> int:
    return sum(int(entry[key]) for entry in manifest["shards"])


def _totals(manifest: dict[str, Any]) -> str:
    count = len(manifest["shards"])
    return (
        f"{_sum(manifest, 'rows'):,} sequences, {_sum(manifest, 'tokens'):,} tokens, "
        f"{_sum(manifest, 'target_tokens'):,} of them by the target "
        f"({_sum(manifest, 'greedy_tokens'):,} greedy, {_sum(manifest, 'heldout_tokens'):,} held out), {count} shards"
    )


def _say_sources(
    screen: Screen, *, given: Sequence[Prompt], admitted: Sequence[Prompt], evaluation: Evaluation, sieve: Sieve
) -> None:
    kept_out = sum(task["prompts"] for task in evaluation.tasks.values())
    screen.say(f"kept out of training: {kept_out:,} prompts of {', '.join(evaluation.tasks) or 'no task'}")
    for name in evaluation.absent:
        screen.say(f"warning: the prompts of {name} cannot be had here, so they cannot be kept out")
    if given:
        screen.say(f"{len(admitted):,} of {len(given):,} prompts are used{_refusals(sieve.refused)}")


def _refusals(refused: Counter[str]) -> str:
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(refused.items()))
    return f"; refused: {listed}" if listed else ""


@dataclass(slots=True)
class _Run:
    """One session of the stage. ``prompts`` grow as the target writes them; ``looked`` counts candidates so far."""

    spec: PrepareSpec
    manifest: dict[str, Any]
    renderer: Renderer
    writer: Writer
    sieve: Sieve
    screen: Screen
    prompts: list[Prompt]
    kept: KeptFeatures | None
    wanted: int = field(init=False)
    looked: int = 0

    def __post_init__(self) -> None:
        self.wanted = len(self.prompts) + self.spec.synthesise
        for entry in self.manifest["prompt_shards"]:
            for prompt in read_prompt_shard(self.spec.out / entry["name"]):
                self.sieve.seen.add(prompt.turns[0])
                self.prompts.append(prompt)
            self.looked = entry["candidates"]

    def _save(self) -> None:
        write_manifest(self.spec.out, self.manifest)

    # ---------------------------------------------------------------------------------------------- user turns

    def fill(self, count: int) -> None:
        """Have the target write user turns, a block at a time, until there are ``count`` prompts."""
        shards = self.manifest["prompt_shards"]
        barren = 0
        while len(self.prompts) < count:
            refused: Counter[str] = Counter()
            self.sieve.refused = refused
            found = self._turns(range(self.looked, self.looked + self.spec.block), refused)
            self.looked += self.spec.block
            barren = 0 if found else barren + self.spec.block
            if barren >= _BARREN:
                raise TaskError(
                    f"the target wrote no usable user turn in {barren} tries{_refusals(refused)}; "
                    "give prompts with --task, --prompts or --hub instead"
                )
            self.prompts += found
            path = self.spec.out / f"prompts-{len(shards):05d}.jsonl"
            shards.append(write_prompt_shard(path, found, refused=refused, last=self.looked))
            self._save()
            self.screen.say(f"user turns: {len(found):,} of {self.spec.block:,} candidates{_refusals(refused)}")

    def _turns(self, numbers: range, refused: Counter[str]) -> list[Prompt]:
        spec = self.spec
        wanted = [candidate(number, domains=spec.domains, seed=spec.seed) for number in numbers]
        requests = {
            one.id: turn_request(
                one,
                self.renderer,
                sampling=Sampling(temperature=spec.turn_temperature),
                seed=spec.seed,
                max_new_tokens=spec.max_turn_tokens,
                stop_ids=self.writer.stop_ids,
            )
            for one in wanted
            if not one.opener.whole
        }
        tasks = [Prompt(id=name, task=TASK, domain="", turns=("",)) for name in requests]
        longest = max((len(r.prompt_ids) for r in requests.values()), default=0) + spec.max_turn_tokens
        meter = Meter("user turns", "turns", len(requests), self.screen)

        def build(prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> Request:
            return requests[prompt.id]

        done = run_requests(tasks, build, writer=self.writer, context=longest, on_progress=lambda at: meter.at(at.done))
        prompts = []
        for one in wanted:
            written, stopped = "", True
            if not one.opener.whole:
                trace = done.traces[one.id]
                written, stopped = self.renderer.text_of(trace.output_ids), trace.stop_reason == "stop"
            prompt = turn_prompt(one, written, stopped=stopped, refused=refused)
            if prompt is not None and self.sieve.admits(prompt):
                prompts.append(prompt)
        return prompts

    # ------------------------------------------------------------------------------------------------- answers

    def answer(self) -> None:
        """Answer the prompts block by block, each block a shard, until all are answered or enough is written."""
        spec, shards, kept = self.spec, self.manifest["shards"], self.kept
        plan = answer_plan(spec)
        normaliser = None if kept is None else _normaliser(self.writer)
        self.manifest["complete"] = False
        if not _enough(spec, self.manifest):
            self.fill(min(spec.block, self.wanted))
            self._estimate(plan)
        before = _sum(self.manifest, "target_tokens")
        trim = Trimmer()
        meter = Meter("answers", "tokens", self._expected(), self.screen, before=before)
        while len(shards) * spec.block < self.wanted and not _enough(spec, self.manifest):
            first = len(shards) * spec.block
            last = min(first + spec.block, self.wanted)
            self.fill(last)
            start = meter.done

            def progress(at: DriveProgress, start: float = start) -> None:
                meter.at(start + at.tokens)
                trim()

            block = self.prompts[first:last]
            done = write_answers(
                block,
                writer=self.writer,
                renderer=self.renderer,
                plan=plan,
                on_progress=progress,
                keep=None if kept is None else kept.taps,
            )
            if kept is not None and normaliser is not None:
                kept.add(done.rows, done.states, normaliser)  # before the answers: they say how far both are
            entry = write_token_shard(spec.out / f"answers-{len(shards):05d}.parquet", done.rows)
            shards.append({**entry, "prompts": len(block), "skipped": done.skipped})
            self._save()
            meter.total = self._expected()
            meter.at(_sum(self.manifest, "target_tokens") - before)
        self.manifest.update(
            complete=True,
            stopped_early=len(shards) * spec.block < self.wanted,
            notes=list(self.renderer.notes),
            content=fingerprint([entry["sha256"] for entry in shards]),
        )
        self._save()
        self.screen.say(f"answers: {_totals(self.manifest)}")

    def _expected(self) -> float:
        """Tokens that the target will have written at the end: at most, and as the shards so far suggest."""
        turns = sum(len(prompt.turns) for prompt in self.prompts) + max(self.wanted - len(self.prompts), 0)
        total = float(turns * self.spec.max_new_tokens)
        answered = sum(entry["prompts"] for entry in self.manifest["shards"])
        if answered:
            total = self.wanted * _sum(self.manifest, "target_tokens") / answered
        return min(total, self.spec.target_tokens or total)

    def _estimate(self, plan: AnswerPlan) -> None:
        """Say before the start how much it is and how long it will take; refuse what the disk cannot hold."""
        left = self._expected() - _sum(self.manifest, "target_tokens")
        each = _BYTES_PER_TOKEN + (self.kept.manifest["bytes_per_token"] if self.kept is not None else 0)
        size = int(max(left, 0) * each * 1.5)  # half as many tokens again for the prompts
        free = check_disk(self.spec.out, size, what=f"answers of {left:,.0f} tokens")
        speed = self.writer.speed(self.prompts, self.renderer, plan=plan)
        time = "an unknown time" if speed is None else f"{readable_seconds(left / speed)} at {speed:,.0f} tokens/s"
        self.screen.say(
            f"to write: about {left:,.0f} tokens for {self.wanted:,} prompts, at most {readable_bytes(size)} "
            f"({readable_bytes(free)} free), {time}"
        )


def _normaliser(writer: Writer) -> HeadNormaliser:
    assert isinstance(writer, EngineWriter), "the spec refuses to keep a server's states"
    return HeadNormaliser(writer.target)


def answer_plan(spec: PrepareSpec) -> AnswerPlan:
    """How prompts are answered."""
    return AnswerPlan(
        sampling=Sampling(temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k),
        greedy_share=spec.greedy_share,
        heldout_share=spec.heldout_share,
        max_new_tokens=spec.max_new_tokens,
        max_context=spec.max_context,
        seed=spec.seed,
    )
