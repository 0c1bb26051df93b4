"""Our side: an experiment at a tiny size in float64, whose inputs come from a seed on any machine."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.parameters import parameters
from cl.networks.batch_norm import GroupBatchNorm
from cl.networks.heads import NormLinear
from cl.objective.batch import Batch
from cl.runtime.distributed import local_part, mean_over_ranks
from cl.runtime.machine import Machine
from cl.training import optim
from cl.training.loop import replicated
from pipeline.support.pretraining import build

STEPS, IMAGES = 5, 8  # images of a batch
NORMS = (nn.modules.batchnorm._BatchNorm, GroupBatchNorm)
HEADS = ("predictor", "group_head", "patch_projector", "jigsaw")  # besides the projector
WEIGHTED = (nn.Conv2d, nn.Linear)
TINY = (
    *("evaluation=[]", "transfer=[]", "analysis=[]", "baseline=[]", "backbone=resnet18"),
    *(f"optim.batch_size={IMAGES}", "optim.scaling=none", "optim.warmup_epochs=0"),
    *("optim.epochs=5", "optim.base_lr=0.02"),
)


class Experiment:
    """A method, its loss and its optimizer, stepped as `cl.training.loop.train` does.

    Its weights do not depend on how PyTorch draws normal numbers, which differs between processors.

    Args:
        steps_per_epoch: 1 for schedules that change by epoch.
        images: in the training split.
    """

    def __init__(self, overrides: tuple[str, ...], steps_per_epoch: int = STEPS, images: int = 24) -> None:
        self.params = parameters(*TINY, *overrides)
        self.task = build(self.params, Machine(torch.device("cpu"), 0, "fp32"), images).double()
        self.method: Any = self.task.method
        draw_weights(self.method)
        fixed = self.method.predictor if self.params.optim.predictor_lr == "fixed" else None
        part = optim.Part(self.task, rate_1d=self.params.optim.lr_scale_1d)
        self.optimizer = optim.build(self.params.optim, [part], fixed)
        self.model = replicated(self.task.train())
        self.steps_per_epoch, self.step, self.images = steps_per_epoch, 0, images
        self.losses: list[float] = []
        self.norms: dict[str, dict[str, list[float]]] = {"gradients": {}, "state": {}}

    @property
    def progress(self) -> float:
        """The fraction of the steps that are done."""
        return self.step / STEPS

    def lr(self) -> float:
        """The learning rate of this step."""
        config = self.params.optim
        return config.peak_lr * optim.lr_factor(config, self.step, STEPS, self.steps_per_epoch)

    def begin(self) -> None:
        """Let the method know the step, before anything is drawn for it."""
        self.task.begin_step(self.step, self.progress)
        if self.step % self.steps_per_epoch == 0:
            self.task.begin_epoch(self.step // self.steps_per_epoch)
        optim.set_lr(self.optimizer, self.params.optim.peak_lr, self.lr() / self.params.optim.peak_lr)

    def backward(self, views: list[Tensor]) -> Tensor:
        """The loss of these views, a mean over all processes; leaves the (clipped) gradients."""
        labels = torch.zeros(len(views[0]), dtype=torch.int64)
        loss = self.model(Batch(views, labels, local_part(self.positions())))
        loss.backward()
        self.norm = optim.clip_gradients(self.optimizer, self.params.optim)
        for name, p in self.method.named_parameters():
            if p.grad is not None:
                self.norms["gradients"].setdefault(name, []).append(float(p.grad.norm()))
        mean = mean_over_ranks(loss.detach())
        self.losses.append(float(mean))
        return mean

    def update(self) -> None:
        """Take the optimizer's step; then what the method does after it."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.task.after_step(self.progress)
        for name, value in self.method.state_dict().items():
            if value.is_floating_point():
                self.norms["state"].setdefault(name, []).append(float(value.norm()))

    def numbers(self) -> dict[str, Any]:
        """The losses, and norms of the gradients and of the state after each step."""
        return {"losses": self.losses, **self.norms}

    def positions(self) -> Tensor:
        """(N,): which images of the split all processes' batch consists of."""
        return (self.step * IMAGES + torch.arange(IMAGES)) % self.images

    def parts(self) -> dict[str, list[nn.Module]]:
        """The modules that have counterparts on the authors' side."""
        method = self.method
        parts = {
            "online": [method.backbone, method.projector],
            "heads": [getattr(method, name, None) for name in HEADS],
            "target": [getattr(method, "target", None)],
        }
        found = {name: [m for m in modules if m is not None] for name, modules in parts.items()}
        return {name: modules for name, modules in found.items() if modules}


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers of mean 0 and variance 1, the same to the last bit on every machine."""
    return (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5) * 12**0.5


@torch.no_grad()
def draw_weights(method: nn.Module, seed: int = 0) -> None:
    """He's scale for matrices, scales near 1 and shifts near 0 for norms; the target equals the encoder."""
    generator = torch.Generator().manual_seed(seed)
    target = getattr(method, "target", None)
    copied = set() if target is None else set(target.modules())
    for module in (module for module in method.modules() if module not in copied):
        if isinstance(module, WEIGHTED):
            fan_in = module.weight[0].numel()
            module.weight.copy_(uniform(module.weight.shape, generator) * (2 / fan_in) ** 0.5)
            if isinstance(module, NormLinear):
                module.weight.copy_(nn.functional.normalize(module.weight, dim=1))
        if isinstance(module, NORMS) and module.weight is not None:
            module.weight.copy_(1 + 0.1 * uniform(module.weight.shape, generator))
        if isinstance(module, (*NORMS, *WEIGHTED)) and module.bias is not None:
            module.bias.copy_(0.1 * uniform(module.bias.shape, generator))
    if target is not None:
        for ours, online in zip(target, (method.backbone, method.projector), strict=True):
            ours.load_state_dict(online.state_dict())
    rows_of = {name: rows for name, rows in method.named_buffers() if name.endswith("rows")}  # queues, banks
    for rows in [*rows_of.values(), *method.parameters(recurse=False)]:
        if rows.ndim:
            rows.copy_(nn.functional.normalize(uniform(rows.shape, generator), dim=-1))


def draw_views(step: int, sizes: list[int]) -> list[Tensor]:
    """A view (N / W, 3, S, S) of each size, this process's part: an image of its own and noise."""
    generator = torch.Generator().manual_seed(1000 + step)
    views = []
    base = uniform((IMAGES, 3, max(sizes), max(sizes)), generator)
    for size in sizes:
        noise = uniform((IMAGES, 3, size, size), generator)
        views.append(local_part(base[..., :size, :size] + 0.7 * noise).contiguous())
    return views
