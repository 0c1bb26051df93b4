"""Groups of images that are not independent."""

import numpy as np

from cl.statistics import separated


def test_images_without_a_group_are_groups_of_their_own() -> None:
    found = separated(np.array([-1, -1, 0, 2, 0, -1]), 6)
    assert found[2] == found[4]
    assert len(set(found.tolist())) == 5
    assert len(set(separated(None, 6).tolist())) == 6
