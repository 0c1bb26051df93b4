"""Flip, quarter turns, blur and changes of bands, of a batch of standardised crops on the training device."""

from functools import cache
from math import cos, pi, sin
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.data import augment as augment_cpu
from cl.data import augment_gpu
from cl.data.views import BandChanges, RandomNumbers, View
from cl.runtime.machine import to_device

UNCHANGED = BandChanges.model_validate(dict.fromkeys(BandChanges.model_fields, 0))
SEEDS = 2**24  # of noise: what a float32 counts without gaps


class BandParams(NamedTuple):
    """Parameters of N views, in the order of the stored rows; gain and offset are (N, C), others (N,)."""

    flip: Tensor  # flag
    turns: Tensor  # quarter turns, from 0 to 3
    sigma: Tensor  # of the blur, pixels; 0: no blur
    noise: Tensor  # standard deviation
    seed: Tensor  # of the noise
    near: Tensor  # factor of differences between bands
    turned: Tensor  # factor of the same, a quarter turn further
    gain: Tensor
    offset: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "BandParams":
        """From rows (N, 7 + 2 C)."""
        return cls(*rows[:, :7].unbind(1), *rows[:, 7:].chunk(2, 1))


def draws(channels: int) -> int:
    """Numbers per view."""
    return 7 + 2 * channels


def draw_band_params(view: View, rng: RandomNumbers, channels: int) -> list[float]:
    """A row of `BandParams`; always takes 13 + 3 C random numbers."""
    changes, (low, high) = view.bands or UNCHANGED, view.blur.sigma
    flip, turn, turns, blur, sigma, changed, noise, seed, gray, *common = rng.take(13)
    strength = float(changed < changes.p)
    gain, offset, saturation, hue = strength * (2 * np.array(common) - 1)
    saturation = 0 if gray < changes.grayscale else 1 + changes.saturation * saturation
    gains, offsets, kept = np.array(rng.take(3 * channels)).reshape(3, channels)
    remains = (kept >= changes.dropout) | (kept == kept.max())
    own_gain = 1 + strength * changes.band_gain * (2 * gains - 1)
    own_offset = strength * changes.band_offset * (2 * offsets - 1)
    return [
        flip < view.flip,
        1 + int(3 * turns) if turn < changes.turn else 0,
        low + (high - low) * sigma if blur < view.blur.p else 0,
        strength * changes.noise * noise,
        int(SEEDS * seed),
        saturation * cos(2 * pi * changes.hue * hue),
        saturation * sin(2 * pi * changes.hue * hue),
        *(remains * own_gain * (1 + changes.gain * gain)),
        *(remains * (own_offset + changes.offset * offset)),
    ]


def augment(images: Tensor, rows: Tensor, view: View) -> Tensor:
    """Flip, turn, blur, add noise, apply hue, saturation, gain and offset.

    Noise comes from the generator of the images' device, seeded for each view: devices give different noise.

    Args:
        images: (N, C, S, S) float32, standardised, channels-last.
        rows: (N, 7 + 2 C) float32 on the CPU; each row is a `BandParams`.

    Returns:
        (N, C, S, S) float32, channels-last.
    """
    on_cpu, params = BandParams.of(rows), BandParams.of(to_device(rows, images.device))
    x = images.clone(memory_format=torch.channels_last)  # data workers use the memory again
    for turns in range(4):
        for flip in (False, True):
            chosen = ((on_cpu.turns == turns) & (on_cpu.flip == flip)).nonzero()[:, 0]
            if len(chosen) and (turns or flip):
                some = to_device(chosen, x.device)
                flipped = images[some].flip(-1) if flip else images[some]
                x[some] = flipped.rot90(turns, (2, 3))
    _blur_(x, on_cpu.sigma, view.blur.kernel)
    for row in on_cpu.noise.nonzero()[:, 0].tolist():
        generator = torch.Generator(x.device).manual_seed(int(on_cpu.seed[row]))
        noise = torch.randn(x[row].shape, generator=generator, device=x.device)
        x[row].add_(noise, alpha=float(on_cpu.noise[row]))
    means = x.mean(1, keepdim=True)  # over bands, (N, 1, S, S)
    gain, offset = params.gain[:, :, None, None], params.offset[:, :, None, None]
    near, turned = (each[:, None, None, None] for each in (params.near, params.turned))
    further = x.permute(0, 2, 3, 1) @ to_device(_quarter_turn(x.shape[1]), x.device).T
    x.mul_(near).addcmul_(further.permute(0, 3, 1, 2), turned).addcmul_(means, 1 - near)
    return x.mul_(gain).add_(offset)


@cache
def _quarter_turn(channels: int) -> Tensor:
    """(C, C): delays each wave over the circle of bands by a quarter of its period; their mean becomes 0."""
    place = torch.arange(channels, dtype=torch.float64)
    lag = 2 * pi / channels * (place[:, None] - place)
    waves = range(1, (channels + 1) // 2)
    return (sum((torch.sin(wave * lag) for wave in waves), 0 * lag) * 2 / channels).float()


def _blur_(x: Tensor, sigma: Tensor, kernel: int) -> None:
    """Blur where sigma (N,), in pixels, is above 0; OpenCV is faster on a CPU, and equal but for rounding."""
    chosen = sigma.nonzero()[:, 0]
    if x.device.type == "cpu":
        for row in chosen.tolist():
            pixels = x[row].permute(1, 2, 0).numpy()
            blurred = augment_cpu.blur(pixels, float(sigma[row]), kernel)
            pixels[:] = blurred.reshape(pixels.shape)  # OpenCV drops the axis of a single band
    elif len(chosen):
        some, width = to_device(chosen, x.device), to_device(sigma[chosen], x.device)
        x[some] = augment_gpu.blur(x[some], width, kernel)
