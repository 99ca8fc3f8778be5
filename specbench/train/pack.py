"""What a finished plan leaves, in a few files that travel: each drafter's weights, all curves, the list, the logs."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path

from specbench.errors import CapacityError, TrainDataError
from specbench.train.checkpoint import RECIPE, SUMMARY
from specbench.train.manifest import readable_bytes

MAX_FILES, MAX_BYTES = 8, 16 * 2**20
_CURVES = ("curve.csv", "heldout.csv", RECIPE, SUMMARY)


def pack(work: Path, out: Path, *, runs: tuple[str, ...]) -> list[Path]:
    """Write ``out``: NAME.tar of each drafter, curves.tar.gz, logs.tar.gz, and copies of the files ``runs``.

    Errors: TrainDataError when the plan is not finished; CapacityError when there are more than `MAX_FILES` files or
    one is larger than `MAX_BYTES`.
    """
    weights = sorted(folder for folder in (work / "weights").glob("*") if (folder / "card.json").is_file())
    missing = [name for name in runs if not (work / name).is_file()]
    if missing or not weights:
        raise TrainDataError(f"{work} holds no finished plan ({missing[0] if missing else 'no weights'} is absent)")
    out.mkdir(parents=True, exist_ok=True)
    written = [_tar(out / f"{folder.name}.tar", sorted(folder.iterdir()), below=work / "weights") for folder in weights]
    curves = [p for stage in ("search", "final") for name in _CURVES for p in sorted((work / stage).glob(f"*/{name}"))]
    checks = sorted((work / "data").glob("checked-*"))
    written.append(_tar(out / "curves.tar.gz", [*curves, *checks], below=work))
    written.append(_tar(out / "logs.tar.gz", sorted((work / "logs").glob("*.log")), below=work))
    for name in runs:
        (out / name).write_bytes((work / name).read_bytes())
        written.append(out / name)
    large = [path for path in written if path.stat().st_size > MAX_BYTES]
    if len(written) > MAX_FILES or large:
        what = f"{large[0]} is {readable_bytes(large[0].stat().st_size)}" if large else f"{len(written)} files"
        limit = f"{MAX_FILES} files of {readable_bytes(MAX_BYTES)}"
        raise CapacityError(f"the packed plan is too large to travel: {what}, at most {limit}; train fewer at once")
    return written


def _tar(path: Path, files: Iterable[Path], *, below: Path) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for file in files:
            archive.add(file, arcname=str(file.relative_to(below)), recursive=False)
    return path
