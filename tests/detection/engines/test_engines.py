"""The choice of an engine."""

import pytest

from cl.detection.engines import engine
from tests.support.detectron2 import installed


@pytest.mark.skipif(installed, reason="detectron2 is installed")
def test_an_engine_that_is_not_installed_is_refused() -> None:
    message = "detectron2 is not installed; run `make detectron2` to compile it, or choose engine=torchvision"
    with pytest.raises(ValueError, match=message):
        engine("detectron2")


@pytest.mark.skipif(not installed, reason="detectron2 is not installed")
def test_an_installed_engine_exports_a_detector_and_an_evaluation() -> None:
    assert engine("detectron2").Detector
    assert engine("detectron2").evaluate
