"""The target of a run whose weights are on a server: its tokenizer, template and identity, without a loaded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench.config import RunSpec
from specbench.engine.target import Target
from specbench.errors import TargetError
from specbench.records.schema import digest
from specbench.resolve import ResolvedModel, find_target, hash_template, hash_tokenizer, resolve_target
from specbench.resolve.progress import Step

_TOKENIZER_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]


class ServedTarget(Target):
    """What runs ask of a target that is elsewhere. There is no model here: nothing is computed on it."""

    def __init__(self, resolved: ResolvedModel, *, name: str) -> None:
        text = resolved.config.get("text_config") or resolved.config
        self.name = name
        self.model_dir = str(resolved.path)
        self.vocab_size = int(text.get("vocab_size") or 0)
        self.stop_ids = frozenset(stated_stops(resolved.path))
        self.controls = {}
        self.context_limit = int(text.get("max_position_embeddings", text.get("n_positions")) or 2**31 - 1)


def resolve_served(spec: RunSpec, *, step: Step) -> ResolvedModel:
    """The target's folder. A server that is started needs its weights; for one that runs they may be elsewhere.

    Then the tokenizer is enough, and the target is hashed by its name, which its record says. Errors: TargetError,
    UnknownNameError, CapacityError.
    """
    launched = spec.server.launch is not None
    try:
        return resolve_target(
            spec.target, offline=None if launched else True, progress=step, trust_remote_code=spec.trust_remote_code
        )
    except TargetError:
        folder = None if launched else _tokenizer_folder(spec.target, step)
        if folder is None:
            raise
    return ResolvedModel(
        name=spec.target,
        path=folder,
        source="server",
        weights_sha256=digest(f"a server's {spec.server.model or spec.target}"),
        tokenizer_sha256=hash_tokenizer(folder),
        template_sha256=hash_template(folder),
        config=_config(folder),
        notes=("the target's weights are not on this machine: it is known by the server's name for it",),
    )


def _tokenizer_folder(name: str, step: Step) -> Path | None:
    """A folder with a tokenizer alone, or a model's small files from the hub; None where there is neither."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder if hash_tokenizer(folder) is not None else None
    known = find_target(name)
    repository = known.hub if known is not None else name
    if "/" not in repository:
        return None
    try:
        from huggingface_hub import snapshot_download

        with step(f"fetching the tokenizer of {repository}"):
            return Path(snapshot_download(repository, allow_patterns=_TOKENIZER_FILES))
    except Exception:  # the hub's library has many errors; the search's own says what to do
        return None


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def stated_stops(folder: Path) -> list[int]:
    """End-of-turn ids as the model's files state them, in their order; none where they state none."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            stated = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise TargetError(f"{path} cannot be read ({error}); fetch the model again") from error
        if stated is not None:
            return [int(i) for i in (stated if isinstance(stated, list) else [stated])]
    return []
