"""Distillation: keys of a teacher that never moves; its queue; what the teacher sees."""

import torch

from cl.networks.teacher import SeeingTeacher
from tests.support.methods import TAU, build, loss_config, mean_loss, task_of, train_step, training_batch


def test_the_loss_is_infonce_against_the_queue_without_the_image_s_own_rows() -> None:
    """The images were in the step before: their rows equal their keys, and do not count."""
    method = build("distill", queue=12)
    method.eval()
    batch = training_batch("distill", {}, 6, 0)
    task = task_of(method)
    train_step(task, 0, batch)
    rows, features = method.queue.rows, method.teacher.teacher.features[batch.positions]
    torch.testing.assert_close(rows[:6], features)
    losses = []
    for view in batch.views:
        for i, query in enumerate(method.embed(view)):
            logits = torch.stack([query @ row / TAU for j, row in enumerate(rows) if j != i])
            positive = query @ features[i] / TAU
            losses.append((positive.exp() + logits.exp().sum()).log() - positive)
    theirs = torch.stack(losses).mean()
    torch.testing.assert_close(mean_loss(method, batch, loss_config("infonce", alpha=None)), theirs)


def test_a_teacher_sees_the_same_views_in_its_own_size_and_normalisation() -> None:
    pixels = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    student, own = torch.rand(2, 2, 3, dtype=torch.float64) + 0.1
    seen = []

    class Eye(torch.nn.Module):
        def forward(self, images):
            seen.append(images)
            return images.mean((2, 3))

    def normalised(values):
        mean, std = values[..., None, None]
        return (pixels - mean) / std

    keys = SeeingTeacher(Eye(), 12, student, own).embed(normalised(student), torch.arange(2))
    torch.testing.assert_close(seen[0], normalised(own))
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(2, dtype=torch.float64))
    SeeingTeacher(Eye(), 8, student, own).embed(pixels, torch.arange(2))
    assert seen[1].shape == (2, 3, 8, 8)
