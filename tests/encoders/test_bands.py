"""Encoders of images of bands: from their file, their shards and other programs the same features."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image as Picture

import cl
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.features.extraction import extract
from cl.images.bands import composite
from cl.runtime.tensor_files import save_tensors
from pipeline import evaluate
from tests.support import backbones
from tests.support.backbones import residual
from tests.support.pictures import picture_file
from tests.support.resnets import save_encoder
from tests.support.stages import run_cl

NETWORKS = {
    "resnet18": residual(stem="small", width=0.125, channels=5),
    "vit": backbones.config("vit", size=32, channels=5),
    "convnext": backbones.config("test_convnext", channels=5),
}


@pytest.fixture(params=NETWORKS)
def file(request, band_folder, tmp_path) -> Path:
    """An encoder as `pretrain` writes it."""
    torch.manual_seed(0)
    config = NETWORKS[request.param]
    network = backbones.backbones.build(config)
    bands = Reader(band_folder, "val").manifest.bands
    transform = Transform(resize=36, crop=32, mean=(0, 0, 0), std=(1, 1, 1), upright=True, bands=bands)
    metadata = {"transform": transform.model_dump_json(), "network": config.model_dump_json()}
    metadata["parameters"] = json.dumps({"backbone": config.model_dump(mode="json", exclude={"channels"})})
    save_tensors(network.state_dict(), tmp_path / "backbone.safetensors", metadata)
    return tmp_path / "backbone.safetensors"


@pytest.fixture
def files(band_folder) -> list[Path]:
    return sorted((band_folder.parent / "raw/val").rglob("*.tif"))


def test_files_arrays_and_shards_give_the_same_features(file, files, band_folder, here) -> None:
    encoder, reader = cl.load(file, device="cpu"), Reader(band_folder, "val")
    stored = dict(
        zip(
            reader.keys.tolist(),
            extract(encoder.network, EvalSet(reader, encoder.transform), here),
            strict=True,
        )
    )
    expected = torch.stack(
        [
            stored[str(path.relative_to(band_folder.parent / "raw/val").with_suffix("")).encode()]
            for path in files
        ]
    )
    assert len(expected.unique(dim=0)) == len(files) == 12
    found = encoder.embed(files, batch_size=len(files))
    torch.testing.assert_close(found, expected)
    arrays = [np.moveaxis(tifffile.imread(path), 0, -1) for path in files]
    torch.testing.assert_close(encoder.embed(arrays), expected)
    run_cl("embed", files[0].parent.parent, "--encoder", file, "--to", file.with_name("a.parquet"))
    embedded = cl.embed(files, encoder=encoder).features
    torch.testing.assert_close(torch.from_numpy(embedded), expected)
    run_cl(
        "search", file.with_name("a.parquet"), files[0], "--encoder", file, "--to", file.with_name("a.html")
    )
    assert "data:image/jpeg" in file.with_name("a.html").read_text()


def test_commands_find_files_and_stacks_of_numbers(file, files, tmp_path) -> None:
    arrays = [np.moveaxis(tifffile.imread(path), 0, -1) for path in files]
    folder = tmp_path / "images"
    folder.mkdir()
    np.save(folder / "a.npy", arrays[0])
    shutil.copy(folder / "a.npy", folder / "b.dcm")  # the content tells the format
    np.save(folder / "c.npy", np.stack(arrays[1:]))
    names = ["a.npy", "b.dcm", *(f"c[{number}].npy" for number in range(len(arrays) - 1))]
    encoder = cl.load(file, device="cpu")
    found = cl.embed(folder, encoder=encoder)
    assert sorted(found.names) == sorted(names)
    cl.embed(folder, encoder=encoder, to=tmp_path / "a.parquet")
    assert len(cl.search(tmp_path / "a.parquet", folder / "c.npy", encoder=encoder).queries) == len(names[2:])
    by_name = dict(zip(found.names, torch.from_numpy(found.features), strict=True))
    expected = encoder.embed([arrays[0], *arrays])
    torch.testing.assert_close(torch.stack([by_name[name] for name in names]), expected, rtol=1e-4, atol=1e-4)
    rows = [f"{name},{path.parent.name}" for name, path in zip(names[2:], files[1:], strict=True)]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["path,label", *rows]))
    classified = cl.classify(labels, images=folder, encoder=encoder, ungrouped=True)
    assert sorted(classified.names) == sorted(names)
    assert len(classified.labels) == len(names)
    given = {"train": folder, "labels": labels, "ungrouped": True, "holdout": 0.5, "k": 3}
    assert 0 < cl.evaluate(encoder, **given).train_images < len(rows)
    assert cl.compare(encoder, encoder, **given)


def test_an_encoder_of_other_statistics_meets_those_of_the_data(file, band_folder, capsys) -> None:
    """`evaluate` says so; the features are those of the new statistics."""
    transform = cl.load(file, device="cpu").transform
    bands = transform.bands
    shifted = bands.model_copy(update={"mean": tuple(mean + 9 for mean in bands.mean)})
    for new, is_said in ((transform, False), (transform.model_copy(update={"bands": shifted}), True)):
        evaluate.load_foreign(str(file), None, new)
        assert ("trained with other statistics of bands" in capsys.readouterr().err) == is_said


def test_images_of_other_bands_or_depth_are_refused(file, tmp_path) -> None:
    encoder = cl.load(file, device="cpu")
    four = np.ones((4, 40, 40), np.uint16)
    tifffile.imwrite(tmp_path / "four.tif", four, photometric="minisblack")
    for image, message in (
        (tmp_path / "four.tif", "four.tif cannot be decoded: 4 bands, expected 5"),
        (np.moveaxis(four, 0, -1), "found uint16 of shape .40, 40, 4., expected the uint16 bands 1, 2, 3"),
        (np.ones((40, 40, 5), np.uint8), "found uint8 of shape"),
        (Picture.new("RGB", (40, 40)), "found a picture, expected the uint16 bands"),
        (torch.zeros(1, 3, 32, 32), r"expected transformed images \(N, 5, S, S\)"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder.embed(image)
    unknown = tmp_path / "unknown.safetensors"
    save_tensors(encoder.network.state_dict(), unknown, {"network": encoder.config.model_dump_json()})
    for use in (cl.load, lambda path: cl.export("onnx", encoder=path, to=tmp_path / "out.onnx")):
        with pytest.raises(ValueError, match="an encoder for 5 channels and does not record what they are"):
            use(unknown)


def test_two_encoders_must_read_the_same_images(file, files, tmp_path) -> None:
    save_encoder(tmp_path / "rgb.safetensors")
    for number, path in enumerate(files):
        picture_file(tmp_path / "images" / path.parent.name / f"{number}.jpg", number)
        shutil.copy(path, tmp_path / "images" / path.parent.name)
    with pytest.raises(ValueError, match="one encoder cannot read .*, which the other reads"):
        cl.compare(tmp_path / "rgb.safetensors", file, train=tmp_path / "images")


def test_exports_take_standardised_bands(file, files, tmp_path) -> None:
    import onnxruntime
    import timm

    encoder = cl.load(file, device="cpu")
    images = torch.stack([encoder.transform(path) for path in files])
    expected = encoder.embed(images)
    said = cl.export("onnx", encoder=file, to=tmp_path / "out.onnx").inputs
    assert "(N, 5, 32, 32) float32: the bands 1, 2, 3, 4, 5, each minus its mean" in said
    (found,) = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(
        ["features"], {"images": images.numpy()}
    )
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
    if encoder.config.kind != "resnet":
        cl.export("timm", encoder=file, to=tmp_path / "timm")
        theirs = timm.create_model(f"local-dir:{tmp_path}/timm", pretrained=True).eval()
        torch.testing.assert_close(theirs(images), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(cl.load(tmp_path / "timm", device="cpu").embed(files), expected)


def test_pictures_show_three_bands_between_their_levels(band_folder) -> None:
    reader = Reader(band_folder, "val")
    bands, pixels = reader.manifest.bands, reader.pixels(0)
    for show, chosen in ((None, (0, 1, 2)), ([5, "1", 3], (4, 0, 2)), ([2], (1, 1, 1))):
        found = composite(pixels, bands, show)
        for channel, band in enumerate(chosen):
            low, high = bands.levels[band]
            for y, x in ((0, 0), (10, 7), (39, 47)):
                value = (float(pixels[y, x, band]) - low) / (high - low) if pixels[y, x, band] else 0
                assert abs(found[y, x, channel] - 255 * min(max(value, 0), 1)) <= 0.5
    with pytest.raises(ValueError, match="dataset.show names the band 7, but the images have 1, 2, 3, 4, 5"):
        composite(pixels, bands, [7])
