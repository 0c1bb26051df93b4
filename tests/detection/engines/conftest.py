"""The experiment with the papers' transfers."""

import pytest

from cl.config import Params, check
from tests.support.detectron2 import TABLE
from tests.support.project import compose


@pytest.fixture(scope="package")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Params:
    data = ["dataset=imagenet", "views=mocov2", "backbone=resnet50"]
    nothing_else = ["evaluation=[]", "analysis=[]", "baseline=[]"]
    folder = tmp_path_factory.mktemp("imagenet")
    return check(compose(folder, *data, *nothing_else, f"transfer=[{','.join(TABLE)}]"))
