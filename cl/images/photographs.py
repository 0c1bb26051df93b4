"""The twenty photographs that come with scikit-image, scikit-learn and matplotlib."""

from pathlib import Path

from PIL import Image as Picture

SKIMAGE = [
    *("astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "coffee.png", "coins.png"),
    *("grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png"),
    *("page.png", "retina.jpg", "rocket.jpg", "text.png"),
]
SKLEARN = ["china.jpg", "flower.jpg"]
MATPLOTLIB = ["grace_hopper.jpg"]
TRAIN_BAND = 0.7


def files() -> dict[str, Path]:
    """The paths of the twenty photographs by name, sorted."""
    import matplotlib
    import skimage
    import sklearn

    paths = [Path(skimage.__file__).parent / "data" / name for name in SKIMAGE]
    paths += [Path(sklearn.__file__).parent / "datasets" / "images" / name for name in SKLEARN]
    paths += [Path(matplotlib.get_data_path()) / "sample_data" / name for name in MATPLOTLIB]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def bands(photograph: Picture.Image) -> dict[str, Picture.Image]:
    """Cut a photograph in two along its longer side: the first 70 % for training, the rest for validation."""
    width, height = photograph.size
    cut = int(TRAIN_BAND * max(width, height))
    x, y = (cut, 0) if width >= height else (0, cut)
    train = photograph.crop((0, 0, x or width, y or height))
    return {"train": train, "val": photograph.crop((x, y, width, height))}
