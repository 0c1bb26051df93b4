"""From the overrides of `dvc exp run -S` to params.yaml, and what is said about mistaken ones."""
