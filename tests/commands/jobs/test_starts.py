"""Which columns look useful for training."""

import re

import numpy as np
import pytest

import cl
from cl.commands.jobs.starts import Start, suggestion
from tests.support.resnets import save_encoder

NUMBERS = np.arange(120)
SITE, BIRD = NUMBERS % 3, NUMBERS // 4


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (SITE, r"3 values; features predict \d+ % .*most frequent is 33 %; .*dataset.within=c may"),
        (BIRD, r"30 values; the nearest image has the same for \d+ % .*chance 3 %; .*dataset.positive=c may"),
        (np.where(NUMBERS < 60, BIRD, -1), "15 values; .*dataset.positive=c"),
        (0 * NUMBERS, None),  # one value
        (NUMBERS, None),  # a value for each image
        (NUMBERS * 37 % 120 // 4, None),  # by chance
        (NUMBERS * 37 % 120 // 40, None),  # few, by chance
        (SITE // 2, None),  # follows from the label
    ],
)
def test_a_column_that_features_agree_with_is_suggested_after_the_numbers(cells, says, tmp_path) -> None:
    save_encoder(tmp_path / "a.safetensors")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(120, 16)).astype(np.float32)
    features[:, :8] += 3 * rng.normal(size=(3, 8))[SITE]
    features[:, 8:] += 3 * rng.normal(size=(30, 8))[BIRD]
    start = Start("a", cl.load(tmp_path / "a.safetensors"), features, 1.0, {})
    words = np.array(["" if cell < 0 else f"v{cell}" for cell in cells])
    labels = np.array(["robin", "wren"])[SITE // 2] if cells is not SITE else np.full(120, "")
    found = suggestion("c", words, labels, NUMBERS, start)
    assert found is None if says is None else found and re.search(says, found)
