"""What a training step asks of a GPU, found without one: operations, bytes, memory and waits."""
