"""The training loop, its tasks, optimizers and checkpoints."""
