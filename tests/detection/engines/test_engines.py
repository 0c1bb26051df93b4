"""The choice of an engine."""

import pytest

from cl.detection.engines import engine
from tests.support.detectron2 import installed


@pytest.mark.skipif(installed, reason="detectron2 is installed")
def test_an_engine_that_is_not_installed_is_refused() -> None:
    message = "detectron2 is not installed; run `make detectron2` to compile it, or choose engine=torchvision"
    with pytest.raises(ValueError, match=message):
        engine("detectron2")
