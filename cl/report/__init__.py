"""The report on one experiment, the summary of all experiments, and what the papers print."""
