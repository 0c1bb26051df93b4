"""Correctness and speed on a CUDA GPU, each a command: `check` and `speed`."""
