"""Encoders of any program, their features, and exports to other programs' formats."""
