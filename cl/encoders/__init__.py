"""Encoders of this and other programs: reading, using and exporting them."""
