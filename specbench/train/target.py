"""The target of a training stage: found, named by its hashes, and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import provenance
from specbench.engine.target import Target
from specbench.errors import TargetError
from specbench.prompting import Renderer
from specbench.resolve import ResolvedModel, resolve_target, silent_step
from specbench.session import Step, choose_device, choose_dtype


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """A target on this disk, not loaded yet. ``name`` holds nothing of this machine."""

    resolved: ResolvedModel
    name: str
    trust_remote_code: bool

    def identity(self) -> dict[str, Any]:
        """What stages of one training must agree on."""
        return {
            "name": self.name,
            "weights_sha256": self.resolved.weights_sha256,
            "tokenizer_sha256": self.resolved.tokenizer_sha256,
            "template_sha256": self.resolved.template_sha256,
        }

    def renderer(self, *, thinking: str = "default") -> Renderer:
        """The tokenizer and chat template. Errors: TargetError; ConfigError for a switch the template ignores."""
        from transformers import AutoTokenizer

        path = self.resolved.path
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=self.trust_remote_code)
        except Exception as error:  # whatever a tokenizer class raises on a damaged folder
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TargetError(
                f"the tokenizer of {self.name} cannot be loaded: {reason}; fetch the model again"
            ) from error
        return Renderer(tokenizer, thinking=thinking)

    def load(self, *, dtype: str, device: str, threads: int | None, step: Step = silent_step) -> Target:
        """The model itself, in evaluation mode. Errors: TargetError."""
        import torch
        from transformers.utils import logging

        torch.set_num_threads(threads or provenance.default_threads())
        logging.disable_progress_bar()  # the step says what is being loaded
        device = choose_device(device)
        dtype = choose_dtype(dtype, device=device)
        with step(f"loading {self.name} ({dtype}, {device})"):
            return Target.load(self.resolved.path, dtype=dtype, device=device, trust_remote_code=self.trust_remote_code)


def find_target(name: str, *, trust_remote_code: bool = False, step: Step = silent_step) -> FoundTarget:
    """The target by short name, folder or hub id. Errors: UnknownNameError, TargetError."""
    resolved = resolve_target(name, progress=step, trust_remote_code=trust_remote_code)
    short = Path(resolved.path).name if resolved.source == "folder" else name
    return FoundTarget(resolved, short, trust_remote_code)
