"""Pictures of bands for people: three as red, green and blue, or one as gray."""

from collections.abc import Sequence

import numpy as np

from cl.images.bands import Bands, has_data


def places(bands: Bands, show: Sequence[int | str] | None) -> list[int]:
    """The positions of the one or three bands to show; None: the first three, or the first alone.

    Args:
        show: names, or numbers from 1 among the bands of the data set, if no band is called so.

    Raises:
        ValueError: a band does not exist.
    """
    if show is None:
        return [0, 1, 2] if len(bands.names) >= 3 else [0]
    found = []
    for band in show:
        if str(band) in bands.names:
            found.append(bands.names.index(str(band)))
        elif isinstance(band, int) and 1 <= band <= len(bands.names):
            found.append(band - 1)
        else:
            raise ValueError(
                f"dataset.show names the band {band}, but the images have {', '.join(bands.names)}"
            )
    return found


def composite(pixels: np.ndarray, bands: Bands, show: Sequence[int | str] | None) -> np.ndarray:
    """(H, W, C) of stored values to (H, W, 3) uint8: each band between its levels, black without data."""
    chosen = places(bands, show)
    low, high = np.array([bands.levels[place] for place in chosen]).T
    values = np.where(has_data(pixels, bands.missing)[..., chosen], pixels[..., chosen], low)
    scaled = np.clip((values - low) / np.where(high > low, high - low, 1), 0, 1)
    return np.repeat((255 * scaled).round().astype(np.uint8), 3 // len(chosen), axis=2)


def described(bands: Bands, show: Sequence[int | str] | None) -> str:
    """What pictures show, in words."""
    names = [bands.names[place] for place in places(bands, show)]
    if len(names) == 1:
        return f"band {names[0]} in gray"
    return f"bands {', '.join(names)} as red, green and blue"
