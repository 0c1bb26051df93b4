"""The picture of images beside their views."""

import numpy as np
from PIL import Image as Picture

from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.views import centre, resize
from cl.pretraining import view_sheet
from pipeline.support.locations import transform


def test_the_sheet_shows_images_beside_their_views(shard_folder, params, tmp_path) -> None:
    """Without colour operations a view of the whole image is the image."""
    usual = params.views["random"]
    jitter = usual.jitter.model_copy(update={"p": 0.0})
    changes = {"area": (1.0, 1.0), "flip": 0.0, "jitter": jitter, "grayscale": 0.0}
    still = usual.model_copy(update=changes)
    reader = Reader(shard_folder, "train")
    data = TrainSet(reader, transform(params.dataset), [still], Plan(len(reader), 40, 0))
    view_sheet.draw(data, tmp_path / "views.png")
    sheet = np.asarray(Picture.open(tmp_path / "views.png")).astype(int)
    assert sheet.shape == (3 * 132, 8 * 132 - 4, 3)
    for column, position in enumerate(Plan(len(reader), 40, 0).step(0)[1][:8]):
        picture = reader.pixels(int(position))
        out = np.empty((1, still.size, still.size, 3), np.uint8)
        resize(picture, (0, 0, picture.shape[1], picture.shape[0]), still, out)
        small = out[0]
        x = 132 * column
        tiles = [sheet[y : y + 128, x : x + 128] for y in (0, 136, 268)]
        for tile, shown in zip(tiles, (picture, small, small), strict=True):
            assert np.abs(tile - centre(shown, 128, 128)).max() <= 1
