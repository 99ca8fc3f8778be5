"""Shared settings: one torch thread (the suite runs beside other work), and Ctrl-C as a terminal would deliver it."""

import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
