"""The twenty photographs that are installed with scikit-image, scikit-learn and matplotlib."""

from pathlib import Path

from PIL import Image as Picture

SKIMAGE = [
    "astronaut.png",
    "brick.png",
    "camera.png",
    "cell.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
    "text.png",
]
SKLEARN = ["china.jpg", "flower.jpg"]
MATPLOTLIB = ["grace_hopper.jpg"]
NAMES = sorted(file.split(".")[0] for file in SKIMAGE + SKLEARN + MATPLOTLIB)
TRAIN_BAND = 0.7


def files() -> dict[str, Path]:
    """The twenty photographs by name, in the order of NAMES."""
    import matplotlib
    import skimage
    import sklearn

    files = [Path(skimage.__file__).parent / "data" / name for name in SKIMAGE]
    files += [Path(sklearn.__file__).parent / "datasets" / "images" / name for name in SKLEARN]
    files += [Path(matplotlib.get_data_path()) / "sample_data" / name for name in MATPLOTLIB]
    return {path.stem: path for path in sorted(files, key=lambda p: p.stem)}


def bands(photograph: Picture.Image) -> dict[str, Picture.Image]:
    """Two disjoint parts of a photograph along its longer side: 70 % for training, the rest for validation."""
    width, height = photograph.size
    cut = int(TRAIN_BAND * max(width, height))
    if width >= height:
        return {
            "train": photograph.crop((0, 0, cut, height)),
            "val": photograph.crop((cut, 0, width, height)),
        }
    return {"train": photograph.crop((0, 0, width, cut)), "val": photograph.crop((0, cut, width, height))}
