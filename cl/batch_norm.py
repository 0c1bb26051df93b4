"""Batch norm whose statistics come from a stated number of images, not from what a device happens to hold."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupBatchNorm(nn.Module):
    """`nn.BatchNorm` applied to `groups` equal parts of the batch; takes over the parameters and buffers of `norm`.

    The running statistics take one update a step, with the mean over the groups. In eval mode it is `norm`.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, groups: int) -> None:
        super().__init__()
        assert norm.momentum is not None
        self.groups, self.eps, self.momentum = groups, norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, ...), rows image-major; N is a multiple of the number of groups."""
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        assert len(x) % self.groups == 0, f"{len(x)} rows in {self.groups} groups"
        means = self.running_mean.new_zeros(self.groups, x.shape[1])  # (G, C)
        variances = torch.ones_like(means)
        parts = [
            F.batch_norm(part, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
            for part, mean, variance in zip(x.chunk(self.groups), means, variances, strict=True)
        ]
        with torch.no_grad():
            self.running_mean.lerp_(means.mean(0), self.momentum)
            self.running_var.lerp_(variances.mean(0), self.momentum)
            self.num_batches_tracked += 1
        return torch.cat(parts)


def set_groups(module: nn.Module, groups: int) -> None:
    """Give every batch norm inside `module` this number of groups; one group leaves `nn.BatchNorm` as it is."""
    if groups == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, GroupBatchNorm(child, groups))
        else:
            set_groups(child, groups)
