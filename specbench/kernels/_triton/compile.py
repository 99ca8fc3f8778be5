"""Compiles every Triton kernel for GPUs that need not be there, and says what each takes: ``make kernels``.

Registers and spills are read from the binary by the ``cuobjdump`` that Triton carries. What a thread does not hold in
registers lies on its stack, so a stack of 0 bytes means that nothing was spilled.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specbench.kernels import _triton
from specbench.kernels._triton.launch import INTERPRETED
from specbench.kernels._triton.variant import Variant

TARGETS = (80, 90, 100)
_COLUMNS = (
    *("kernel", "dtype", "shape", "target", "warps", "registers", "stack_bytes", "shared_bytes"),
    *("bytes_moved", "bytes_fewest", "moved_per_fewest"),
)
_HEADS = (
    *("kernel", "dtype", "shape", "target", "warps", "registers", "stack (spilled) B", "shared B"),
    *("moved B", "fewest B", "moved / fewest"),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes: registers and stack of a thread, shared memory of a program."""

    registers: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """One variant on one target."""

    variant: Variant
    target: int
    usage: Usage

    def cells(self) -> tuple[str, ...]:
        """The table's columns."""
        v, took = self.variant, self.usage
        numbers = (v.num_warps, took.registers, took.stack_bytes, took.shared_bytes, v.moved, v.fewest)
        return (v.name, v.dtype, v.shape, f"sm_{self.target}", *map(str, numbers), f"{v.moved / v.fewest:.3f}")

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.variant.name} ({self.variant.dtype}, sm_{self.target})"


def modules() -> list[str]:
    """Names of the modules that list variants."""
    names = [module.name for module in pkgutil.iter_modules(_triton.__path__) if module.name != "compile"]
    return [name for name in names if hasattr(_module(name), "VARIANTS")]


def _module(name: str) -> object:
    return importlib.import_module(f"{_triton.__name__}.{name}")


def variants(name: str) -> list[Variant]:
    """What the module ``name`` lists."""
    found: list[Variant] = getattr(_module(name), "VARIANTS")  # noqa: B009
    return found


def usage(variant: Variant, target: int) -> Usage:
    """Compile ``variant`` for compute capability ``target`` (90 for 9.0)."""
    kernel, given = variant.kernel, variant.constants
    signature = {name: "constexpr" if name in given else variant.types[name] for name in kernel.arg_names}
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned}
    binary = triton.compile(
        ASTSource(kernel, signature=signature, constexprs=dict(given), attrs=aligned),
        target=GPUTarget("cuda", target, 32),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": True},
    )
    registers, stack = _in_binary(binary.asm["cubin"])
    return Usage(registers, stack, int(binary.metadata.shared))


def _in_binary(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread of the kernel in ``cubin``."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", told)
    assert len(found) == 1, f"one kernel a binary, but cuobjdump said: {told}"
    registers, stack, local = map(int, found[0])
    return registers, stack + local


def _usage_at(name: str, index: int, target: int) -> Usage:
    return usage(variants(name)[index], target)


def table(rows: Sequence[Compiled], *, suffix: str) -> str:
    """The rows as CSV (``suffix`` ".csv") or as a Markdown table."""
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *(row.cells() for row in rows)])
        return text.getvalue()
    lines = [_HEADS, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADS))]
    rule = ["-" * width if i < 4 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    padded = [[f"{c:<{w}}" if i < 4 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(line, widths))] for line in lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in (padded[0], rule, *padded[1:]))


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make kernels", description=__doc__)
    parser.add_argument("--target", type=int, action="append", metavar="90", help="80, 90 and 100 where none is named")
    parser.add_argument("--only", action="append", choices=modules(), help="compile the kernels of this module")
    parser.add_argument("--first", action="store_true", help="of every kernel the first variant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; all cores where not given")
    parser.add_argument("--out", type=Path, help="write the table here too: .csv, or else Markdown")
    return parser.parse_args(given)


def compile_all(work: Sequence[tuple[str, int, int]], *, jobs: int) -> list[Compiled]:
    """Every (module, index of the variant, target) in ``work``."""
    if jobs == 1:
        found = [_usage_at(*item) for item in work]
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(_usage_at, *zip(*work)))
    return [Compiled(variants(name)[i], target, took) for (name, i, target), took in zip(work, found, strict=True)]


def main(given: Sequence[str] | None = None) -> int:
    """Compile, print the table, and return 1 where a kernel spills."""
    if INTERPRETED:
        print("error: TRITON_INTERPRET is set, and interpreted kernels cannot be compiled; unset it", file=sys.stderr)
        return 2
    asked = _arguments(given)
    work: list[tuple[str, int, int]] = []
    seen: set[str] = set()
    for name in asked.only or modules():
        for index, variant in enumerate(variants(name)):
            if not (asked.first and variant.name in seen):
                work += [(name, index, target) for target in asked.target or TARGETS]
            seen.add(variant.name)
    rows = compile_all(work, jobs=asked.jobs)
    print(table(rows, suffix=".md"), end="")
    if asked.out is not None:
        asked.out.write_text(table(rows, suffix=asked.out.suffix))
    spilling = list(dict.fromkeys(row.label for row in rows if row.usage.stack_bytes))
    print(f"{len(rows)} binaries, {len(spilling)} spill" + (f": {', '.join(spilling)}" if spilling else ""))
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
