"""Recipe T8 for every registered drafter: heads taller than the tokenizer, and reduced draft vocabularies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from specbench_drafters.formats.inspect import inspect
from support_checkpoints import DRAFT_IDS, VOCAB, write
from support_contest import asked, contest, is_plain
from support_contestants import (
    CONTEXT,
    PADDED_VOCAB,
    TOKENS,
    Case,
    Stable,
    counted_tokenizer,
    draft_ids,
    own_cases,
    published_cases,
)

from specbench import registry
from specbench.errors import CheckpointError
from specbench.types import Sampling

OWN_CASES = own_cases()


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Stable:
    return Stable(tmp_path_factory.mktemp("contestants"))


@pytest.mark.parametrize("case", OWN_CASES, ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["tokenizer", "no tokenizer"])
def test_t8_rows_beyond_the_tokenizer(case: Case, known: bool, stable: Stable) -> None:
    """The target may put them out (here it does); a drafter that knows the tokenizer never proposes them."""
    tokenizer = counted_tokenizer(TOKENS) if known else None
    greedy = asked(3, vocab=PADDED_VOCAB, seed=12, tokens=(14,))
    trace, greedily = contest(stable, case, greedy, vocab=PADDED_VOCAB, k=4, tokenizer=tokenizer)
    is_plain(stable, case, greedy, trace, vocab=PADDED_VOCAB)
    hot = asked(4, vocab=PADDED_VOCAB, seed=12, tokens=(30,), sampling=Sampling(4.0))
    heated, sampled = contest(stable, case, hot, vocab=PADDED_VOCAB, k=4, tokenizer=tokenizer)
    assert any(t >= TOKENS for r in heated.requests for t in r.output_ids), "the target's own text has such ids"
    rounds = [*greedily.rounds.values(), *sampled.rounds.values()]
    beyond = sorted({t for found in rounds for t in found.tokens if t >= TOKENS})
    if known:
        assert not beyond, (
            f"{case} proposed ids {beyond}, for which the tokenizer of {TOKENS} tokens has none: bound what is drawn "
            "by specbench.drafting.vocab.nameable()"
        )
        for found in rounds:
            assert found.probability is None or float(found.probability[:, TOKENS:].sum()) == 0
    elif case.method not in ("ngram", "vanilla"):
        assert beyond, "without a tokenizer nothing says that these ids are padding"


# ------------------------------------------------------------------------------------------ reduced vocabularies


REDUCED = [
    *(case for case in OWN_CASES if "reduced" in case.variant),
    *(c for c in published_cases() if c.variant in ("speculators", "speculators-rnn", "safeailab", "specforge-3.1")),
]


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint of one file."""
    (file,) = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return torch.load(file, weights_only=True) if file.suffix == ".bin" else load_file(file)


@pytest.mark.parametrize("case", REDUCED, ids=str)
def test_t8_a_map_that_was_never_filled_or_is_missing_is_refused(case: Case, stable: Stable, tmp_path: Path) -> None:
    source = stable.folder(case)
    assert source is not None
    tensors = stored(source)
    zero = {**tensors, "d2t": torch.zeros_like(tensors["d2t"])}
    faults = {
        "zero": zero,
        "zero, unmarked": {name: t for name, t in zero.items() if name != "t2d"},
        "absent": {name: t for name, t in tensors.items() if name not in ("d2t", "t2d")},
    }
    config = json.loads((source / "config.json").read_text())
    for fault, changed in faults.items():
        folder = write(tmp_path / fault, config, changed)
        view = stable.target(case).view(max_rows=1, max_context=CONTEXT)
        with pytest.raises(CheckpointError, match="d2t") as error:
            registry.load("drafters", case.method).load(folder, target=view, options={})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", REDUCED, ids=str)
def test_t8_reduced_drafts_stay_inside_their_map_and_its_share_is_stated(case: Case, stable: Stable) -> None:
    source = stable.folder(case)
    assert source is not None
    ids = set(DRAFT_IDS if case.published else draft_ids(VOCAB).tolist())
    requests = asked(4, vocab=VOCAB, seed=13, sampling=Sampling(2.0))
    _, watched = contest(stable, case, requests, k=4)
    seen = {t for found in watched.rounds.values() for t in found.tokens}
    declared = getattr(watched.drafter, "id_map", None)
    assert declared is not None, f"{case} has a reduced vocabulary and no id_map; records cannot tell what it covers"
    assert set(declared.tolist()) == ids
    assert seen <= ids, f"{case} drafted {seen - ids}, which its draft vocabulary does not name"
    assert len(seen) > 1
    lines = inspect(source, target_config=stable.target(case).config).would_do
    assert any(f"{len(ids)} draft tokens among {VOCAB} ({len(ids) / VOCAB:.1%})" in line for line in lines)
