"""What moving a batch to a GPU and augmenting it there asks of the GPU."""

import pytest
import torch

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl import config
from cl.data.to_device import HostBatch, ToDevice
from cl.data.transform import Transform
from cl.data.views import RandomNumbers, View, draw_colour_params
from cl.runtime.machine import Machine
from pipeline.support.locations import transform
from tests.support.project import compose

IMAGES = 32
HERE = Machine(GPU, 0, "fp32")


def host_batch(views: list[View], count: int = IMAGES) -> HostBatch:
    """Black images, with colours as drawn in training."""
    rows = [
        [draw_colour_params(view, RandomNumbers(0, 0, sample, number)) for number, view in enumerate(views)]
        for sample in range(count)
    ]
    numbers = torch.arange(count)
    images = [torch.zeros((count, view.size, view.size, 3), dtype=torch.uint8) for view in views]
    channels_first = [x.permute(0, 3, 1, 2) for x in images]
    return HostBatch(
        channels_first, torch.tensor(rows).float().transpose(0, 1), numbers, numbers, numbers, None, None
    )


@pytest.mark.parametrize("choices", [["views=mocov2"], ["views=byol"], ["views=pirl", "method=pirl"]])
def test_augmentation_never_waits_for_the_gpu(tmp_path, choices, monkeypatch) -> None:
    """A view takes as many operations for more images."""
    params = config.check(compose(tmp_path, *choices))
    views = [view for view in params.views.values() for _ in range(view.count)]
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)  # a simulated GPU has no streams
    found = []
    for count in (2 * IMAGES, IMAGES):
        with FakeGpu() as gpu:
            gpu.may_wait = False
            ready = ToDevice(transform(params.dataset), views, HERE)(host_batch(views, count))
        found.append(gpu.counts())
    assert found[0] == found[1]
    assert [tuple(x.shape) for x in ready.views] == [(IMAGES, 3, view.size, view.size) for view in views]
    assert {x.device for x in (*ready.views, ready.labels, ready.positions, ready.groups)} == {GPU}


def test_equal_views_are_augmented_in_one_call(params, monkeypatch) -> None:
    """Only to copy them takes an operation each."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    (view,), found = params.views.values(), []
    for count in (1, 4):
        with FakeGpu() as gpu:
            ToDevice(transform(params.dataset), count * [view], HERE)(host_batch(count * [view]))
        found.append(len(gpu.operations))
    assert found[1] == found[0] + 3


def test_another_stream_waits_for_what_it_reads(params, monkeypatch) -> None:
    """For the copy of mean and standard deviation."""
    events: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None: ...

        def wait_stream(self, other: str) -> None:
            events.append(f"waits for {other}")

    def copied(*_: object) -> tuple[None, None]:
        events.append("copied")
        return None, None

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"that of {device}")
    monkeypatch.setattr(Transform, "mean_and_std", copied)
    ToDevice(transform(params.dataset), [], Machine(torch.device("cuda"), 0, "fp32"))
    assert events == ["copied", "waits for that of cuda"]


def test_views_are_normalised_by_the_statistics_of_the_data(params, here) -> None:
    views = list(params.views.values())
    ready = ToDevice(transform(params.dataset), views, here)(host_batch(views))
    black = [-mean / std for mean, std in zip(params.dataset.mean, params.dataset.std, strict=True)]
    expected = torch.tensor(black)[:, None, None].expand_as(ready.views[0])
    torch.testing.assert_close(ready.views[0], expected)
