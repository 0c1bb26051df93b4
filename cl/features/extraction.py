"""Features of whole splits from a frozen encoder."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.console.progress import Count, silent
from cl.data.reader import Reader
from cl.data.sets import EvalSet, TrainSet
from cl.data.transform import Transform
from cl.runtime.distributed import gather, rank, ranks
from cl.runtime.machine import Machine, to_device

BATCH = 256
ON_GPU, ON_CPU = 2**31, 2**26  # bytes of images to cache at most: 14,000 of 224 px, 20,000 of 32 px
PIXELS = 32  # side of the images that `Pixels` compares, at most
FEW = 1024  # up to this number of images, reading them here is faster than starting data workers

Cache = dict[tuple[Reader, bytes], list[Tensor]]  # batches on the device, by reader and positions


class Pixels(nn.Module):
    """Replaces an encoder by the pixels of an image, centred per channel, as one vector."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, S, S) to (N, C s s) with s = min(S, PIXELS)."""
        if images.shape[-1] > PIXELS:
            images = F.adaptive_avg_pool2d(images, PIXELS)
        return (images - images.mean((2, 3), keepdim=True)).flatten(1)


class Unit(nn.Module):
    """Normalises the features of a backbone, and each head's output for them, to unit rows."""

    def __init__(self, backbone: nn.Module, heads: list[nn.Module]) -> None:
        super().__init__()
        self.backbone, self.heads = backbone, nn.ModuleList(heads)
        self.train(backbone.training)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, S, S) to (N, D) float32 for the backbone and each head."""
        features = self.backbone(images)
        outputs = [features, *(head(features) for head in self.heads)]
        return tuple(F.normalize(x.float(), dim=1) for x in outputs)


def extract(
    encoder: nn.Module, data: EvalSet, machine: Machine, count: Count = silent, cache: Cache | None = None
) -> Tensor:
    """(n, D) float32 on the device: the encoder's outputs in eval mode, in the order of `data`.

    The processes of a run share the work, and each returns all features. `count` shows the progress of long
    extractions; `cache` keeps small sets of images for later calls.
    """
    return extract_all(encoder, data, machine, count=count, cache=cache)[0]


@torch.no_grad()
def extract_all(
    encoder: nn.Module,
    data: EvalSet,
    machine: Machine,
    *,
    dtype: torch.dtype = torch.float32,
    count: Count = silent,
    cache: Cache | None = None,
) -> list[Tensor]:
    """As `extract`, for an encoder with several outputs, each stored as `dtype`; all must be finite."""
    per_rank = -(-len(data) // ranks())
    padded = np.pad(data.positions, (0, per_rank * ranks() - len(data)), mode="edge")
    local = EvalSet(data.reader, data.transform, padded[rank() * per_rank : (rank() + 1) * per_rank])
    stored: list[Tensor] = []
    done = 0
    with (count if per_rank > FEW else silent)(per_rank, "images to encode") as report:
        for outputs in _outputs(encoder, _images(local, machine, cache), data.transform, machine):
            stored = stored or [x.new_zeros(per_rank, x.shape[1], dtype=dtype) for x in outputs]
            for features, batch in zip(stored, outputs, strict=True):
                features[done : done + len(batch)] = batch
            done += len(outputs[0])
            report(len(outputs[0]))
    gathered = [gather(features)[: len(data)] for features in stored]
    for features in gathered:
        finite = features.isfinite()
        if not finite.all():  # the only wait for a GPU
            broken = (~finite.all(1)).nonzero()[:, 0].tolist()
            key = data.reader.keys[data.positions[broken[0]]].decode()
            raise FloatingPointError(
                f"the features of {len(broken)} of {len(data)} images are not finite, starting with {key}: "
                "the encoder has diverged, is damaged or overflows; lower optim.base_lr, or choose "
                "precision=fp32 or another encoder"
            )
    return gathered


@torch.no_grad()
def extract_views(
    encoder: nn.Module, data: TrainSet, machine: Machine, most: int
) -> tuple[Tensor, list[Tensor]]:
    """Positions (Q,) of at most `most` random images, and the encoder's outputs (Q, D) for a view of each.

    Each process encodes all, so they do not depend on the number of processes. The images of an incomplete
    last batch are left out. The encoder is in eval mode and has several outputs; it gets the first view.
    """
    to_input, steps = data.inputs(machine), min(data.plan.steps_per_epoch, most // data.plan.batch_size)
    positions: list[Tensor] = []
    outputs: list[tuple[Tensor, ...]] = []
    for host_batch in data.batches(0, steps, machine.workers):
        batch = to_input(host_batch)
        with machine.autocast():
            outputs.append(encoder(batch.views[0]))
        positions.append(batch.positions)
    return torch.cat(positions), [torch.cat(parts) for parts in zip(*outputs, strict=True)]


def _images(data: EvalSet, machine: Machine, cache: Cache | None) -> Iterator[Tensor]:
    """Batches (N, C, S, S) of evaluation views on the device."""
    key = data.reader, data.positions.tobytes()
    if cache and key in cache:
        yield from cache[key]
        return
    if data.transform.array(data.transform.crop).bytes * len(data) > (
        ON_CPU if machine.device.type == "cpu" else ON_GPU
    ):
        cache = None
    read = []
    for images in data.batches(BATCH, machine.workers if len(data) > FEW else 0):
        batch = to_device(images, machine.device)
        if cache is not None:
            read.append(batch.clone())  # a CPU's `batch` shares the memory of `images`, which is reused
        yield batch
    if cache is not None:
        cache[key] = read


def _outputs(
    encoder: nn.Module, images: Iterable[Tensor], transform: Transform, machine: Machine
) -> Iterator[tuple[Tensor, ...]]:
    """The encoder's outputs in eval mode, by batch."""
    was_training = encoder.training
    encoder.eval()
    for batch in images:
        x = transform.normalise(batch)
        with machine.autocast():
            outputs = encoder(x.contiguous(memory_format=torch.channels_last))
        yield outputs if isinstance(outputs, tuple) else (outputs,)
    encoder.train(was_training)
