"""The report on one experiment, the summary of all experiments, and the papers' printed numbers."""
