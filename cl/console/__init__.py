"""Progress on the terminal, loggers, and signals to stop. Edits to this package never retrain a model."""
