"""Measurements side by side with other implementations, in one run; ratios travel between machines, times do not."""
