"""The self-check on the reference checkpoints: right readings stay, wrong ones are called out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import support_checkpoints as made
import support_mtp_checkpoints as mtp
from specbench_drafters.formats.load import load_checkpoint

from specbench.engine.target import Target
from specbench.errors import SpecbenchError
from specbench.selfcheck import Outcome, SelfCheck, alternatives, check, compared, encode

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


@pytest.fixture(scope="module")
def toy() -> tuple[Target, Any]:
    from transformers import AutoTokenizer

    folder = FIXTURES / "target"
    return Target.load(folder, dtype="float32"), AutoTokenizer.from_pretrained(str(folder))


def run(toy: tuple[Target, Any], folder: str, **overrides: Any) -> SelfCheck:
    return check(FIXTURES / folder, target=toy[0], tokenizer=toy[1], overrides=overrides)


def test_the_right_reading_is_not_questioned(toy: tuple[Target, Any]) -> None:
    found = run(toy, "dflash")
    assert found.warnings == ()
    taus = {outcome.reading: outcome.tau or 0.0 for outcome in found.outcomes}
    assert taus["chosen"] == max(taus.values())
    assert taus["slots not shifted"] < 1.2  # the notorious silent error
    assert taus["embed from target"] == taus["chosen"]  # the stored copies are the target's
    assert set(found.as_dict()) == {"outcomes", "warnings", "undecided"}


def test_a_wrong_slot_shift_is_called_out(toy: tuple[Target, Any]) -> None:
    found = run(toy, "dflash", slot_shift=0)
    assert len(found.warnings) == 1
    assert "'slots shifted' accepts clearly more" in found.warnings[0]
    assert "try --set slot_shift=1" in found.warnings[0]


def test_wrong_layers_are_called_out(toy: tuple[Target, Any]) -> None:
    found = run(toy, "eagle3", taps="0,1,2,3,4")
    assert any("'layer ids +1' accepts clearly more" in line for line in found.warnings)
    assert any("--set taps=1,2,3,4,5" in line for line in found.warnings)


def test_a_reading_that_cannot_run_is_refused(toy: tuple[Target, Any]) -> None:
    with pytest.raises(SpecbenchError, match="does not exist"):
        run(toy, "dflash", taps="1,3,9")


def test_alternatives_by_kind(tmp_path: Path) -> None:
    dspark = load_checkpoint(made.deepspec_dspark(tmp_path / "dspark")).spec
    assert set(alternatives(dspark, num_layers=8)) == {
        "layer ids +1", "layer ids -1", "slots not shifted", "embed from target", "head from target",
    }  # fmt: skip
    at_the_end = load_checkpoint(made.deepspec_dspark(tmp_path / "end", target_layer_ids=[-1, 3, 7])).spec
    assert not {"layer ids +1", "layer ids -1"} & set(alternatives(at_the_end, num_layers=8))
    eagle = load_checkpoint(made.specforge_eagle31(tmp_path / "eagle")).spec
    assert {"recycle pre_norm", "residual normed"} <= set(alternatives(eagle, num_layers=8))
    mimo = load_checkpoint(mtp.mimo(tmp_path / "mtp")).spec
    assert alternatives(mimo, num_layers=8) == {
        "recycle pre_norm": {"recycle": "pre_norm"},
        "fed the state before the final norm": {"taps": (8,), "tap_final_norm": False},
        "concatenation embedding,hidden": {"concat_order": "embedding,hidden"},
    }


@pytest.mark.parametrize(
    ("tau", "error", "clear", "undecided"),
    [(3.0, 0.05, 1, 0), (2.08, 0.05, 0, 1), (3.0, 2.0, 0, 1), (2.04, 0.0, 0, 0), (1.5, 0.0, 0, 0)],
)
def test_what_counts_as_clearly_more(tau: float, error: float, clear: int, undecided: int) -> None:
    chosen = Outcome("chosen", {}, tau=2.0, rounds=80, standard_error=0.05)
    other = Outcome("other", {"taps": (1, 2)}, tau=tau, rounds=60, standard_error=error)
    warnings, open_ones = compared([chosen, other, Outcome("broken", {}, problem="no")])
    assert (len(warnings), len(open_ones)) == (clear, undecided)


class _Silent:
    chat_template = None

    def __call__(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[])


def test_prompts_need_a_tokenizer_that_yields_tokens() -> None:
    with pytest.raises(SpecbenchError, match="turns the self-check's prompts into nothing"):
        encode(_Silent())
