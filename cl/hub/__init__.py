"""Encoders trained by other programs, and exports to their formats."""
