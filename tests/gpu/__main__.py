"""``make gpu-check``: numeric tests and measurements on one GPU, in under four minutes; ``--dry`` on a CPU, in one."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent


def _arguments(words: list[str]) -> argparse.Namespace:
    from tests.gpu.sections import NAMES, SECTIONS

    about = "; ".join(f"{section.name}: {section.about}" for section in SECTIONS)
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__, epilog=about)
    parser.add_argument("--only", default=",".join(NAMES), help="sections, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), help="folder for results")
    parser.add_argument("--wheels", type=Path, help="folder of wheels with what this machine lacks")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU: shows that the script works")
    parser.add_argument("--seconds", type=float, help="for the whole run, shared out among the sections")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """The exit code: 0 all sections ended well, 1 one failed, 2 the request or the machine will not do."""
    from tests.gpu import driver
    from tests.gpu.sections import NAMES

    given: Any = _arguments(words)
    if given.seconds is not None and not 0 < given.seconds < 86_400:
        print(f"error: --seconds is {given.seconds:g}; give a number above 0", file=sys.stderr)
        return driver.CONFIGURATION_ERROR
    asked = [name.strip() for name in given.only.split(",") if name.strip()]
    unknown = [name for name in asked if name not in NAMES]
    if unknown or not asked:
        print(f"error: unknown section '{(unknown or [''])[0]}'; known: {', '.join(NAMES)}", file=sys.stderr)
        return driver.CONFIGURATION_ERROR
    names = tuple(name for name in NAMES if name in asked)
    try:
        return driver.main(names, out=given.out, dry=given.dry, wheel_folder=given.wheels, seconds=given.seconds)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"error: {error}; choose another --out or free some space", file=sys.stderr)
        return driver.CONFIGURATION_ERROR


def _bind_tests() -> None:
    """``tests`` is this checkout's folder, also where an installed distribution brings a package of that name."""
    package = ModuleType("tests")
    package.__path__ = [str(HERE.parent)]
    sys.modules["tests"] = package
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]  # its modules have common names


if __name__ == "__main__":
    _bind_tests()
    if sys.argv[1:2] == ["--child"]:
        from tests.gpu import child

        gc.freeze()  # what was imported is never garbage: the collections between sections need not look at it
        code = child.main(sys.argv[2:])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # all is written; a broken device may keep the interpreter from ending
    sys.exit(main(sys.argv[1:]))
