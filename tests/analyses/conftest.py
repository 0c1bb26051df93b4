"""What an analysis is given, of an untrained method, and the shipped configurations."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from cl import config
from cl.analyses import AnalysisContext
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.methods import Setup
from cl.runtime.machine import Machine
from cl.runtime.registry import module_of
from pipeline.support.locations import transform
from tests.support.methods import teacher_of
from tests.support.project import ROOT, compose
from tests.support.tiny import TinyBackbone

LOG = [
    {"epoch": 1.0, "loss": 8.0, "knn_top1": 50.0, "knn_embedding_top1": 40.0, "alignment": 0.4},
    {"epoch": 2.0, "loss": 6.0, "knn_top1": 45.0, "knn_embedding_top1": 44.0, "alignment": 0.3},
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def analysed(
    shard_folder: Path, tmp_path: Path, here: Machine, quiet: Progress
) -> Callable[..., AnalysisContext]:
    """Makes the context of an analysis, with changes, that writes to `tmp_path / "out"`."""

    def make(params: config.Params, backbone: nn.Module | None = None, **changes: object) -> AnalysisContext:
        torch.manual_seed(0)
        train, val = Reader(shard_folder, "train"), Reader(shard_folder, "val")
        about = params.temperature, params.patches, 1, 0, len(train)
        teacher = teacher_of(params.method, len(train))
        setup = Setup(backbone or TinyBackbone(), *about, teacher=teacher)
        (tmp_path / "out").mkdir(exist_ok=True)
        method = module_of("methods", params.method.kind).Method(params.method, setup).eval().to(here.device)
        usual = {
            "method": method,
            "backbone": method.evaluated[0],
            "views": list(params.views.values()),
            "train": train,
            "val": val,
            "transform": transform(params.dataset),
            "epochs": [row | {"uniformity": -2.0, "effective_rank": 20.0} for row in LOG],
            "kept": {},
            "seed": 0,
            "machine": here,
            "progress": quiet,
            "out": tmp_path / "out",
        }
        return AnalysisContext(**{**usual, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="package")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """The shipped configuration of every analysis, by its kind."""
    names = [path.stem for path in (ROOT / "pipeline/conf/analysis").glob("*.yaml")]
    values = compose(tmp_path_factory.mktemp("conf"), f"analysis=[{','.join(names)}]")["analyses"]
    return {entry["kind"]: entry for entry in values.values()}
