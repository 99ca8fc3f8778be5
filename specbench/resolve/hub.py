"""Models from the hub: what is cached, whether the hub answers at all, and the download.

Whether there is a way to the hub is found out by one request with a time limit, because the client library retries for
minutes on a machine without network.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import SpecbenchError
from specbench.resolve import cache
from specbench.resolve.progress import Step
from specbench.resolve.weights import weight_files

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?", re.ASCII)
PROBE_S = 3.0
TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken")


class HubError(Exception):
    """Why the hub could not give a model; the caller decides what that means to the user."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A snapshot in the hub's own cache, and the commit that it is of."""

    path: Path
    revision: str


def is_hub_id(name: str) -> bool:
    """Whether ``name`` reads as OWNER/NAME or OWNER/NAME@REVISION."""
    return HUB_ID.fullmatch(name) is not None


def split_id(name: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision, None where it names none."""
    repo, _, revision = name.partition("@")
    return repo, revision or None


def offline_by_environment() -> str | None:
    """The variable that forbids the hub (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE), None where none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((n for n in names if os.environ.get(n, "").strip().upper() in {"1", "ON", "YES", "TRUE"}), None)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def find_cached(name: str, *, code: bool = False) -> HubModel | None:
    """The cached snapshot of ``name``, if its config, all its weight files and with ``code`` its modules are there.

    No network is used.
    """
    from huggingface_hub import try_to_load_from_cache

    repo, revision = split_id(name)
    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    try:
        weight_files(folder)
    except SpecbenchError:
        return None  # a download that never finished
    if code and not _has_modules(folder):
        return None  # fetched before its code was trusted
    return HubModel(folder, folder.name)


def _has_modules(folder: Path) -> bool:
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auto_map") or {}
        classes = [name for name in named.values() if isinstance(name, str)]
    except (OSError, ValueError, AttributeError):
        return True  # a broken config is reported by whoever reads it
    # "modeling_own.OwnModel" lies here; "owner/name--modeling_own.OwnModel" lies in another repository
    return all((folder / f"{name.split('.')[0]}.py").is_file() for name in classes if "--" not in name)


def why_unreachable(*, timeout_s: float = PROBE_S) -> str | None:
    """Why the hub does not answer within ``timeout_s``; None where it answers, whatever it says.

    The request runs in a thread that may be left behind: looking up a host name knows no time limit of ours.
    """
    outcome: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(_endpoint(), method="HEAD")
            with urllib.request.urlopen(request, timeout=timeout_s):
                outcome.append(None)
        except urllib.error.HTTPError:
            outcome.append(None)
        except (OSError, ValueError, http.client.HTTPException) as error:
            outcome.append(str(getattr(error, "reason", error)) or type(error).__name__)

    thread = threading.Thread(target=ask, daemon=True, name="hub-probe")
    thread.start()
    thread.join(timeout_s)
    return outcome[0] if outcome else f"no answer within {timeout_s:g} s"


def wanted_files(names: Iterable[str], *, code: bool) -> list[str]:
    """The files of a repository that a model needs: settings, tokenizer, weights; ``code`` adds its Python modules.

    Safetensors are taken alone where there are any; ``.bin`` weights only where there are none.
    """
    top = [n for n in names if "/" not in n]
    tensors = [n for n in top if n.endswith(".safetensors") and not n.startswith("consolidated")]
    if not tensors:
        tensors = [n for n in top if n.endswith(".bin") and n != "training_args.bin"]
    texts = [n for n in top if n.endswith(TEXT_SUFFIXES)]
    modules = [n for n in top if n.endswith(".py")] if code else []
    return sorted({*texts, *tensors, *modules})


def fetch(name: str, *, code: bool, progress: Step) -> HubModel:
    """Download ``name`` into the hub's cache. Errors: HubError with the reason; CapacityError when it does not fit."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    repo, revision = split_id(name)
    try:
        api = HfApi(endpoint=_endpoint())
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=15)
        sizes = {s.rfilename: s.size or 0 for s in info.siblings or []}
        files = wanted_files(sizes, code=code)
        if "config.json" not in files:
            raise HubError(f"the hub's {repo} has no config.json: not a model that can be loaded")
        total = sum(sizes[f] for f in files)
        folder = Path(constants.HF_HUB_CACHE)
        with cache.disk_errors(folder, what=repo):
            folder.mkdir(parents=True, exist_ok=True)
            cache.check_space(folder, total, what=repo)
            with progress(f"Fetching {repo} from the model hub ({total / 1e9:.2f} GB, once)"):
                path = snapshot_download(repo, revision=revision, allow_patterns=files, endpoint=_endpoint())
    except (HubError, SpecbenchError):
        raise
    except GatedRepoError as error:
        raise HubError(f"the hub gives {repo} to users who accepted its licence; do so and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise HubError(f"the hub's {repo} has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise HubError(f"the hub has no model {repo} (or HF_TOKEN may not see it)") from error
    except Exception as error:  # the client raises its transport's errors, which differ between its versions
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise HubError(f"the hub could not give {repo} ({reason[:200]})") from error
    return HubModel(Path(path), Path(path).name)
