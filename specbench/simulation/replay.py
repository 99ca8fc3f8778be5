"""What a recorded run gives a simulation: its requests, and round by round what was drafted and accepted.

Each simulated round replays the next recorded round of its request, so outcomes and confidences keep their joint
distribution. Where a policy verifies fewer drafts than were recorded, a request needs more rounds than it has: it goes
through them again from the start. A run that verified only some of its drafts cannot be replayed, because what it left
out might have been accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specbench.config import BASELINE
from specbench.errors import RecordError
from specbench.metrics._measured import is_measured
from specbench.types import Prompt, Request, RequestTrace, RoundTrace, RunTrace, Sampling, StopReason


@dataclass(frozen=True, slots=True)
class ReplayRound:
    """One recorded round. ``cut``: it drafted as many as the output had room for, more might have been drafted."""

    drafted: int
    accepted: int
    confidence: tuple[float, ...] | None
    cut: bool


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One recorded request. ``output_tokens`` ended it: by a stop token (``stops``), else by its limit."""

    id: str
    task: str
    domain: str
    seed: int
    prompt_tokens: int
    prompt_hash: str
    max_new_tokens: int
    output_tokens: int
    stops: bool
    rounds: tuple[ReplayRound, ...]

    @property
    def conversation(self) -> str:
        """The id without its turn."""
        name, _, turn = self.id.rpartition("/")
        return name if turn.isdecimal() and name else self.id


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded run as a simulation reads it. ``left_out`` counts requests that failed or gave no token."""

    method: str
    draft_length: int
    sampling: Sampling
    conversations: tuple[tuple[ReplayRequest, ...], ...]  # each turn by turn, in the order of arrival
    left_out: int

    @property
    def requests(self) -> int:
        """How many requests were recorded."""
        return sum(len(turns) for turns in self.conversations)

    @property
    def seed(self) -> int:
        """The recorded requests' seed: their rounds are those of its draws."""
        return self.conversations[0][0].seed

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, its output as long as it was allowed to be."""
        return max(r.prompt_tokens + r.max_new_tokens for turns in self.conversations for r in turns)


def replay_of(trace: RunTrace) -> Replay:
    """The run as a simulation replays it. Errors: RecordError for a run that left drafts unverified, or is empty."""
    entries: dict[str, list[RoundTrace]] = defaultdict(list)
    for entry in trace.rounds:
        if entry.verified < entry.drafted:
            raise RecordError(
                f"round {entry.round} of '{entry.request}' verified {entry.verified} of {entry.drafted} drafts; a "
                "simulation replays runs of the policy 'fixed', which show what every draft was worth"
            )
        entries[entry.request].append(entry)
    judged = [request for request in trace.requests if not request.warmup]
    usable = [request for request in judged if is_measured(request) and request.output_ids]
    if not usable:
        raise RecordError(
            f"the run of '{trace.method}' holds no finished request with output; there is nothing to replay"
        )
    talks: dict[str, list[ReplayRequest]] = {}
    for request in usable:
        made = _request(request, entries[request.id], trace.draft_length)
        talks.setdefault(made.conversation, []).append(made)
    return Replay(
        method=trace.method,
        draft_length=trace.draft_length,
        sampling=trace.sampling,
        conversations=tuple(tuple(turns) for turns in talks.values()),
        left_out=len(judged) - len(usable),
    )


def _request(request: RequestTrace, entries: Sequence[RoundTrace], draft_length: int) -> ReplayRequest:
    rounds, done = [], request.first_token
    for entry in sorted(entries, key=lambda entry: entry.round):
        cut = entry.drafted < draft_length and entry.drafted >= request.max_new_tokens - done - 1
        rounds.append(ReplayRound(entry.drafted, entry.accepted, entry.confidence, cut))
        done += entry.committed
    return ReplayRequest(
        id=request.id,
        task=request.task,
        domain=request.domain,
        seed=request.seed,
        prompt_tokens=request.prompt_tokens,
        prompt_hash=request.prompt_hash,
        max_new_tokens=request.max_new_tokens,
        output_tokens=len(request.output_ids),
        stops=request.stop_reason == StopReason.STOP_TOKEN,
        rounds=tuple(rounds),
    )


def plain(replay: Replay) -> Replay:
    """The same requests by plain decoding: no round drafts anything."""
    talks = tuple(tuple(replace(r, rounds=()) for r in turns) for turns in replay.conversations)
    return replace(replay, method=BASELINE, draft_length=0, conversations=talks)


class Cursor:
    """Goes through the rounds of one request; ``offset`` is where it starts, so that copies differ in their order."""

    def __init__(self, rounds: Sequence[ReplayRound], *, offset: int = 0) -> None:
        self._rounds = rounds
        whole = [index for index, entry in enumerate(rounds) if not entry.cut]
        self._whole = whole or list(range(len(rounds)))
        self._at = offset % len(rounds) if rounds else 0

    def take(self, limit: int) -> ReplayRound | None:
        """The round that comes next, at most ``limit`` > 0 drafts of it; None where the request has no rounds.

        A round that was cut by the end of the output is passed over while there is room for more than it drafted.
        """
        if not self._rounds:
            return None
        for _ in range(len(self._rounds)):
            found = self._rounds[self._at]
            self._at = (self._at + 1) % len(self._rounds)
            if not found.cut or found.drafted >= limit:
                break
        else:
            found = self._rounds[self._whole[self._at % len(self._whole)]]
        drafted = min(found.drafted, limit)
        confidence = None if found.confidence is None else found.confidence[:drafted]
        return ReplayRound(drafted, min(found.accepted, drafted), confidence, found.cut)


@dataclass(frozen=True, slots=True)
class Scripted:
    """One simulated request: whose rounds it replays, from which on, and the id under which it runs."""

    source: ReplayRequest
    id: str
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Script:
    """All simulated requests: the recorded ones, and copies of them where more are asked for."""

    conversations: tuple[tuple[Scripted, ...], ...]

    @classmethod
    def of(cls, replay: Replay, *, requests: int | None = None) -> Script:
        """At least ``requests`` requests in whole conversations, the recorded ones over and over; None: each once.

        Copy n of a conversation starts in another place of its rounds, so that copies do not march in step.
        """
        made: list[tuple[Scripted, ...]] = []
        count = 0
        for copy, turns in _copies(replay.conversations):
            if copy > 1 and count >= (requests or 0):
                break
            if requests is not None and count >= requests:
                break
            made.append(tuple(_scripted(turn, copy=copy, number=count + i) for i, turn in enumerate(turns)))
            count += len(turns)
        return cls(tuple(made))

    def prompts(self) -> list[Prompt]:
        """A conversation each, for the driver; texts are empty, because only lengths matter."""
        return [
            Prompt(id=str(index), task=turns[0].source.task, domain=turns[0].source.domain, turns=("",) * len(turns))
            for index, turns in enumerate(self.conversations)
        ]

    def request(self, prompt: Prompt, answers: Sequence[tuple[int, ...]]) -> Request:
        """The next turn of a conversation."""
        found = self.conversations[int(prompt.id)][len(answers)]
        source = found.source
        return Request(
            id=found.id,
            number=found.number,
            prompt_ids=(0,) * source.prompt_tokens,
            max_new_tokens=source.max_new_tokens,
            sampling=Sampling(),  # outcomes are replayed: nothing is drawn
            seed=source.seed,
            stop_ids=frozenset(),
            ignore_eos=True,
            task=source.task,
            domain=source.domain,
        )

    def by_number(self) -> dict[int, Scripted]:
        """Every request by its number."""
        return {one.number: one for turns in self.conversations for one in turns}


def _copies(
    conversations: Sequence[tuple[ReplayRequest, ...]],
) -> Iterator[tuple[int, tuple[ReplayRequest, ...]]]:
    copy = 1
    while True:
        for turns in conversations:
            yield copy, turns
        copy += 1


def _scripted(source: ReplayRequest, *, copy: int, number: int) -> Scripted:
    if copy == 1:
        return Scripted(source, source.id, number, 0)
    turn = source.id.removeprefix(source.conversation)
    step = max(len(source.rounds) * 5 // 8, 1)  # near the golden section: successive copies start far apart
    return Scripted(source, f"{source.conversation}#{copy}{turn}", number, (copy - 1) * step)
