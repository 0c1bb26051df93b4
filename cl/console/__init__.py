"""What a run shows and hears: progress, and signals to stop. An edit here never causes a new training."""
