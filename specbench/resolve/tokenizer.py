"""The identity of a model's tokenizer and chat template.

Two hashes go into a record: of everything that decides which ids a text becomes, and of the chat template. A draft
model must share the target's vocabulary map, which `tokenizer_difference` compares token by token.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from specbench.errors import TargetError

SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "tokenizer_config.json")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TargetError(f"{path} is not valid JSON ({error}); fetch the model again") from error


def _backend(folder: Path) -> dict[str, Any] | None:
    """The tokenizers library's own description of the folder's tokenizer; None where the folder has none."""
    path = folder / "tokenizer.json"
    if path.is_file():
        found = _json(path)
        if not isinstance(found, dict) or "model" not in found:
            raise TargetError(f"{path} is not a tokenizer file (no 'model' in it); fetch the model again")
        return found
    if not any((folder / name).is_file() for name in SLOW_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise TargetError(
            f"the tokenizer in {folder} cannot be loaded ({reason[:200]}); fetch the model again"
        ) from error
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        backend: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
        return backend
    added = [{"id": i, "content": str(t), "special": t.special} for i, t in tokenizer.added_tokens_decoder.items()]
    return {"model": {"type": type(tokenizer).__name__, "vocab": tokenizer.get_vocab()}, "added_tokens": added}


def _vocabulary(backend: dict[str, Any]) -> dict[str, int]:
    vocab = backend["model"].get("vocab", {})
    # unigram models list [token, score] in id order; the others map token to id
    found = {entry[0]: i for i, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    found.update({entry["content"]: int(entry["id"]) for entry in backend.get("added_tokens") or []})
    return found


def vocabulary_map(folder: Path) -> dict[str, int] | None:
    """Token -> id, added tokens included; None where the folder has no tokenizer. Errors: TargetError if damaged."""
    backend = _backend(Path(folder))
    return None if backend is None else _vocabulary(backend)


def hash_tokenizer(folder: Path) -> str | None:
    """sha256 over what decides ids: vocabulary, merges, added tokens, normaliser, pre-tokeniser.

    Formatting and the order of entries do not matter. None where the folder has no tokenizer.
    """
    backend = _backend(Path(folder))
    if backend is None:
        return None
    model = backend["model"]
    merges = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in model.get("merges") or []]
    scores = [entry[1] for entry in model["vocab"]] if isinstance(model.get("vocab"), list) else []
    added = [[int(t["id"]), t["content"], bool(t.get("special"))] for t in backend.get("added_tokens") or []]
    content = {
        "vocabulary": sorted(_vocabulary(backend).items(), key=lambda item: (item[1], item[0])),
        "merges": merges,
        "scores": scores,
        "added": sorted(added),
        "type": model.get("type"),
        "normalizer": backend.get("normalizer"),
        "pre_tokenizer": backend.get("pre_tokenizer"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def tokenizer_difference(a: Path, b: Path) -> str | None:
    """What the vocabulary maps of two model folders disagree on, in a few words; None where they are the same."""
    first, second = vocabulary_map(a), vocabulary_map(b)
    if first is None or second is None:
        return f"{a if first is None else b} has no tokenizer"
    if first == second:
        return None
    wrong = [t for t in first.keys() | second.keys() if first.get(t) != second.get(t)]
    token = min(wrong, key=lambda t: (min(i for i in (first.get(t), second.get(t)) if i is not None), t))
    ids = [f"id {found[token]}" if token in found else "absent" for found in (first, second)]
    return f"{len(wrong)} tokens differ, the first is {token!r}: {ids[0]} against {ids[1]}"


def same_tokenizer_map(a: Path, b: Path) -> bool:
    """Whether two model folders map the same tokens to the same ids."""
    return tokenizer_difference(a, b) is None


def chat_template(folder: Path) -> str | None:
    """The default chat template of a model folder; None where it has none."""
    folder = Path(folder)
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            continue
        settings = _json(folder / name)
        found = settings.get("chat_template") if isinstance(settings, dict) else None
        if isinstance(found, list):  # several named templates: the one called default
            found = {entry["name"]: entry["template"] for entry in found}.get("default")
        if isinstance(found, str):
            return found
    return None


def hash_template(folder: Path) -> str | None:
    """sha256 of the default chat template's text; None where the folder has none."""
    text = chat_template(folder)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()
