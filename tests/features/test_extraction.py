"""Features of whole splits."""

import numpy as np
import torch

from cl.data.reader import Reader
from cl.features.extraction import extract


def test_extract_follows_the_index_and_restores_the_mode(shard_folder, params, tiny_backbone, here) -> None:
    reader = Reader(shard_folder, "val")
    backbone = tiny_backbone.train()
    features = extract(backbone, reader, params.dataset, here)
    assert features.shape == (60, 8)
    assert backbone.training
    some = extract(backbone, reader, params.dataset, here, np.array([41, 3]))
    torch.testing.assert_close(some, features[[41, 3]])
