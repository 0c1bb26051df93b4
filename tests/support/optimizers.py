"""Settings of optimizers, to be changed by tests."""

from cl.training import optim

BASE = {
    "kind": "sgd",
    "batch_size": 512,
    "epochs": 10,
    "base_lr": 0.3,
    "reference_batch": 256,
    "scaling": "linear",
    "momentum": 0.9,
    "nesterov": False,
    "weight_decay": 0.01,
    "decay_1d": False,
    "warmup_epochs": 2,
    "schedule": "cosine",
    "milestones": [],
    "gamma": 0.1,
}


VARIANTS = {
    "moco_v3": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio"),
    "simclr": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="sum", order="ratio_rate"),
    "openselfsup": optim.Lars(eta=0.001, eps=0.0, adapt_1d=False, norm="parts", order="ratio_rate"),
    "larc": optim.Lars(eta=0.001, eps=1e-8, adapt_1d=True, norm="parts", order="ratio"),
    "fast_moco": optim.Lars(eta=0.001, eps=1e-8, adapt_1d=True, norm="parts", order="last"),
}


def config(**changes) -> optim.Config:  # type: ignore[no-untyped-def]
    """SGD with warm-up and a cosine, or what `changes` makes of it."""
    return optim.Config(**{**BASE, **changes})
