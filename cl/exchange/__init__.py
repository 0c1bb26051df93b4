"""Encoders from other programs, and for them."""
