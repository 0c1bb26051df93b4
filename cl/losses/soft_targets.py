"""Soft targets: the student's distribution over a queue follows the teacher's."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cl.losses import LossConfig
from cl.objective.terms import Contrast


class Config(LossConfig):
    """`teacher_temperature`: of the targets; the student has the method's temperature."""

    needs: ClassVar = {"contrasts", "teacher"}
    kind: Literal["soft_targets"]
    teacher_temperature: float = Field(gt=0)


def loss(contrast: Contrast, config: Config, progress: float) -> Tensor:
    """Cross-entropy of the student's softmax under the teacher's (SEED, Fang et al. 2021, section 3.2).

    L_i = -sum_j p_j log softmax_j(q_i . d_j / temperature), p_j = softmax_j(k_i . d_j / teacher_temperature),
    over the negatives and the key k_i itself, the last d_j. It is computed as the student's log-partition
    minus q_i . sum_j p_j d_j / temperature. As the teacher's temperature goes to 0, it becomes InfoNCE.
    """
    temperature = config.teacher_temperature
    means = [_expected(contrast, key, temperature) for key in contrast.positives.unbind(1)]  # (N, D) each
    student = replace(contrast, positives=torch.stack(means, 1)).positive_logits()
    partition = torch.logaddexp(contrast.negative_log_partition()[:, None], contrast.positive_logits())
    return contrast.mean_over_queries(partition - student)


def _expected(contrast: Contrast, key: Tensor, temperature: float) -> Tensor:
    """(N, D): the mean of the negatives and the key (N, D), weighted by the teacher's softmax."""
    with torch.enable_grad():
        key = key.detach().requires_grad_()
        teacher = replace(contrast, queries=key, positives=key[:, None], temperature=temperature)
        partition = teacher.negative_log_partition()
        (slope,) = torch.autograd.grad(partition.sum(), key)  # the mean of the negatives / temperature
    key, partition = key.detach(), partition.detach()
    own = (teacher.positive_logits().detach() - partition[:, None]).sigmoid()  # (N, 1)
    return own * key + (1 - own) * temperature * slope
