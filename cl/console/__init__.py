"""Progress on the terminal, and signals to stop. Editing this package never triggers a new training."""
