"""The embedded photographs: what their patches are, and two processes that write them at once."""

from PIL import Image as Picture

from cl.images import photographs
from cl.sources import photos


def test_photos_are_twenty_classes_from_disjoint_bands(params, tmp_path) -> None:
    splits = photos.splits(params.dataset, tmp_path)
    assert len(splits.classes) == 20
    assert [len(splits.train), len(splits.val)] == [20 * 6, 20 * 3]
    with Picture.open(photographs.files()["china"]) as picture:
        train, val = photographs.bands(picture).values()
        assert train.width + val.width == picture.width
        assert train.height == val.height == picture.height


def test_a_process_that_is_second_uses_what_the_first_wrote(params, tmp_path, monkeypatch) -> None:
    write = photos._write_patches

    def after_another(config, root) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.setattr(photos, "_write_patches", write)
        photos.splits(config, tmp_path)
        write(config, root)

    monkeypatch.setattr(photos, "_write_patches", after_another)
    assert len(photos.splits(params.dataset, tmp_path).train) == 20 * 6
    assert len(list((tmp_path / "photos").iterdir())) == 1
