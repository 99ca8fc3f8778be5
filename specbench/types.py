"""Records that travel between the referee and the contestants.

Nothing here imports torch at run time: tasks, records and the leaderboard read these types too. Letters in
shape comments: B rows in the step, T flat tokens in the step, G drafts a row, V target vocabulary, Vd draft
vocabulary, D width of the tapped features. Tensors are on the device unless their name ends in ``_host``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specbench.server_trace import ServedTrace, ServerTrace

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# ---------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_p`` 1 and ``top_k`` None truncate nothing."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation of a task: user turns in order, run turn by turn.

    ``id`` is unique in its task and stable between versions of the same data. ``reference`` holds what a grader
    needs (an answer, unit tests) and is never shown to the model.
    """

    id: str
    task: str
    domain: str
    turns: tuple[str, ...]
    system: str | None = None
    reference: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. ``number`` keys its random draws, so it is unique in the run and stable between runs."""

    id: str
    number: int
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    stop_ids: frozenset[int]
    ignore_eos: bool
    task: str
    domain: str


# ------------------------------------------------------------------------------------- between loop and drafter


@dataclass(frozen=True, slots=True)
class Taps:
    """Hidden states of the target that a drafter reads at each committed token.

    ``boundaries`` are Hugging Face indices k: 0 is the embedding output, k in 1..n the raw output of decoder layer
    k-1 (n: the last layer's output BEFORE the final norm). ``final_norm`` adds the state after the final norm, last.
    The feature row is their concatenation in this order. Empty taps cost nothing.
    """

    boundaries: tuple[int, ...] = ()
    final_norm: bool = False

    @property
    def count(self) -> int:
        """How many states make one feature row."""
        return len(self.boundaries) + int(self.final_norm)


@dataclass(frozen=True, slots=True)
class TargetView:
    """What a drafter may know of the target. Modules are the target's own and are only read.

    ``max_rows`` slots are numbered 0..max_rows-1 and no sequence ever holds more than ``max_context`` tokens: the two
    bound every slot cache. (With padded steps the last slot is that of the padding.) ``model`` is the Hugging Face
    causal LM; ``embed`` its input embedding (call it: some families scale inside), ``head`` its output projection.
    """

    config: Any
    model: torch.nn.Module
    embed: torch.nn.Module
    head: torch.nn.Module
    vocab_size: int
    hidden_size: int
    num_layers: int
    dtype: torch.dtype
    device: torch.device
    max_rows: int
    max_context: int
    stop_ids: frozenset[int]
    tokenizer: Any = None
    name: str = ""
    model_dir: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one step. ``slots`` index every per-row state; a slot belongs to one request at a time.

    ``lengths`` counts the tokens whose target keys and values are cached, so it is also the position of the anchor.
    ``last_token`` is the anchor: the newest committed token, not yet run through the target. In the call of
    ``prefill`` for a chunk that is not the last, ``last_token`` is the next prompt token and no anchor exists yet.

    A padded step, which may be captured as a graph, is asked of drafters that are ``graph_safe`` only. It sets
    ``drafts``: how many drafts the proposal is wide, so that nothing on the device needs to be looked at. Its trailing
    rows may be padding in a slot that no request has, and its host fields only bound what the device holds: every
    length is at most that of ``lengths_host``, and every slot at most that of ``slots_host``.
    """

    slots: Tensor  # [B] int64
    lengths: Tensor  # [B] int64
    last_token: Tensor  # [B] int64
    domain_id: Tensor  # [B] int64
    temperature: Tensor  # [B] float32, 0 is greedy
    top_p: Tensor  # [B] float32, 1 is off
    top_k: Tensor  # [B] int64, the vocabulary size where off
    seed: Tensor  # [B] int64
    number: Tensor  # [B] int64, Request.number
    slots_host: tuple[int, ...]
    lengths_host: tuple[int, ...]
    all_greedy: bool  # every temperature is 0
    any_truncated: bool  # some row uses top_p or top_k
    any_greedy: bool = True  # some temperature is 0
    drafts: int | None = None  # width of a padded step's proposal; None: the host fields are exact
    numbers_host: tuple[int, ...] | None = None  # of ``number``; None: only the device holds them
    domains_host: tuple[int, ...] | None = None  # of ``domain_id``; None: only the device holds them

    def __len__(self) -> int:
        return len(self.slots_host)

    @property
    def known_slots(self) -> tuple[int, ...] | None:
        """The slots of the rows, None in a padded step, where only the device knows them."""
        return self.slots_host if self.drafts is None else None

    def width(self, limits: Tensor) -> int:
        """How many drafts a proposal under ``limits`` [B] is wide; looks at the device only if ``drafts`` is None."""
        return int(limits.max()) if self.drafts is None else self.drafts


@dataclass(frozen=True, slots=True)
class Features:
    """Newly committed tokens of this step whose target states are known, flat over the rows, in row order.

    Row r owns [row_starts[r], row_starts[r+1]). In a decode round these are the anchor and the accepted drafts, at
    positions lengths_before .. lengths_before + accepted; in prefill a prompt chunk. ``next_ids[t]`` is the token one
    position after token t (inside the chunk, the next prompt token, or the newly committed anchor), so it is always
    known. ``hidden`` is the concatenation that the drafter's taps ask for.
    """

    token_ids: Tensor  # [T] int64
    next_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    hidden: Tensor  # [T, D] in the target's dtype; D = 0 without taps
    row_index: Tensor  # [T] int64, which row of Rows a token belongs to
    row_starts: Tensor  # [B+1] int64
    row_starts_host: tuple[int, ...]
    last_chunk: Tensor  # [B] bool; always True in a decode round


@dataclass(frozen=True, slots=True)
class DraftLogits:
    """The distribution that drafts were sampled from: logits after temperature and truncation (-inf where cut).

    q(x) = exp(logits - log_normaliser). ``id_map`` gives the target id of each draft id, strictly increasing, or None
    where draft ids are the first Vd target ids.
    """

    logits: Tensor  # [B, G, Vd] float32
    log_normaliser: Tensor  # [B, G] float32
    id_map: Tensor | None = None  # [Vd] int64


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of one round. Entries at or beyond a row's count are ignored, whatever they hold.

    ``draft`` None means point masses: each draft was chosen with probability one (greedy, lookup). Otherwise it covers
    every row with temperature > 0; rows with temperature 0 are point masses in either case.
    ``confidence[b, k]`` estimates the probability that draft k is accepted given that all before it were. It is
    computed without looking at draft k or later ones: a policy that admits by it would otherwise be biased.
    """

    tokens: Tensor  # [B, G] int64, target ids
    counts: Tensor  # [B] int64, 0 <= counts <= limits
    draft: DraftLogits | None = None
    confidence: Tensor | None = None  # [B, G] float32


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """How many drafts of each row go to the target: 0 <= lengths <= proposal.counts.

    ``explain`` gives the policy's reason row by row. It is called once, after the cycle's copy to the host, with the
    values of ``facts``, which exist on the device only until then; the policy may keep them for later steps. Without it
    ``state`` stands for all rows. ``most`` is what the host knows of the sum of the lengths without looking at them.
    """

    lengths: Tensor  # [B] int64
    state: str = ""  # the policy's reason, written into the round
    explain: Callable[[Sequence[float]], Sequence[str]] | None = None
    facts: Tensor | None = None  # [F] float64, what the reason tells of the whole step
    most: int | None = None  # drafts of all rows together at most; None: not known before the copy to the host

    def states(self, facts: Sequence[float] | None = None) -> Sequence[str]:
        """The reason of each row; ``facts`` are the values of the field where they are on the host already."""
        if self.explain is None:
            return [self.state] * self.lengths.shape[0]
        if facts is None:
            facts = [] if self.facts is None else self.facts.tolist()
        return self.explain(facts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``accepted``: the longest verified prefix that the rule accepts; ``next_token``: correction or bonus."""

    accepted: Tensor  # [B] int64
    next_token: Tensor  # [B] int64


@dataclass(frozen=True, slots=True)
class Load:
    """What a policy may know of the engine's load when it plans."""

    num_running: int
    num_waiting: int
    prefill_tokens: int  # prompt tokens packed into this step
    step: int


# ---------------------------------------------------------------------------------------------------- traces


class Status(StrEnum):
    """How a request or a run ended."""

    OK = "ok"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class StopReason(StrEnum):
    """Why a round was the request's last."""

    STOP_TOKEN = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One cycle of the engine: phases in seconds (they add up to the whole), and what was in the batch."""

    step: int
    start_s: float  # since the run's origin
    draft_s: float
    schedule_s: float
    verify_s: float
    accept_s: float
    other_s: float
    decode_rows: int
    decode_tokens: int  # anchors and drafts sent to the target
    prefill_rows: int
    prefill_tokens: int

    @property
    def total_s(self) -> float:
        """Wall time of the whole cycle."""
        return self.draft_s + self.schedule_s + self.verify_s + self.accept_s + self.other_s


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One request in one decoding cycle (metrics.md). Counts are drafts unless they say otherwise."""

    request: str
    round: int  # 0-based in its request
    step: int  # StepTrace.step
    anchor_position: int
    drafted: int
    planned: int
    verified: int
    accepted: int
    committed: int  # tokens, correction or bonus included
    discarded: int  # accepted drafts (or the target's token) cut by a stop or the limit
    stop_reason: str | None
    draft_ids: tuple[int, ...]
    committed_ids: tuple[int, ...]
    confidence: tuple[float, ...] | None = None
    top2_gap: tuple[float, ...] | None = None  # of committed positions, T = 0
    log_p_target: tuple[float, ...] | None = None  # of the verified drafts, T > 0
    log_p_draft: tuple[float, ...] | None = None
    policy_state: str = ""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One request from arrival to end. Times in seconds since the run's origin; None where it never happened."""

    id: str
    number: int
    task: str
    domain: str
    prompt_tokens: int
    prompt_hash: str
    max_new_tokens: int
    seed: int
    status: str
    error: str | None
    warmup: bool
    arrival_s: float
    admitted_s: float | None
    first_token_s: float | None
    finish_s: float | None
    token_times_s: tuple[float, ...]  # one per emission (prefill token, then each round): when it became visible
    first_token: int  # 1 if the prefill emitted a token
    first_token_gap: float | None  # top-2 gap of the prefill's token, T = 0
    output_ids: tuple[int, ...]
    stop_reason: str | None
    preemptions: int = 0
    stop_ids: tuple[int, ...] = ()
    tokens: int | None = None  # output tokens as a server counts them

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return len(self.output_ids) if self.tokens is None else self.tokens


@dataclass(frozen=True, slots=True)
class RunTrace:
    """Everything that one cell measured; every published number is a pure function of it."""

    requests: tuple[RequestTrace, ...]
    rounds: tuple[RoundTrace, ...]
    steps: tuple[StepTrace, ...]
    method: str
    draft_length: int
    sampling: Sampling
    concurrency: int
    wall_s: float
    status: str = Status.OK
    paced: bool = False  # requests came at a pace of their own (an open loop, users who think): rows may stay free
    served: tuple[ServedTrace, ...] = ()  # one a request where a server answered
    server: ServerTrace | None = None  # None: the engine of this project


@dataclass(frozen=True, slots=True)
class Estimate:
    """One value of a metric with its scope. ``low``/``high`` bound the 95 % interval named by ``interval``."""

    metric: str
    value: float
    unit: str
    n: int  # how many samples stand behind it; ``n_of`` says of what
    n_of: str
    scope: tuple[tuple[str, str], ...] = ()  # (("domain", "math"), ("k", "3"))
    low: float | None = None
    high: float | None = None
    interval: str | None = None  # "bootstrap over prompts", "run to run"


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that became visible to the user of a request. ``finished`` marks the last event of the request."""

    request_id: str
    token_ids: tuple[int, ...]
    finished: bool
    error: str | None = None
