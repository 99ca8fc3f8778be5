"""Parquet files are read and written on the calling thread: a pool's worker alive at the end can abort the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support_traces import example_trace

from specbench.metrics._identities import check_identities
from specbench.records.rounds import encode
from specbench.train.shards import TokenRow, write_token_shard

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="counts threads in /proc, which is Linux's"
)

COUNT = """
import os, sys
from pathlib import Path
import pyarrow, pyarrow.parquet
from specbench.metrics._identities import check_identities
from specbench.records.rounds import decode, encode
from specbench.train.shards import TokenRow, read_token_shard, write_token_shard

def threads():
    return len(os.listdir("/proc/self/task"))

rounds, shard = map(Path, sys.argv[1:])
before = threads()
trace = decode(rounds.read_bytes(), where="here")
after_rounds = threads()
encode(trace, check=check_identities)
after_writing = threads()
assert read_token_shard(shard, columns=["token_ids"]).num_rows == 1
row = TokenRow("a", "x", "math", None, ("x",), "0", False, 1.0, 0, ("length",), (1, 2), (False, True))
write_token_shard(shard, [row])
print(after_rounds - before, after_writing - after_rounds, threads() - after_writing)
"""


def test_no_thread_of_arrow_outlives_a_call(tmp_path: Path) -> None:
    rounds, shard = tmp_path / "a.rounds.parquet", tmp_path / "answers.parquet"
    rounds.write_bytes(encode(example_trace(), check=check_identities))
    row = TokenRow(
        "a", "starter-math", "math", None, ("x",), "0", False, 1.0, 0, ("length",), (1, 2, 3), (False, True, True)
    )
    write_token_shard(shard, [row])
    done = subprocess.run([sys.executable, "-c", COUNT, str(rounds), str(shard)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "0"]
