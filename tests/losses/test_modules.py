"""The losses as modules: a loop over queries in float64, lightly with only the import changed, processes."""

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import cl
from benchmarks.memory import growth
from cl.runtime.distributed import gather, local_part, mean_over_ranks
from tests.support.losses import assert_same, reference
from tests.support.processes import run_ranks

T, IMAGES, WIDTH = 0.3, 6, 5
GROUPS = torch.tensor([-1, 0, 0, 1, -1, 1])
LABELS = torch.tensor([2, 0, 2, -1, 0, 2])


MODULES = {
    "infonce": "InfoNCELoss",
    "eqco": "EqCoLoss",
    "dcl": "DCLLoss",
    "dclw": "DCLWLoss",
    "jcl": "JCLLoss",
    "sigmoid": "SigmoidLoss",
    "debiased": "DebiasedLoss",
    "hard": "DebiasedLoss",
    "invariant_spread": "InvariantSpreadLoss",
}
OPTIONS = {"hard": {"tau_plus": 0.2, "beta": 0.7}}


def logits(views: list[Tensor], groups: Tensor | None, bank: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """For each query, its positives' and its negatives' cosines over T."""
    z, found = [v / v.norm(dim=1, keepdim=True) for v in views], []
    for v in range(len(z) if bank is None else 1):
        for i in range(IMAGES):
            others = [z[(v + shift) % len(z)][i] for shift in range(1, len(z))]
            same = [j for j in range(IMAGES) if groups is not None and groups[j] == groups[i] >= 0]
            negatives = [x[j] for x in z for j in range(IMAGES) if j != i and j not in same]
            rows = torch.stack(negatives) if bank is None else bank
            found.append((torch.stack(others) @ z[v][i] / T, rows @ z[v][i] / T))
    return found


def random_views(count: int, images: int = IMAGES) -> list[Tensor]:
    torch.manual_seed(0)
    return [3 * torch.randn(images, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def built(name: str, **options) -> nn.Module:
    return getattr(cl, MODULES[name])(T, **OPTIONS.get(name, {}), **options)


@pytest.mark.parametrize("case", ["2 views", "3 views", "groups", "bank"])
@pytest.mark.parametrize("name", MODULES)
def test_a_loss_equals_the_loop_over_its_queries(name, case) -> None:
    views = random_views(2 if case == "2 views" and name != "jcl" else 3)
    loss = built(name, memory_bank_size=(8, WIDTH) if case == "bank" else 0)
    bank = loss.memory_bank.rows.double() if case == "bank" else None
    groups = GROUPS if case == "groups" else None
    assert_same(loss(*views, groups=groups), reference(name, logits(views, groups, bank), T), views)


@pytest.mark.parametrize("name", ["InfoNCELoss", "DCLLoss"])
@pytest.mark.parametrize("count", [2, 3])
def test_labels_give_supcons_l_out(name, count) -> None:
    """Khosla et al. 2020, eq. 2; decoupled, only other labels are in the denominator."""
    views = random_views(count)
    z = torch.cat([F.normalize(v, dim=1) for v in views])
    labels = LABELS.where(LABELS >= 0, -1 - torch.arange(IMAGES)).repeat(count)
    losses = []
    for i in range(len(z)):
        s = z @ z[i] / T
        positive = (labels == labels[i]) & (torch.arange(len(z)) != i)
        against = labels != labels[i] if name == "DCLLoss" else torch.arange(len(z)) != i
        losses.append(-(s[positive] - s[against].exp().sum().log()).mean())
    assert_same(getattr(cl, name)(T)(*views, labels=LABELS), torch.stack(losses).mean(), views)


def test_the_bank_remembers_groups() -> None:
    """A key of the query's group is no negative in later steps either; images without a group are."""
    loss, views = cl.DCLLoss(T, memory_bank_size=(2 * IMAGES, WIDTH)), random_views(2)
    loss(*views, groups=GROUPS)
    bank, (q, k) = loss.memory_bank.rows.double(), [F.normalize(v, dim=1) for v in views]
    values = []
    for i in range(IMAGES):
        counted = [not (GROUPS[i] >= 0 and GROUPS[i] == group) for group in GROUPS] + [True] * IMAGES
        values.append((bank[torch.tensor(counted)] @ q[i] / T).exp().sum().log() - q[i] @ k[i] / T)
    torch.testing.assert_close(loss(*views, groups=GROUPS), torch.stack(values).mean(), rtol=1e-6, atol=0)


def test_keys_without_groups_replace_keys_with_groups() -> None:
    loss, views, groups = cl.DCLLoss(T, memory_bank_size=(IMAGES, WIDTH)), random_views(2), GROUPS * 0
    loss(*views, groups=groups)
    loss(*views)
    expected = deepcopy(loss)(*views)
    assert loss(*views, groups=groups) == expected


@pytest.mark.parametrize("case", ["3 views", "groups", "bank", "tensor"])
@pytest.mark.parametrize("name", MODULES)
def test_a_temperature_can_be_learnt(name, case, monkeypatch) -> None:
    views, loss = random_views(3), built(name, memory_bank_size=(8, WIDTH) if case == "bank" else 0)
    bank = loss.memory_bank.rows.double() if case == "bank" else None
    groups = GROUPS if case == "groups" else None
    learnt = torch.tensor(T, dtype=torch.float64, requires_grad=True)
    loss.temperature = learnt if case == "tensor" else nn.Parameter(learnt.detach().clone())
    assert len([*loss.parameters()]) == (case != "tensor")
    ours = loss(*views, groups=groups)
    monkeypatch.setitem(globals(), "T", learnt)
    theirs = reference(name, logits(views, groups, bank), learnt)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    gradients = [torch.autograd.grad(x, t)[0] for x, t in ((ours, loss.temperature), (theirs, learnt))]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["InfoNCELoss", "DCLLoss"])
def test_a_learnt_temperature_with_labels(name) -> None:
    """Against the difference of two losses, as the temperature's gradient with labels has no loop here."""
    views, step = random_views(2), 1e-6
    loss = getattr(cl, name)(nn.Parameter(torch.tensor(T, dtype=torch.float64)))
    (gradient,) = torch.autograd.grad(loss(*views, labels=LABELS), loss.temperature)
    above, below = (getattr(cl, name)(T + d)(*views, labels=LABELS) for d in (step, -step))
    torch.testing.assert_close(gradient, (above - below) / (2 * step), rtol=1e-7, atol=0)


def test_numbers_may_change() -> None:
    views, loss = random_views(2), cl.DCLWLoss(0.2, 0.7)
    before = loss(*views)
    loss.temperature, loss.sigma = T, 0.5
    assert loss(*views) == cl.DCLWLoss(T, 0.5)(*views) != before


def test_the_strength_of_jcl_rises_with_the_progress() -> None:
    views, loss = random_views(3), cl.JCLLoss(T)
    loss.progress = 0.25
    assert loss(*views) == cl.JCLLoss(T, strength=1)(*views)


def test_a_compiled_loop_over_all_losses_is_compiled_once() -> None:
    """Later steps, with other temperatures and `progress`, compile nothing; the losses are never compiled."""
    from torch._dynamo.utils import counters

    layer, losses = nn.Linear(WIDTH, 4), [getattr(cl, name)() for name in cl.__all__ if name.endswith("Loss")]

    def step(views: Tensor) -> Tensor:
        z, total = [layer(view) for view in views], torch.zeros(())
        for loss in losses:
            total = total + loss(*(z if isinstance(loss, cl.JCLLoss) else z[:2]))
        return total

    torch._dynamo.reset()
    counters.clear()
    compiled, frames = torch.compile(step, backend="eager"), []
    for number in range(3):
        for loss in losses:
            loss.temperature, loss.progress = 0.1 + number, number / 3
        compiled(torch.randn(3, IMAGES, WIDTH)).backward()
        frames.append(counters["frames"]["total"])
    assert frames == [frames[0]] * 3
    assert frames[0] <= len(losses)


LIGHTLY = [
    ("NTXentLoss", "InfoNCELoss", {}),
    ("NTXentLoss", "InfoNCELoss", {"temperature": 0.1, "memory_bank_size": 0, "gather_distributed": False}),
    ("DCLLoss", "DCLLoss", {}),
    ("DCLWLoss", "DCLWLoss", {"temperature": 0.07, "sigma": 0.3}),
    ("BarlowTwinsLoss", "BarlowTwinsLoss", {}),
    ("VICRegLoss", "VICRegLoss", {"lambda_param": 10.0}),
]


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize(("theirs", "ours", "options"), LIGHTLY)
def test_lightlys_values_and_gradients_in_float32(theirs, ours, options) -> None:
    import lightly.loss

    torch.manual_seed(0)
    views = [torch.randn(64, 16, requires_grad=True) for _ in range(2)]
    results = [getattr(cl, ours)(**options)(*views), getattr(lightly.loss, theirs)(**options)(*views)]
    torch.testing.assert_close(*results, rtol=2e-6, atol=0)
    for a, b in zip(*(torch.autograd.grad(result, views) for result in results), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6 * float(b.abs().max()))


def test_the_cosine_loss_is_lightlys_as_a_distance() -> None:
    from lightly.loss import NegativeCosineSimilarity

    first, second = random_views(2)
    torch.testing.assert_close(
        cl.CosineLoss()(first, second), 2 + 2 * NegativeCosineSimilarity()(first, second)
    )


def test_the_bank_is_lightlys() -> None:
    """Full batches, one that crosses the end, one without gradients, and the next from row 0."""
    from lightly.loss import NTXentLoss

    losses = []
    for kind in (cl.InfoNCELoss, NTXentLoss):
        torch.manual_seed(0)
        losses.append(kind(memory_bank_size=(40, 16)))
    for step in range(6):
        z0, z1 = torch.randn(2, 15, 16)
        z0.requires_grad_(step != 1)
        ours, theirs = (loss(z0, z1) for loss in losses)
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)
        assert torch.equal(losses[0].memory_bank.rows, losses[1].memory_bank.bank)
    restored = cl.InfoNCELoss(memory_bank_size=(40, 16))
    restored.load_state_dict(losses[0].state_dict())
    assert torch.equal(restored(z0, z1), losses[0](z0, z1))


def computed() -> dict[str, Tensor]:
    """Each loss of this process's part of 12 images, and its gradients, as the whole batch's."""
    torch.set_num_threads(1)
    everything, found = random_views(3, 12), {}
    groups, labels = torch.arange(12) % 5 - 1, torch.arange(12) * 7 % 4 - 1
    cases = {name: (built(name, gather_distributed=True), 3, {}) for name in MODULES}
    cases |= {f"{name} groups": (case[0], 3, {"groups": groups}) for name, case in cases.items()}
    for name in ("infonce", "dcl"):
        cases[f"{name} labels"] = (cases[name][0], 3, {"labels": labels})
    for name in ("BarlowTwinsLoss", "VICRegLoss"):
        cases[name] = (getattr(cl, name)(gather_distributed=True), 2, {})
    torch.manual_seed(0)
    bank = cl.InfoNCELoss(T, (30, WIDTH), gather_distributed=True)
    cases |= {f"bank {step}": (bank, 2, {"groups": groups}) for step in range(4)}
    learnt = nn.Parameter(torch.tensor(T, dtype=torch.float64))
    cases["learnt"] = (cl.InfoNCELoss(learnt, gather_distributed=True), 2, {})
    for name, (loss, count, options) in cases.items():
        views = [local_part(view.detach()).requires_grad_() for view in everything[:count]]
        value = loss(*views, **{key: local_part(x) for key, x in options.items()})
        value.backward()
        found[name] = mean_over_ranks(value.detach())
        found[f"{name}'"] = torch.stack([gather(v.grad) for v in views]) / (12 // len(views[0]))
    found["learnt temperature'"] = learnt.grad
    return found


def on_ranks(processes: int, folder: Path, rank: int) -> None:
    store = f"file://{folder}/store of {processes}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    found = computed()
    apart = [local_part(view.detach()) for view in random_views(2, 12)]
    found["apart"] = gather(cl.DCLWLoss(T)(*apart)[None])
    if rank == 0:
        torch.save(found, folder / f"{processes}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_processes_that_gather_give_the_whole_batchs_loss_and_gradient(tmp_path) -> None:
    """The mean over processes, as DistributedDataParallel takes it; without gathering, each is alone."""
    processes = 3
    run_ranks(processes, on_ranks, processes, tmp_path)
    several, one = torch.load(tmp_path / f"{processes}.pt", weights_only=True), computed()
    for name, value in one.items():
        torch.testing.assert_close(
            several[name], value, rtol=1e-10, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
        )
    parts = zip(*(view.chunk(processes) for view in random_views(2, 12)), strict=True)
    alone = torch.stack([cl.DCLWLoss(T)(*views) for views in parts])
    torch.testing.assert_close(several["apart"], alone)


@pytest.mark.parametrize("options", [{}, {"labels": torch.arange(4096) % 10}])
def test_memory_is_linear(options) -> None:
    """8,192 x 8,192 logits would take 256 MiB; the process may not grow by a quarter of it."""
    views = [torch.randn(4096, 32, requires_grad=True) for _ in range(2)]
    loss = cl.InfoNCELoss()
    loss(*(view[:512] for view in views)).backward()  # warm-up
    assert growth(lambda: loss(*views, **options).backward()) < 64 * 2**20


def test_half_precision_is_computed_in_float32() -> None:
    z0, z1 = (view.detach().bfloat16() for view in random_views(2))
    for loss in (cl.DCLLoss(), cl.CosineLoss(), cl.BarlowTwinsLoss()):
        expected = loss(z0.float(), z1.float())
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(loss(z0, z1), expected)
            assert torch.equal(loss(z0.float(), z1.float()), expected)


WRONG = [0, "0.1", None, math.nan, torch.tensor(-0.1), torch.ones(3), nn.Parameter(torch.tensor(-0.1))]


def test_what_does_not_fit_is_refused() -> None:
    falling = cl.DCLLoss(nn.Parameter(torch.tensor(1.0)))
    falling.temperature.data -= 2
    z, loss, bank = torch.randn(4, WIDTH), cl.InfoNCELoss(), cl.DCLLoss(memory_bank_size=(8, WIDTH))
    numbers = torch.arange(4)
    for call, parts in (
        *((lambda t=t: cl.DCLLoss(t), ["expected a number above 0"]) for t in WRONG),
        (lambda: falling(z, z), ["temperature=-1.0, expected a number above 0"]),
        (lambda: cl.DCLWLoss(sigma=-1), ["sigma=-1", "greater than 0"]),
        (lambda: cl.DCLWLoss(sigma="no"), ["sigma='no'", "number"]),
        (lambda: cl.VICRegLoss(mu_param=-2), ["mu_param=-2"]),
        (lambda: cl.DebiasedLoss(tau_plus=1), ["tau_plus=1", "less than 1"]),
        (lambda: cl.InfoNCELoss(memory_bank_size=4096), ["memory_bank_size=4096", "(4096, 128)"]),
        (lambda: loss(z), ["(4, 5)", "2 or more"]),
        (lambda: loss(z, z[:3]), ["(3, 5)", "one shape"]),
        (lambda: loss([z, z]), ["found list", "loss(z0, z1)"]),
        (lambda: loss(z, z, numbers), ["int64 (4,)", "labels= by name"]),
        (lambda: loss(z[:1], z[:1]), ["1 image", "drop_last=True"]),
        (lambda: cl.VICRegLoss()(z[:1], z[:1]), ["1 image", "drop_last=True"]),
        (lambda: loss(z, z, groups=numbers[:3]), ["groups", "(3,)", "4 images"]),
        (lambda: loss(z, z, labels=numbers.float()), ["labels", "float32", "integer"]),
        (lambda: loss(z, z, labels=numbers, groups=numbers), ["both groups and labels"]),
        (lambda: bank(z, z, labels=numbers), ["labels", "memory bank"]),
        (lambda: bank(z[:, :3], z[:, :3]), ["width 3", "memory_bank_size=(8, 3)"]),
        (lambda: cl.SigmoidLoss()(z, z, labels=numbers), ["SigmoidLoss", "InfoNCELoss or DCLLoss"]),
        (lambda: cl.JCLLoss()(z, z), ["3 or more"]),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize("name", [name for name in cl.__all__ if name.endswith("Loss")])
def test_a_mistyped_argument_is_refused_in_the_name_of_the_loss(name) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\.__init__\(\) got .* 'temprature'"):
        getattr(cl, name)(temprature=0.1)
