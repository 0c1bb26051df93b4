"""Features of whole splits from a finished encoder."""

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.to_device import normalisation
from cl.runtime.distributed import gather, rank, ranks
from cl.runtime.machine import Machine
from cl.sources import Source

BATCH = 256
FEW = 1024  # images that this process reads faster itself than it starts data workers


class Pixels(nn.Module):
    """No encoder at all: the pixels of an image, centred channel by channel, as one vector."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) to (N, 3 s s) with s = min(S, 32)."""
        if images.shape[-1] > 32:
            images = F.adaptive_avg_pool2d(images, 32)
        return (images - images.mean((2, 3), keepdim=True)).flatten(1)


class Unit(nn.Module):
    """Rows of length one: the features of a backbone, and behind them those of each head."""

    def __init__(self, backbone: nn.Module, heads: list[nn.Module]) -> None:
        super().__init__()
        self.backbone, self.heads = backbone, nn.ModuleList(heads)
        self.train(backbone.training)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, S, S) to (N, D) float32 for the backbone and each head."""
        features = self.backbone(images)
        return tuple(
            F.normalize(x.float(), dim=1) for x in (features, *(head(features) for head in self.heads))
        )


def extract(
    encoder: nn.Module, reader: Reader, source: Source, machine: Machine, positions: np.ndarray | None = None
) -> Tensor:
    """(n, D) float32 on the device: the encoder's outputs in eval mode, in the order of the index (or of `positions`).

    The processes of a run share the work, and each has all of it in the end.
    """
    return extract_all(encoder, reader, source, machine, positions)[0]


@torch.no_grad()
def extract_all(
    encoder: nn.Module,
    reader: Reader,
    source: Source,
    machine: Machine,
    positions: np.ndarray | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """The same for an encoder with several outputs, each kept as `dtype`."""
    mean, std = normalisation(source, machine.device)
    was_training = encoder.training
    encoder.eval()
    positions = np.arange(len(reader)) if positions is None else positions
    share = -(-len(positions) // ranks())
    padded = np.pad(positions, (0, share * ranks() - len(positions)), mode="edge")
    data = EvalSet(
        reader,
        resize=source.resize,
        crop=source.crop,
        positions=padded[rank() * share : (rank() + 1) * share],
    )
    kept: list[Tensor] = []
    done = 0
    for images in data.batches(BATCH, machine.workers if share > FEW else 0):
        x = images.to(machine.device).float().div_(255).sub_(mean).div_(std)
        with machine.autocast():
            found = encoder(x.contiguous(memory_format=torch.channels_last))
        found = found if isinstance(found, tuple) else (found,)
        kept = kept or [part.new_empty(share, part.shape[1], dtype=dtype) for part in found]
        for whole, part in zip(kept, found, strict=True):
            whole[done : done + len(x)] = part
        done += len(x)
    encoder.train(was_training)
    return [gather(whole)[: len(positions)] for whole in kept]


def fingerprint(module: nn.Module) -> str:
    """A hash of every parameter and buffer: equal only if all of them are, bit for bit."""
    sha = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        sha.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()
