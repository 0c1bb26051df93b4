"""Networks and what they are made of: backbones, heads, batch norm, patches, target encoders, queues."""
