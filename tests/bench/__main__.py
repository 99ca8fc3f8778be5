"""``make bench``: timings that want an idle machine. ``make bench ARGS='decode greedy'`` picks sections."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]


def main(wanted: list[str]) -> int:
    """Run the sections named, or all of them, in the order of their names."""
    known = sorted(m.name.removeprefix("bench_") for m in pkgutil.iter_modules([str(HERE)]) if m.name != "__main__")
    known = [name for name in known if (HERE / f"bench_{name}.py").exists()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"error: unknown section '{unknown[0]}'; known: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in wanted or known:
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"tests.bench.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
