"""Tensors that a process drops are not given back to the kernel, which would fill their pages with zeros again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
import torch
from specbench.modeling.host_memory import keep_freed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.full((4 << 20,), 1.0)  # 16 MiB: 4096 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
told = keep_freed()
for _ in range(4):  # the first chunks end up between small ones
    faults()
print(told, first, faults())
"""


def test_freed_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    told, first, after = done.stdout.split()
    assert (told == "True") == (platform.libc_ver()[0] == "glibc")  # which alone can be told
    if told == "True":
        assert int(after) < 100
        assert int(after) < int(first)


GROW = """
import sys
import psutil
import torch
from specbench.modeling.host_memory import Trimmer, keep_freed

trim = Trimmer(every_s=float(sys.argv[1]))
keep_freed()
kept = []
for size in range(1 << 20, 6 << 20, 1 << 17):  # contexts of rows that grow, with something small behind each
    torch.zeros(size)
    kept.append(torch.zeros(1 << 10))
    trim()
print(psutil.Process().memory_info().rss)
"""


def test_what_grows_step_by_step_is_given_back_now_and_then() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc can be told to keep what is freed, and to give it back")
    run = [sys.executable, "-c", GROW]
    never, always = (
        int(subprocess.run([*run, every], capture_output=True, text=True, check=True).stdout) for every in ("1e9", "0")
    )
    assert never > always + 10 * 2**20
