"""``make gpu-check``: numeric tests and measurements on one GPU, in under four minutes; ``--dry`` on a CPU, in one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gpu import driver
from tests.gpu.sections import NAMES, SECTIONS


def _arguments(words: list[str]) -> argparse.Namespace:
    about = "; ".join(f"{section.name}: {section.about}" for section in SECTIONS)
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__, epilog=about)
    parser.add_argument("--only", default=",".join(NAMES), help="sections, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), help="folder for results")
    parser.add_argument("--wheels", type=Path, help="folder of wheels with what this machine lacks")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU: shows that the script works")
    parser.add_argument("--seconds", type=float, help="for the whole run, shared out among the sections")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """The exit code: 0 all sections ended well, 1 one failed, 2 the request or the machine will not do."""
    given = _arguments(words)
    asked = [name.strip() for name in given.only.split(",") if name.strip()]
    if given.seconds is not None and not 0 < given.seconds < 86_400:
        print(f"error: --seconds is {given.seconds:g}; give a number above 0", file=sys.stderr)
        return driver.CONFIGURATION_ERROR
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
