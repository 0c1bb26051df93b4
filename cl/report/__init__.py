"""Pages about one experiment and about all, beside the papers' numbers."""
