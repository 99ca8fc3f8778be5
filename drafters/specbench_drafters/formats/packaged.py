"""Trained weights that come with the package: ``specbench_drafters/weights/TARGET/METHOD/``."""

from __future__ import annotations

from pathlib import Path

from specbench_drafters.formats.files import CONFIG_NAME

ROOT = Path(__file__).resolve().parent.parent / "weights"


def find(target_name: str, method: str) -> Path | None:
    """The packaged checkpoint of ``method`` for the target with that short name; None where there is none.

    Names are as users write them; hyphens and underscores in a folder's name mean the same.
    """
    if Path(target_name).name != target_name or Path(method).name != method:  # a path is no short name
        return None
    for name in dict.fromkeys((method, method.replace("-", "_"), method.replace("_", "-"))):
        folder = ROOT / target_name / name
        if (folder / CONFIG_NAME).is_file():
            return folder
    return None


class Packaged:
    """What the referee reaches through the registry."""

    find = staticmethod(find)


PLUGIN = Packaged
