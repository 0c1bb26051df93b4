"""What the comparisons share: our side, the authors' side, their differences, and processes."""
