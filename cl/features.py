"""Features of whole splits from a finished encoder."""

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.machine import Machine
from cl.reader import EvalSet
from cl.shards import Reader
from cl.sources import Source
from cl.train import normalisation

BATCH = 256


class Pixels(nn.Module):
    """No encoder at all: the pixels of an image, centred channel by channel, as one vector."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) to (N, 3 s s) with s = min(S, 32)."""
        if images.shape[-1] > 32:
            images = F.adaptive_avg_pool2d(images, 32)
        return (images - images.mean((2, 3), keepdim=True)).flatten(1)


@torch.no_grad()
def extract(encoder: nn.Module, reader: Reader, source: Source, machine: Machine, positions=None) -> Tensor:  # type: ignore[no-untyped-def]
    """(n, D) float32 on the device: the encoder's outputs in eval mode, in the order of the index (or of `positions`)."""
    mean, std = normalisation(source, machine.device)
    was_training = encoder.training
    encoder.eval()
    data = EvalSet(reader, resize=source.resize, crop=source.crop, positions=positions)
    parts = []
    for images in data.batches(BATCH, machine.workers):
        x = images.to(machine.device).float().div_(255).sub_(mean).div_(std)
        with machine.autocast():
            parts.append(encoder(x.contiguous(memory_format=torch.channels_last)).float())
    encoder.train(was_training)
    return torch.cat(parts)


def fingerprint(module: nn.Module) -> str:
    """A hash of every parameter and buffer: equal only if all of them are, bit for bit."""
    sha = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        sha.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()
