"""What pixels of an image file may hold: each kind gives those of NumPy, or is left out with a reason."""

import io
import re

import numpy as np
import pytest
from PIL import Image as Picture

from cl.encoders.encoder import IMAGENET
from cl.shards.manifest import Manifest
from tests.support.band_files import png, tiff
from tests.support.pictures import file_of, photograph
from tests.support.tiny import STORAGE, pixels_by_key, stored

RGB = np.asarray(photograph(60, 40))
GRAY = RGB[..., 0]
BAND = np.random.default_rng(0).integers(0, 256, (60, 40, 1)).astype(np.uint8)
SHAPE = np.zeros((60, 40, 1), np.uint8)
SHAPE[9:-9, 7:-7] = 255
RGB16, GRAY16 = RGB.astype(np.uint16) * 16, GRAY.astype(np.uint16) * 16
BAND16, SHAPE16 = BAND.astype(np.uint16) * 16, SHAPE.astype(np.uint16) * 257
ON_WHITE = np.where(SHAPE, RGB, 255)


def ppm(pixels: np.ndarray, maximum: int) -> bytes:
    return b"P6\n40 60\n%d\n" % maximum + pixels.astype(">u2" if maximum > 255 else np.uint8).tobytes()


def joined(*bands: np.ndarray) -> np.ndarray:
    return np.concatenate([band.reshape(60, 40, -1) for band in bands], 2)


def gray(values: np.ndarray) -> np.ndarray:
    return np.repeat(values.reshape(60, 40, 1), 3, 2)


CMYK = joined(255 - RGB, BAND // 4)
LAB = joined(GRAY, BAND // 8 - 16, RGB[..., 1] // 8)  # a and b are signed
BY_LAB = Picture.open(io.BytesIO(tiff(LAB, "cielab"))).convert("RGB")
BY_INK = np.round(RGB * (1 - CMYK[..., 3:] / 255)).astype(np.uint8)


PALETTE = np.random.default_rng(1).integers(0, 256, (256, 3)).astype(np.uint8)
ALPHAS = np.where(np.arange(256) < 128, 255, 0).astype(np.uint8)
CUTOUT = joined(RGB, SHAPE)
SEPARATE = {"planarconfig": "separate"}

READ = {
    "tif rgb": (tiff(RGB), RGB),
    "tif rgb big-endian": (tiff(RGB, byteorder=">"), RGB),
    "tif rgb in planes": (tiff(RGB, **SEPARATE), RGB),
    "tif rgb in tiles": (tiff(RGB, tile=(16, 16)), RGB),
    "tif gray": (tiff(GRAY, "minisblack"), gray(GRAY)),
    "tif gray, white as 0": (tiff(GRAY, "miniswhite"), gray(255 - GRAY)),
    "tif pages": (tiff(np.stack([RGB, 255 - RGB])), RGB),
    "tif opacity": (tiff(CUTOUT, extrasamples=(2,)), ON_WHITE),
    "tif premultiplied": (tiff(joined(RGB * (SHAPE > 0), SHAPE), extrasamples=(1,)), ON_WHITE),
    "tif gray with opacity": (
        tiff(joined(GRAY, SHAPE), "minisblack", extrasamples=(2,)),
        gray(np.where(SHAPE[..., 0], GRAY, 255)),
    ),
    "tif palette": (tiff(GRAY, "palette", colormap=PALETTE.T.astype(np.uint16) * 257), PALETTE[GRAY]),
    "png rgb": (png(RGB, 2), RGB),
    "png opacity": (png(CUTOUT, 6), ON_WHITE),
    "png faded": (png(joined(RGB, np.full_like(BAND, 204)), 6), (RGB * 0.8 + 51).round()),
    "png gray with opacity": (png(joined(GRAY, SHAPE), 4), gray(np.where(SHAPE[..., 0], GRAY, 255))),
    "png palette": (png(GRAY, 3, PLTE=PALETTE.tobytes()), PALETTE[GRAY]),
    "png palette with opacity": (
        png(GRAY, 3, PLTE=PALETTE.tobytes(), tRNS=ALPHAS.tobytes()),
        np.where(ALPHAS[GRAY][..., None], PALETTE[GRAY], 255),
    ),
    "png transparent colour": (
        png(RGB, 2, tRNS=RGB[3, 4].astype(">u2").tobytes()),
        np.where((RGB[3, 4] == RGB).all(2, keepdims=True), 255, RGB),
    ),
    "webp opacity": (file_of(Picture.fromarray(CUTOUT), "WEBP", lossless=True, exact=True), ON_WHITE),
    "tif cmyk": (tiff(CMYK, "separated"), BY_INK),
    "tif cmyk in planes": (tiff(CMYK, "separated", **SEPARATE), BY_INK),
    "tif lab": (tiff(LAB, "cielab"), np.asarray(BY_LAB)),
    "ppm rgb": (ppm(RGB, 255), RGB),
    "ppm 4 bits": (ppm(RGB // 16, 15), RGB // 16 * 17),
}
HIDDEN16 = np.where(SHAPE, RGB16, 65535).astype(np.uint16)  # below transparency
DEEP = {
    "tif rgb 16": tiff(RGB16),
    "tif rgb 16 big-endian": tiff(RGB16, byteorder=">"),
    "tif rgb 16 compressed": tiff(RGB16, compression="zlib", predictor=True),
    "tif rgb 16 compressed big-endian": tiff(RGB16, compression="zlib", byteorder=">"),
    "tif rgb 16 in tiles": tiff(RGB16, tile=(16, 16)),
    "tif rgb 16 in strips": tiff(RGB16, rowsperstrip=7),
    "tif rgb 16 BigTIFF": tiff(RGB16, bigtiff=True),
    "tif rgb 16 in pages": tiff(np.stack([RGB16, RGB16 // 2])),
    "tif opacity 16": tiff(joined(HIDDEN16, SHAPE16), extrasamples=(2,)),
    "png rgb 16": png(RGB16, 2),
    "png opacity 16": png(joined(HIDDEN16, SHAPE16), 6),
    "png transparent colour 16": png(RGB16, 2, tRNS=RGB16[3, 4].astype(">u2").tobytes()),
    "png gray with opacity 16": png(joined(GRAY16, SHAPE16), 4),
    "ppm 12 bits": ppm(RGB16, 4095),
    "ppm 16 bits": ppm(RGB16, 65535),
    "ppm 16 bits as text": b"P3 40 60 65535\n" + " ".join(map(str, RGB16.ravel())).encode() + b"\n",
}
BANDS, OPACITY = "samples of .* per pixel", "called opacity"
REFUSED = {
    "tif near infrared": (tiff(joined(RGB, BAND), extrasamples=(0,)), "4 " + BANDS),
    "tif near infrared as opacity": (tiff(joined(RGB, BAND), extrasamples=(2,)), OPACITY),
    "png near infrared as opacity": (png(joined(RGB, BAND), 6), OPACITY),
    "png near infrared 16 as opacity": (png(joined(RGB16, BAND16 * 16), 6), OPACITY),
    "png without opacity": (png(joined(RGB, 0 * SHAPE), 6), "opacity is 0 everywhere"),
    "tif near infrared 16": (tiff(joined(RGB16, BAND16), extrasamples=(0,)), "4 " + BANDS),
    "tif near infrared 16 as opacity": (tiff(joined(RGB16, BAND16 * 16), extrasamples=(2,)), OPACITY),
    "tif premultiplied 16": (tiff(joined(RGB16, SHAPE16), extrasamples=(1,)), "4 " + BANDS),
    "tif premultiplied gray": (
        tiff(joined(GRAY, SHAPE), "minisblack", extrasamples=(1,)),
        "2 " + BANDS,
    ),
    "tif 5 bands": (tiff(joined(RGB, BAND, BAND), extrasamples=(0, 0)), "5 " + BANDS),
    "tif opacity and a band": (tiff(joined(RGB, SHAPE, BAND), extrasamples=(2, 0)), "5 " + BANDS),
    "tif two channels": (tiff(joined(GRAY, BAND), "minisblack", extrasamples=(0,)), "2 " + BANDS),
    "tif two channels 16": (tiff(joined(GRAY16, BAND16), "minisblack", extrasamples=(0,)), "2 " + BANDS),
    "tif gray with opacity 16": (tiff(joined(GRAY16, SHAPE16), "minisblack", extrasamples=(2,)), BANDS),
    "tif three gray 16": (tiff(RGB16, "minisblack", planarconfig="contig"), "3 samples of 16 bits"),
    "tif 13 bands": (tiff(np.repeat(BAND, 13, 2), "minisblack", **SEPARATE), "13 samples of 8 bits"),
    "tif 13 bands BigTIFF": (
        tiff(np.repeat(BAND, 13, 2), "minisblack", bigtiff=True, **SEPARATE),
        "13 " + BANDS,
    ),
    "tif cmyk and a band": (tiff(joined(CMYK, BAND), "separated", extrasamples=(0,)), "5 " + BANDS),
    "tif cmyk 16": (tiff(CMYK.astype(np.uint16), "separated"), "4 samples of 16 bits"),
    "tif lab 16": (tiff(RGB16, "cielab"), "3 samples of 16 bits"),
    "tif rgb 16 in planes": (tiff(RGB16, **SEPARATE), "3 samples of 16 bits"),
    "tif rgb float": (tiff(RGB.astype(np.float32)), "3 samples of 32 bits floating point"),
    "tif gray, white as 0, 16": (tiff(GRAY16, "miniswhite"), "16 bits per pixel, with white as 0"),
    "tif gray, white as 0, float": (
        tiff(GRAY.astype(np.float32), "miniswhite"),
        "floating point .* white as 0",
    ),
    "tif signed": (tiff(GRAY.astype(np.int8), "minisblack"), "a sample of 8 bits signed"),
    "tif double": (tiff(GRAY.astype(np.float64), "minisblack"), "a sample of 64 bits floating point"),
    "tif long": (tiff(GRAY.astype(np.int64), "minisblack"), "a sample of 64 bits signed"),
    "tif large": (tiff(GRAY.astype(np.uint32) * 2**24, "minisblack"), "above 2147483647"),
}


@pytest.fixture(scope="module", params=["copy", "raw"])
def prepared(request, tmp_path_factory) -> tuple[Manifest, dict[str, np.ndarray]]:
    """The manifest of all of them in one data set, and the pixels by name."""
    files = {name: content for name, (content, _) in (READ | REFUSED).items()} | DEEP
    files = {f"{name}.{name.split()[0]}": content for name, content in files.items()}
    reader = stored(tmp_path_factory.mktemp(request.param), files, encode=request.param)
    return reader.manifest, pixels_by_key(reader)


def test_pixels_are_those_of_numpy(prepared) -> None:
    for name, (_, expected) in READ.items():
        difference = np.abs(prepared[1][name] - expected.astype(float)).max()
        assert difference <= ("cmyk" in name), (name, difference)


def values(name: str) -> np.ndarray:
    """What a deep file holds."""
    return gray(GRAY16) if "gray" in name else RGB16


def shown(name: str) -> np.ndarray:
    """(60, 40) bool: where a deep file is opaque."""
    if "colour" in name:
        return (RGB16[3, 4] != RGB16).any(2)
    return SHAPE[..., 0] > 0 if "opacity" in name else np.ones((60, 40), bool)


def test_deep_colours_share_their_levels(prepared) -> None:
    """Measured on the visible pixels of all channels, so that hues stay."""
    manifest, found = prepared
    everything = np.concatenate([values(name)[shown(name)].ravel() for name in DEEP]).astype(np.float64)
    black, white = np.percentile(everything, STORAGE["percentiles"])
    assert manifest.levels["RGB;16"] == pytest.approx((black, white))
    for name in DEEP:
        scaled = ((values(name) - black) / (white - black)).clip(0, 1)
        assert np.array_equal(found[name], np.where(shown(name)[..., None], np.round(255 * scaled), 255)), (
            name
        )


def test_what_would_be_lost_is_left_out_with_the_reason(prepared) -> None:
    manifest, _ = prepared
    skipped = manifest.splits["train"].skipped
    assert skipped.keys() == REFUSED.keys()
    for name, (_, reason) in REFUSED.items():
        assert re.search(reason, skipped[name]), (name, skipped[name])


def test_an_encoder_without_levels_refuses_deep_colours(tmp_path) -> None:
    """Also those of a picture that Pillow has decoded."""
    path = tmp_path / "a.tif"
    path.write_bytes(DEEP["tif rgb 16"])
    with pytest.raises(ValueError, match=r"a.tif .*16-bit colour without .* levels.* convert"):
        IMAGENET.decoded(path)
    known = IMAGENET.model_copy(update={"levels": {"RGB;16": (0, 4080)}})
    with Picture.open(path) as picture:
        assert np.array_equal(known.decoded(picture), RGB)
        with pytest.raises(ValueError, match="reduced .* to 8; give the path"):
            known.decoded(picture)
