"""From shards to batches on the training device."""
