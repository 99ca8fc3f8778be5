"""What each estimate is, in words: one entry for every metric name that a record can hold, by metric group.

`METRICS_VERSION` covers these too: a definition that changes here changes the numbers it names.
"""

from __future__ import annotations

from collections.abc import Mapping

_ACCEPTANCE = {
    "tau": "Tokens committed per decoding round: the sum of committed tokens over the number of rounds, pooled over "
    "all rounds. The correction or bonus token counts, the prefill's token does not, so plain decoding has exactly 1.",
    "tau_macro_tasks": "Plain mean of the pooled tau of each task.",
    "tau_macro_domains": "Plain mean of the pooled tau of each domain.",
    "tau_deepspec": "tau as DeepSpec counts it: a stop token accepted as draft i makes the round worth i.",
    "verify_rate_deepspec": "DeepSpec's entries over proposals and rounds.",
    "accept_rate_deepspec@k": "Of the rounds that proposed at least k drafts as DeepSpec counts them, the share that "
    "accepted at least k.",
    "tau_counters": "1 + accepted drafts over rounds that verified at least one, drafts after a stop counted; what the "
    "counters of vLLM and speculators give.",
    "tau_tokens": "All output tokens, the prefill's included, over rounds; what SGLang prints.",
    "tau_chunks": "Mean length of a streamed chunk, the prefill's chunk counted and a final stop token stripped; what "
    "NVIDIA's specdec_bench prints.",
    "tau_request_mean": "Mean over requests of each request's own tau; the headline of DFlash, AngelSlim and AIPerf.",
}

_POSITIONS = {
    "survival": "Of the rounds that sent at least k drafts to the target, the share that accepted at least k.",
    "conditional": "Of the rounds that accepted k - 1 drafts and sent at least k, the share that accepted k as well.",
    "acceptance_rate": "Accepted drafts over verified drafts. It depends on the draft length, which is in its scope.",
    "verify_rate": "Committed tokens over tokens sent to the target, anchors included.",
    "verification_budget": "Mean tokens a round that the target judges: verified drafts plus one.",
    "waste": "Mean drafts a round that were verified and not accepted.",
    "mean_drafted": "Mean drafts a round that the drafter produced.",
    "mean_verified": "Mean drafts a round that were sent to the target.",
    "zero_draft_rounds": "Rounds in which nothing was drafted.",
    "zero_draft_share": "Share of rounds in which nothing was drafted.",
    "accepted_histogram": "Rounds by number of accepted drafts.",
}

_THROUGHPUT = {
    "decode_tokens_per_s": "Tokens committed in pure decode steps per second of those steps' time that their requests "
    "bore.",
    "seconds_per_decode_token": "The reciprocal of decode_tokens_per_s.",
    "pure_decode_share": "Share of committed tokens that came from steps without prompt tokens in the batch.",
    "steady_tokens_per_s": "Output tokens per second in the steady window: from the first admission of a measured "
    "request at full load to the last admission. Full load is every row taken; where requests come at a pace of their "
    "own (open loops, users who think) it is reached when the first measured request has been served.",
    "steady_window": "Start and end of the steady window, since the run's origin.",
    "failed_share": "Failed requests over all that were not warm-up. Above one per cent the row is invalid.",
    "speed_up": "Seconds per decode token of plain decoding over those of the method, over the requests that both "
    "arms measured with the same prompt and seed, in the same engine.",
    "unpaired_requests": "Requests of the method that plain decoding has no partner for.",
    "break_even_tau": "Mean round time of the method over the mean step time of plain decoding: the tau below which "
    "drafting loses.",
    "mean_output_tokens": "Mean output length of the paired requests, by arm.",
}

_LATENCY = {
    "requests": "Requests by what became of them.",
    "preemptions": "How often a request lost its place in the batch and was run again from its prompt.",
    "queue": "Seconds from arrival to admission.",
    "ttft": "Time to first token: seconds from arrival to the first visible token, queue included.",
    "tpot": "Time per output token: (last - first) / (tokens - 1). A single token has none.",
    "e2e": "Seconds from arrival to the end of the request.",
    "tokens_per_s_user": "1 / TPOT of each request: the speed that one user sees.",
    "inter_round_gap": "Seconds between two emissions of a request. The time to first token is never among them.",
    "inter_chunk_gap": "Seconds between two chunks of a server's stream, several tokens or part of one each: not the "
    "time per token.",
}

_VERIFICATION = {
    "T_draft": "Seconds of a decoding cycle spent drafting.",
    "T_schedule": "Seconds of a cycle spent on planning what is verified.",
    "T_verify": "Seconds of a cycle in the target's forward pass.",
    "T_accept": "Seconds of a cycle spent on the acceptance rule and sampling.",
    "T_other": "The rest of a cycle's wall time, so that the five parts add up to T_round.",
    "T_round": "Wall time of a whole cycle.",
    "L": "Round time over committed tokens: seconds that a user waits for a token, over pure decode steps.",
    "mean_batch_rows": "Mean requests in the batch of a step.",
}

_CALIBRATION = {
    "ece": "Expected calibration error at position k: mean distance between the product of the confidences up to k "
    "and the share of rounds that accepted at least k, over 20 equal bins.",
    "brier": "Mean squared distance between that product and the outcome.",
    "auroc": "Probability that an accepted position had a higher product than one that was not. Absent where all "
    "outcomes are alike.",
    "auroc_histogram": "The same area from binned forecasts, as histogram-based tools compute it.",
    "confidence_mean": "Mean of the product of the confidences up to k.",
    "accepted_mean": "Share of the same rounds that accepted at least k.",
    "reliability_forecast": "Mean forecast in a bin of the reliability diagram.",
    "reliability_outcome": "Share accepted in a bin of the reliability diagram.",
}
_CALIBRATION |= {
    f"{name}_conditional": f"As {name}, of the confidence itself at positions that were reached and verified."
    for name in ("ece", "brier", "auroc", "auroc_histogram", "confidence_mean", "accepted_mean")
}

_LOSSLESSNESS = {
    "smallest_top2_gap": "Smallest difference between the target's two best logits over all output tokens "
    "(temperature 0): how near the text came to a tie.",
    "acceptance_excess": "Accepted drafts beyond what exact rejection sampling predicts from the recorded "
    "probabilities, in standard deviations (temperature above 0).",
    "expected_acceptance": "Mean of min(1, p / q) over the judged drafts (temperature above 0).",
}

_SERVED = {
    "tau_at_least": "tau if every request had lost at its end as many tokens as its server's counts leave possible; "
    "absent where they leave no doubt.",
    "requests_without_counts": "Requests whose acceptance the server did not tell.",
    "accepted_share": "Of the steps with drafts, the share that accepted at least k, however many were proposed.",
    "foreign_tokens": "Output tokens that the server made for others meanwhile: its counter less our own tokens. "
    "Counters that hold foreign tokens are not used.",
    "client_tokens_per_s": "Tokens after the first per second from the first visible token to the last, over all "
    "requests: what one user sees, by the client's clock.",
    "client_speed_up": "Seconds per token after the first of plain decoding over those of the method, by the client's "
    "clock, over the requests of both arms.",
    "whole_run_tokens_per_s": "Output tokens of finished requests over the time from the first arrival to the last "
    "end: start and end of the load included.",
    "cached_prompt_share": "Share of the prompt tokens that the server took from its prefix cache.",
}

_ALARMS = {
    "unique_prompt_share": "Distinct prompts over requests.",
    "looping_output_share": "Share of long enough texts that mostly repeat themselves.",
    "accepted_length_by_depth": "Accepted drafts plus one by how many tokens the request had already put out, over "
    "rounds that drafted in full.",
}

_RECORDED = {
    "joules_per_token": "Energy of the whole device in the measured window, idle time included, over the output tokens "
    "made in it.",
    "draft_vocabulary_coverage": "Share of the committed tokens that a drafter with a reduced vocabulary can name.",
    "item_score": "Mean over the items of a task of what the grader gave the answer (1 for right, 0 for wrong, where "
    "it is all or nothing); grader, its metric and its filter are in the scope.",
    "item_score_difference": "Mean over the items of the method's score less that of plain decoding on the same item.",
}

DEFINITIONS: Mapping[str, Mapping[str, str]] = {
    "acceptance": _ACCEPTANCE,
    "positions": _POSITIONS,
    "throughput": _THROUGHPUT,
    "latency": _LATENCY,
    "verification": _VERIFICATION,
    "calibration": _CALIBRATION,
    "losslessness": _LOSSLESSNESS,
    "served": _SERVED,
    "alarms": _ALARMS,
    "recorded": _RECORDED,
}
"""By metric group, then by metric name; "recorded" are those whose evidence is a block of the record itself."""
