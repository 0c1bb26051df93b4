"""The losses as modules for any training loop: `loss(z0, z1)` of the projector's outputs, as in lightly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from cl.losses import (
    LossConfig,
    barlow_twins,
    cosine,
    dcl,
    dclw,
    debiased,
    infonce,
    invariant_spread,
    jcl,
    sigmoid,
    vicreg,
)
from cl.networks.passes import full_precision, l2_normalize
from cl.networks.queue import NO_GROUP, Queue
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives, paired
from cl.objective.terms import Agreement, Contrast, Term, TwoViews, all_against_all
from cl.runtime.distributed import gather, global_rows, mean_over_ranks, ranks, single_process

Size = int | Sequence[int]
Kind = TypeVar("Kind")


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def _module(kind: type[Kind]) -> type[Kind]:
    """A dataclass without its defaults as attributes, which would hide an `nn.Parameter` of the same name."""
    kind = dataclass(eq=False, repr=False)(kind)
    for each in fields(cast("Any", kind)):
        if each.name in vars(kind):
            delattr(kind, each.name)
    return kind


class _Loss(nn.Module):
    """A loss of `cl.losses`, and whether processes share the batch.

    `forward` is not for torch.compile: blocks of logits share memory, and their number depends on the batch.
    """

    kind: ModuleType  # of the loss
    fixed: ClassVar[dict[str, Any]] = {}  # the fields of its `Config` that no attribute sets
    names: ClassVar[dict[str, str]] = {}  # the attributes that set the others, where their names differ
    gather_distributed: bool
    least_views: ClassVar[int] = 2
    progress = 1.0  # the fraction of the training that is done, for a loss that changes with it (JCL)

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """A module before its fields are set, as PyTorch requires."""
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module

    def __post_init__(self) -> None:
        self._config()  # refuses wrong numbers at once

    def _config(self) -> LossConfig:
        values: dict[str, Any] = {"kind": self.kind.__name__.rpartition(".")[2], **self.fixed}
        for each in self.kind.Config.model_fields.keys() - values.keys():
            values[each] = getattr(self, self.names.get(each, each))
        try:
            return cast("LossConfig", self.kind.Config.model_validate(values))
        except ValidationError as error:
            first = error.errors()[0]
            wrong = str(first["loc"][0])
            name = self.names.get(wrong, wrong)
            raise ValueError(f"{name}={first['input']!r}: {first['msg'].lower()}") from None

    def _loss(self, term: Term) -> Tensor:
        return cast("Tensor", self.kind.loss(term, self._config(), self.progress))


@_module
class _Contrastive(_Loss):
    """A loss on queries, their positives and their negatives.

    Without a memory bank, each of an image's V embeddings is a query; the V - 1 others are its positives, and
    the V (N - 1) embeddings of other images its negatives. With one, `z0` are the queries, the other views
    their positives, and the bank's rows the only negatives.
    """

    temperature: float | Tensor  # may be changed, also to a tensor with one number that learns
    memory_bank_size: Size = field(default=0, kw_only=True)
    gather_distributed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_temperature(self.temperature)
        size = self.memory_bank_size
        if size != 0 and (isinstance(size, int) or len(size) != 2 or min(size) < 1):
            raise ValueError(f"memory_bank_size={size}, expected (rows, width), such as (4096, 128), or 0")
        self.memory_bank = None if isinstance(size, int) else Queue(*size)

    @torch.compiler.disable
    def forward(self, *views: Tensor, groups: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Scalar: the mean over queries and positives, in nats.

        Args:
            views: two or more tensors (N, D), of any length: they are normalised here, in float32 or float64.
            groups: (N,) integers; images of one group are never negatives of each other. -1: no group.
            labels: (N,) integers; images of one label are positives (InfoNCELoss and DCLLoss). -1: no label.

        Raises:
            ValueError: the shapes do not fit, or the loss does not take what is given.
        """
        _check_views(views, self.least_views)
        temperature = _check_temperature(self.temperature)
        images = len(views[0])
        groups, labels = _per_image("groups", groups, views[0]), _per_image("labels", labels, views[0])
        if groups is not None and labels is not None:
            raise ValueError("found both groups and labels; give labels alone, which are groups too")
        if labels is not None and self.memory_bank is not None:
            raise ValueError("labels cannot be combined with a memory bank, whose rows have none; omit one")
        with single_process(not self.gather_distributed), _without_autocast(views[0]):
            if isinstance(temperature, Tensor):  # each process receives the mean of its gradients
                temperature = mean_over_ranks(temperature.to(views[0].device))
            rows = [l2_normalize(view) for view in views]
            if self.memory_bank is not None:
                return self._loss(self._against_bank(rows, groups, temperature))
            if images * ranks() == 1:
                raise ValueError("found 1 image, which has no negatives; give the data loader drop_last=True")
            batch = _batch(views[0], labels if groups is None else groups)
            contrast = Contrast(*all_against_all(rows, batch), temperature)
            return self._loss(contrast) if labels is None else self._supervised(contrast, batch)

    def _supervised(self, contrast: Contrast, batch: Batch) -> Tensor:
        raise ValueError(f"{type(self).__name__} is not defined for labels; use InfoNCELoss or DCLLoss")

    def _against_bank(
        self, views: list[Tensor], groups: Tensor | None, temperature: float | Tensor
    ) -> Contrast:
        """z0 against a copy of the bank, which then takes z1."""
        assert self.memory_bank is not None, "a memory bank"
        queries, keys = views[0], views[1]
        bank = self.memory_bank.to(queries.device)  # lightly's examples leave the loss on the CPU
        if keys.shape[1] != bank.rows.shape[1]:
            raise ValueError(
                f"found keys of width {keys.shape[1]}, expected the memory bank's {bank.rows.shape[1]}; set "
                f"memory_bank_size=({len(bank.rows)}, {keys.shape[1]})"
            )
        rows, row_groups = bank.rows.to(queries.dtype, copy=True), bank.groups.clone()
        query_groups = _batch(queries, groups).row_groups()
        if queries.requires_grad:
            room = len(bank.rows) - int(bank.oldest)
            groups = torch.full_like(queries[:, 0], -1).long() if groups is None else groups
            known = gather(groups.where(groups >= 0, NO_GROUP))[:room]
            bank.enqueue(gather(keys.detach())[:room], known, torch.Generator())
        negatives = Negatives(rows, groups=paired(query_groups, row_groups))
        return Contrast(queries, torch.stack(views[1:], 1), negatives, temperature)


@_module
class InfoNCELoss(_Contrastive):
    """InfoNCE, the loss of SimCLR (NT-Xent) and MoCo; with labels, SupCon. lightly's `NTXentLoss`.

    L = log(exp(s_p / t) + sum_k exp(s_k / t)) - s_p / t, with s_p the cosine of a positive pair, s_k those of
    the negatives, and t the temperature. With more than two views, the other positives are not negatives.

    With labels, the positives P of a query are all other embeddings of its label, and of its image (Khosla et
    al. 2020, eq. 2, L_out): L = log sum_a exp(s_a / t) - mean_{p in P} s_p / t, with a over all other
    embeddings, P included.

    Args:
        temperature: divides the cosines. It may be set later, and be a tensor or an `nn.Parameter` with one
            number, which receives its gradient: `InfoNCELoss(nn.Parameter(torch.tensor(0.07)))`.
        memory_bank_size: (rows, width) of a queue of earlier `z1`, the only negatives of `z0` (MoCo); 0: the
            negatives are the embeddings of other images in the batch. As in lightly, the queue begins with
            random unit rows; after a call in which `z0` requires a gradient, `z1` replaces the oldest rows;
            keys beyond the queue's end are dropped, and the next call begins at row 0. Unlike lightly's, the
            queue is part of the `state_dict`.
        gather_distributed: take negatives from all processes; each needs as many images. The mean of the
            processes' gradients, as DistributedDataParallel computes it, is the whole batch's gradient.
    """

    kind = infonce
    fixed: ClassVar = {"alpha": None, "positives": "each"}
    temperature: float | Tensor = 0.5
    memory_bank_size: Size = 0
    gather_distributed: bool = False

    def _supervised(self, contrast: Contrast, batch: Batch) -> Tensor:
        itself = global_rows(len(contrast.queries))[:, None]
        return _decoupled(contrast, batch, Negatives(contrast.negatives.rows, excluded=itself))


@_module
class EqCoLoss(_Contrastive):
    """InfoNCE as if there were `alpha` negatives, whatever their number (Zhu et al. 2020, EqCo, eq. 5).

    L = log(exp(s_p / t) + alpha / n sum_k exp(s_k / t)) - s_p / t for n negatives; otherwise as InfoNCELoss.
    """

    kind = infonce
    fixed: ClassVar = {"positives": "each"}
    temperature: float | Tensor = 0.1
    alpha: float = field(default=65536, kw_only=True)


@_module
class DCLLoss(_Contrastive):
    """Decoupled contrastive loss: the positive leaves the denominator (Yeh et al. 2022, eq. 5).

    L = log sum_k exp(s_k / t) - s_p / t. May be negative. With labels, the positives of a query are all other
    embeddings of its label, the negatives those of other labels: L = log sum_k exp(s_k / t) - mean_p s_p / t.
    Otherwise as InfoNCELoss. lightly's `DCLLoss` without `weight_fn`.
    """

    kind = dcl
    temperature: float | Tensor = 0.1

    def _supervised(self, contrast: Contrast, batch: Batch) -> Tensor:
        return _decoupled(contrast, batch, contrast.negatives)


@_module
class DCLWLoss(_Contrastive):
    """DCL with less weight on positives that already agree (Yeh et al. 2022, eq. 6). lightly's `DCLWLoss`.

    L = log sum_k exp(s_k / t) - w s_p / t, w = 2 - exp(s_p / sigma) / mean exp(s_p / sigma). The mean is over
    the queries of all processes that are gathered; no gradient flows through w.

    Where the paper leaves a choice: queries that `groups` leave without negatives count in neither mean. With
    more than two views, a query in view v has its p-th positive in view v + p, counted in a circle, and the
    mean in w is over the p-th positives of all queries, for each p.
    """

    kind = dclw
    fixed: ClassVar = {"detach_weight": True}
    temperature: float | Tensor = 0.1
    sigma: float = 0.5


@_module
class JCLLoss(_Contrastive):
    """Joint contrastive learning: infinitely many Gaussian positives (Cai et al. 2020, eq. S.2 and S.3).

    L = log(exp(m + strength / 2 v) + sum_k exp(s_k / t)) - m, with m and v the mean and variance of s_p / t
    over a query's positives; it needs three views or more. The paper's strength rises from 0: set the
    attribute `progress` to the fraction of the training that is done.
    """

    kind = jcl
    fixed: ClassVar = {"ramp": True}
    temperature: float | Tensor = 0.2
    least_views: ClassVar[int] = 3  # the variance of one positive is 0
    strength: float = field(default=4.0, kw_only=True)


@_module
class SigmoidLoss(_Contrastive):
    """Each pair classified by itself, in the form of SigLIP (Zhai et al. 2023, section 3.2).

    L = softplus(b - s_p / t) + sum_k softplus(s_k / t - b), with b = log n fixed for n negatives.
    """

    kind = sigmoid
    temperature: float | Tensor = 0.1


@_module
class DebiasedLoss(_Contrastive):
    """InfoNCE corrected for negatives of the query's class (Chuang et al. 2020, eq. 8).

    L = log(exp(s_p / t) + n g) - s_p / t, n negatives, g = (h - tau_plus mean exp(s_p / t)) / (1 - tau_plus).
    `tau_plus` is the probability of a negative of the query's class: 1 / classes. h = mean w_k exp(s_k / t),
    with w_k = 1, or for `beta` > 0 exp(beta s_k / t) over its mean (Robinson et al. 2021, eq. 4).

    Where the papers leave a choice: g is at least exp(-1 / t), where its logits get no gradient; above that,
    gradients flow through all of g, w_k included. With more than two views, a query has one g, with the mean
    over its positives. With `groups`, n is the number of negatives that a query has left.
    """

    kind = debiased
    temperature: float | Tensor = 0.5
    tau_plus: float = field(default=0.1, kw_only=True)
    beta: float = field(default=0.0, kw_only=True)


@_module
class InvariantSpreadLoss(_Contrastive):
    """Recognise the positive, and reject every negative (Ye et al. 2019, eq. 7).

    L = -log P(p) - sum_k log(1 - P(k)), with P the softmax of s / t over a positive and the negatives.
    """

    kind = invariant_spread
    temperature: float | Tensor = 0.1


@_module
class CosineLoss(_Loss):
    """Squared distance of unit vectors, 2 - 2 cos(z0, z1) (BYOL, eq. 2).

    2 + 2 x lightly's `NegativeCosineSimilarity`. Detach the targets: `loss(predictor(z0), z1.detach())`.
    """

    kind = cosine

    @torch.compiler.disable
    def forward(self, *views: Tensor) -> Tensor:
        """Scalar in [0, 4]: the mean over the queries `z0` (N, D) and their targets `z1`, ... (N, D)."""
        _check_views(views)
        with _without_autocast(views[0]):
            first, *others = (l2_normalize(view) for view in views)
            return self._loss(Agreement(first, torch.stack(others, 1)))


class _OfTwoViews(_Loss):
    @torch.compiler.disable
    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        """Scalar, of two views (N, D) as the projector gives them."""
        _check_views((z0, z1))
        with single_process(not self.gather_distributed), _without_autocast(z0):
            if len(z0) * ranks() == 1:
                raise ValueError("found 1 image, which has no variance; give the data loader drop_last=True")
            return self._loss(TwoViews(full_precision(z0), full_precision(z1)))


@_module
class BarlowTwinsLoss(_OfTwoViews):
    """The views' cross-correlation C becomes the identity (Zbontar et al. 2021, eq. 1). As lightly's.

    L = sum_i (1 - C_ii)^2 + lambda_param sum_{i != j} C_ij^2.
    """

    kind = barlow_twins
    names: ClassVar = {"redundancy": "lambda_param"}
    lambda_param: float = 5e-3
    gather_distributed: bool = False


@_module
class VICRegLoss(_OfTwoViews):
    """Equal views, with spread and without correlation (Bardes et al. 2022, eq. 6). As lightly's.

    L = lambda_param s(z0, z1) + mu_param [v(z0) + v(z1)] / 2 + nu_param [c(z0) + c(z1)], with s the mean
    squared difference, v the mean of max(0, 1 - standard deviation), c the squared covariances over D.
    """

    kind = vicreg
    names: ClassVar = {"invariance": "lambda_param", "variance": "mu_param", "covariance": "nu_param"}
    lambda_param: float = 25.0
    mu_param: float = 25.0
    nu_param: float = 1.0
    gather_distributed: bool = False


def _decoupled(contrast: Contrast, batch: Batch, negatives: Negatives) -> Tensor:
    """The log-partition over `negatives` minus the mean positive logit, the mean positive's."""
    positives = _means_of_others(contrast.queries, batch)[:, None]
    term = replace(contrast, positives=positives, negatives=negatives)
    return dcl.loss(term, dcl.Config(kind="dcl"), 0.0)


def _means_of_others(rows: Tensor, batch: Batch) -> Tensor:
    """(N V, D): for each row, the mean of all ranks' other rows of its label."""
    own = batch.row_groups(len(rows) // len(batch.positions))
    assert own is not None, "labels"
    found, counts = gather(own).unique(return_counts=True)
    members = torch.searchsorted(found, own)
    sums = rows.new_zeros(len(found), rows.shape[1]).index_add(0, members, rows)
    sums = mean_over_ranks(sums) * ranks()
    return (sums[members] - rows) / (counts[members] - 1)[:, None]


def _batch(view: Tensor, groups: Tensor | None) -> Batch:
    positions = global_rows(len(view)).to(view.device)
    return Batch([], torch.full_like(positions, -1), positions, groups)


def _without_autocast(view: Tensor) -> torch.autocast:
    return torch.autocast(view.device.type, enabled=False)


def _check_views(views: Sequence[Tensor], least: int = 2) -> None:
    found = [
        f"{view.dtype} {tuple(view.shape)}" if isinstance(view, Tensor) else type(view).__name__
        for view in views
    ]
    fit = len(views) >= least and len(set(found)) == 1 and isinstance(views[0], Tensor)
    if not fit or not views[0].is_floating_point() or views[0].ndim != 2 or not views[0].numel():
        raise ValueError(
            f"found {', '.join(found) or 'no views'}; expected {least} or more float tensors of one "
            "shape (N, D): loss(z0, z1), with groups= and labels= by name"
        )


def _per_image(name: str, numbers: Tensor | None, view: Tensor) -> Tensor | None:
    """The groups or labels as int64 on the device of the views."""
    if numbers is None:
        return None
    numbers = torch.as_tensor(numbers, device=view.device)
    if numbers.shape != view.shape[:1] or numbers.is_floating_point():
        raise ValueError(
            f"found {name} of {numbers.dtype} and shape {tuple(numbers.shape)}, expected an integer for each "
            f"of the {len(view)} images"
        )
    return numbers.long()


def _check_temperature(found: object) -> float | Tensor:
    """The temperature, as a tensor without dimensions or a number; ValueError unless it is above 0."""
    number = found.item() if isinstance(found, Tensor) and found.numel() == 1 else found
    if not isinstance(number, Real) or not 0 < float(number) < math.inf:
        raise ValueError(f"temperature={number!r}, expected a number above 0")
    return found.reshape(()) if isinstance(found, Tensor) else float(number)
