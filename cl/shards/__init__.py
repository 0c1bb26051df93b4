"""From raw images to shards: manifest, encoding, writing."""
