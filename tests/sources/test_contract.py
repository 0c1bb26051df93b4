"""What every data source on disk keeps."""

import io
from urllib.error import URLError

import pytest
from PIL import Image as Picture

from cl.runtime.kinds import kinds, module_of
from cl.sources import UNLABELLED
from cl.sources._shared import archives
from tests.support.project import compose


def config_of(kind, tmp_path):  # type: ignore[no-untyped-def]
    """The shipped settings; a class folder's needs the name of the folder."""
    names = {"folder": ["dataset.name=birds"]}
    values = compose(tmp_path, f"dataset={kind}", *names.get(kind, []))["dataset"]
    return module_of("sources", kind).Config.model_validate(values)


@pytest.mark.parametrize("kind", kinds("sources"))
def test_a_source_lists_its_images_or_says_what_to_put_where(kind, tmp_path, monkeypatch) -> None:
    def no_network(*_: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(archives, "download_url", no_network)
    config = config_of(kind, tmp_path)
    try:
        splits = module_of("sources", kind).splits(config, tmp_path / "raw")
    except ValueError as error:
        assert "put " in str(error)
        assert "CL_RAW" in str(error)
        return
    for images in (splits.train, splits.val):
        assert images
        assert len({image.key for image in images}) == len(images)
        assert all(image.label == UNLABELLED or 0 <= image.label < len(splits.classes) for image in images)
        with Picture.open(io.BytesIO(images[0].read())) as picture:
            picture.load()
