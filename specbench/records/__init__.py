"""Records of runs: what a cell was, what it measured and what that was computed from. No torch."""
