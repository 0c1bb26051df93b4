"""Methods against loops written from their papers, and one contract that all of them keep."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.config import kinds, module_of
from cl.methods import BaseMethod, Ema, Queue, Setup, draw, in_passes
from cl.networks import backbones, heads, patches
from cl.networks.batch_norm import GroupBatchNorm, set_groups, update_running_stats
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.runtime.memory import growth
from tests.support.tiny import TinyBackbone

TAU = 0.2
HEAD = heads.Config(hidden=[7], out=5, norm=True, last_norm="none", last_bias=True, std=None)
EMA = Ema(momentum=0.9, schedule="cosine")
SETTINGS: dict[str, dict] = {
    "simclr": {"pool": "both_views", "negatives": None},
    "moco": {"queue": 20, "ema": EMA, "shuffle": True, "keys": "second", "symmetric": False},
    "moco_v3": {"predictor": HEAD, "ema": EMA},
    "simo": {"ema": EMA, "shuffle": False, "negatives": None, "sampling": None},
    "byol": {"predictor": HEAD, "ema": EMA},
    "simsiam": {"predictor": HEAD},
    "nnclr": {"predictor": HEAD, "queue": 20, "ema": None},
}
OPTIONS: dict[str, list[dict]] = {
    "simclr": [{"pool": "other_view"}, {"pool": "other_view", "negatives": 3}, {"negatives": 4}],
    "moco": [{"symmetric": True}, {"keys": "rest"}, {"queue": 3}],
    "simo": [
        {"negatives": 3, "sampling": "shared"},
        {"negatives": 3, "sampling": "per_query"},
        {"shuffle": True},
    ],
    "nnclr": [{"ema": EMA}],
}
VARIANTS = [(kind, option) for kind in kinds("methods") for option in [{}, *OPTIONS.get(kind, [])]]
WHOLE = patches.Whole(kind="whole")
FAST = patches.Combine(kind="combine", grid=2, choose=2, stage="final", pairs="all")
INFONCE = module_of("losses", "infonce").Config(kind="infonce", alpha=None)
COSINE = module_of("losses", "cosine").Config(kind="cosine")
HERE = machine.Machine(torch.device("cpu"), 0, "fp32")


def build(kind: str, *, bn_groups: int = 1, microbatches: int = 1, cut: patches.Config = WHOLE, **settings):  # type: ignore[no-untyped-def]
    """A method with the tiny encoder, in float64."""
    torch.manual_seed(0)
    module = module_of("methods", kind)
    config = module.Config(kind=kind, projector=HEAD, scale=1.0, **{**SETTINGS[kind], **settings})
    return module.Method(config, Setup(TinyBackbone(), TAU, cut, bn_groups, 0, microbatches)).double()


def views(n: int, seed: int = 0, sizes: tuple[int, ...] = (12, 12)) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 3, size, size, generator=rng, dtype=torch.float64) for size in sizes]


def loss_of(method: BaseMethod) -> tuple:
    """The loss that a method is tried with."""
    config = INFONCE if gives_negatives(method) else COSINE
    return module_of("losses", config.kind), config


def gives_negatives(method: BaseMethod) -> bool:
    return module_of("methods", type(method).__module__.rsplit(".", 1)[1]).Config.gives_negatives


def task_of(method: BaseMethod, here: machine.Machine = HERE) -> PretrainingTask:
    module, config = loss_of(method)
    return PretrainingTask(method, module, config, 1.0, here)


def assert_equals_the_loop(method: BaseMethod, reference, inputs: list[Tensor]) -> None:  # type: ignore[no-untyped-def]
    """The mean loss over the contrasts and its gradients, against `reference(copy of the method, inputs)`."""
    other = copy.deepcopy(method)
    module, config = loss_of(method)
    ours = torch.stack([module.loss(contrast, config, 0.0) for contrast in method(inputs)]).mean()
    theirs = reference(other, inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    ours.backward()
    theirs.backward()
    for (name, a), (_, b) in zip(method.named_parameters(), other.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12, msg=name)


def cross_entropy(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """-log softmax of the positive logit among all logits, written out."""
    return (positive.exp() + torch.stack(negatives).exp().sum()).log() - positive


def normal(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def simclr_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Both views in one pass; the positive of a view is the other view of its image; all other views are negatives."""
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1))))
    losses = []
    for image, view in itertools.product(range(n), range(2)):
        anchor, positive = z[2 * image + view], z[2 * image + 1 - view]
        others = [anchor @ z[2 * j + v] / TAU for j in range(n) if j != image for v in range(2)]
        losses.append(cross_entropy(anchor @ positive / TAU, others))
    return torch.stack(losses).mean()


def other_view_loop(method, inputs):  # type: ignore[no-untyped-def]
    """EqCo's pool: the N - 1 keys of the positive's view."""
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1)))).unflatten(0, (n, 2))
    losses = []
    for image, view in itertools.product(range(n), range(2)):
        anchor = z[image, view]
        others = [anchor @ z[j, 1 - view] / TAU for j in range(n) if j != image]
        losses.append(cross_entropy(anchor @ z[image, 1 - view] / TAU, others))
    return torch.stack(losses).mean()


def multicrop_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Every crop against each of the two large crops, which alone are positives and negatives (DCLW with multi-crop)."""
    n = len(inputs[0])
    large = method.projector(method.backbone(torch.stack(inputs[:2], 1).flatten(0, 1)))
    small = method.projector(method.backbone(torch.stack(inputs[2:], 1).flatten(0, 1)))
    z = torch.cat([normal(large).unflatten(0, (n, 2)), normal(small).unflatten(0, (n, -1))], 1)  # (N, V, D)
    losses = []
    for a, b, i in itertools.product(range(len(inputs)), range(2), range(n)):
        if a != b:
            others = [z[i, a] @ z[j, v] / TAU for j in range(n) if j != i for v in range(2)]
            losses.append(cross_entropy(z[i, a] @ z[i, b] / TAU, others))
    return torch.stack(losses).mean()


def moco_v3_loop(method, inputs):  # type: ignore[no-untyped-def]
    """ctr(q1, k2) + ctr(q2, k1), each 2 tau times a cross-entropy over the batch; the sum is 4 tau times our mean."""
    q1, q2 = (normal(method.predictor(method.projector(method.backbone(x)))) for x in inputs)
    k1, k2 = (normal(method.target(x)).detach() for x in inputs)
    labels = torch.arange(len(q1))
    ctr = sum(2 * TAU * F.cross_entropy(q @ k.T / TAU, labels) for q, k in ((q1, k2), (q2, k1)))
    return ctr / (4 * TAU)


def simo_loop(method, inputs):  # type: ignore[no-untyped-def]
    queries, keys = (
        normal(method.projector(method.backbone(inputs[0]))),
        normal(method.target(inputs[1])).detach(),
    )
    n = len(queries)
    return torch.stack(
        [
            cross_entropy(
                queries[i] @ keys[i] / TAU, [queries[i] @ keys[j] / TAU for j in range(n) if j != i]
            )
            for i in range(n)
        ]
    ).mean()


def byol_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Half of the sum over both directions of the squared distance of unit vectors (eq. 2 to 4)."""
    p1, p2 = (normal(method.predictor(method.projector(method.backbone(x)))) for x in inputs)
    z1, z2 = (normal(method.target(x)).detach() for x in inputs)
    return ((p1 - z2).square().sum(1).mean() + (p2 - z1).square().sum(1).mean()) / 2


def simsiam_loop(method, inputs):  # type: ignore[no-untyped-def]
    """L = D(p1, z2) / 2 + D(p2, z1) / 2 with D = -cosine: half of ours, up to the constant 1."""
    z1, z2 = (method.projector(method.backbone(x)) for x in inputs)
    p1, p2 = method.predictor(z1), method.predictor(z2)
    d = [-F.cosine_similarity(p, z.detach(), dim=1).mean() for p, z in ((p1, z2), (p2, z1))]
    return 2 * (d[0] / 2 + d[1] / 2) + 2


def nnclr_loop(method, inputs):  # type: ignore[no-untyped-def]
    """CE(neighbour of z1, predictions of view 2) and the other way round; gradient through the predictions alone."""
    z1, z2 = (method.projector(method.backbone(x)) for x in inputs)
    p1, p2 = normal(method.predictor(z1)), normal(method.predictor(z2))
    losses = []
    for z, p in ((z1, p2), (z2, p1)):
        for i, row in enumerate(normal(z).detach()):
            nearest = max(method.queue.rows, key=lambda entry: float(entry @ row))
            logits = [nearest @ p[j] / TAU for j in range(len(p))]
            losses.append(cross_entropy(logits[i], logits[:i] + logits[i + 1 :]))
    return torch.stack(losses).mean()


def fast_moco_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Algorithm 1 with its six combinations: divide, encode, combine, project, predict; mean over the twelve terms."""
    n, side = len(inputs[0]), inputs[0].shape[-1] // 2
    targets = [normal(method.target(x)).detach() for x in inputs]
    losses = []
    for x, target in ((inputs[0], targets[1]), (inputs[1], targets[0])):
        corners = [
            x[:, :, r : r + side, c : c + side] for c in (0, side) for r in (0, side)
        ]  # column by column
        encoded = method.backbone(torch.stack(corners, 1).flatten(0, 1)).unflatten(0, (n, 4))
        pairs = [(encoded[:, a] + encoded[:, b]) / 2 for a in range(4) for b in range(a + 1, 4)]
        projected = method.projector(torch.stack(pairs, 1).flatten(0, 1))
        predictions = normal(method.predictor(projected)).unflatten(0, (n, 6))
        losses += [F.cross_entropy(predictions[:, c] @ target.T / TAU, torch.arange(n)) for c in range(6)]
    assert len(losses) == 12
    return torch.stack(losses).mean()


def predictions_loop(method, inputs, cut):  # type: ignore[no-untyped-def]
    """Of every view its list of predictions (N, D), and of the first two their projections; small views in one pass."""
    n = len(inputs[0])

    def predict(x: Tensor) -> list[Tensor]:
        if not cut:
            return [normal(method.predictor(method.projector(method.backbone(x))))]
        side = x.shape[-1] // 2
        corners = [x[:, :, r : r + side, c : c + side] for c in (0, side) for r in (0, side)]
        encoded = method.backbone(torch.stack(corners, 1).flatten(0, 1)).unflatten(0, (len(x), 4))
        pairs = torch.stack(
            [(encoded[:, a] + encoded[:, b]) / 2 for a in range(4) for b in range(a + 1, 4)], 1
        )
        made = normal(method.predictor(method.projector(pairs.flatten(0, 1))))
        return list(made.unflatten(0, (len(x), 6)).unbind(1))

    predictions = [predict(x) for x in inputs[:2]]
    small = predict(torch.stack(inputs[2:], 1).flatten(0, 1))
    for number in range(len(inputs) - 2):
        predictions.append([p.unflatten(0, (n, -1))[:, number] for p in small])
    if target := getattr(method, "target", None):
        projections = [normal(target(x)).detach() for x in inputs[:2]]
    else:
        projections = [normal(method.projector(method.backbone(x))).detach() for x in inputs[:2]]
    return predictions, projections


def crops_loop(cut: bool):  # type: ignore[no-untyped-def]
    """Every prediction of every crop against each of the two targets that is not of the same crop."""

    def loop(method, inputs):  # type: ignore[no-untyped-def]
        predictions, projections = predictions_loop(method, inputs, cut)
        losses = []
        for b, a in itertools.product(range(2), range(len(inputs))):
            if a == b:
                continue
            for p in predictions[a]:
                if type(method).__module__.endswith("nnclr"):
                    nearest = [
                        max(method.queue.rows, key=lambda entry, row=row: float(entry @ row))
                        for row in projections[b]
                    ]
                    logits = torch.stack(nearest) @ p.T / TAU
                    losses.append(F.cross_entropy(logits, torch.arange(len(p))))
                elif gives_negatives(method):
                    losses.append(F.cross_entropy(p @ projections[b].T / TAU, torch.arange(len(p))))
                else:
                    losses.append((p - projections[b]).square().sum(1).mean())
        return torch.stack(losses).mean()

    return loop


def sampled_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Each query against the columns that were drawn for it, one by one."""
    contrasts = copy.deepcopy(method)(inputs)
    keys = inputs_embedded(method, inputs)
    losses = []
    for (queries, positives, pool), contrast in zip(keys, contrasts, strict=True):
        for i, columns in enumerate(contrast.selected.tolist()):
            others = [queries[i] @ pool[c] / TAU for c in columns]
            losses.append(cross_entropy(queries[i] @ positives[i] / TAU, others))
    return torch.stack(losses).mean()


def inputs_embedded(method, inputs):  # type: ignore[no-untyped-def]
    """Queries, positives and pool of each direction."""
    if type(method).__module__.endswith("simo"):
        keys = normal(method.target(inputs[1])).detach()
        return [(normal(method.projector(method.backbone(inputs[0]))), keys, keys)]
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1)))).unflatten(0, (n, 2))
    return [(z[:, 1], z[:, 0], z[:, 0]), (z[:, 0], z[:, 1], z[:, 1])]


LOOPS = [
    *((kind, {}, crops_loop(cut=False), (12, 12, 8, 8)) for kind in ("moco_v3", "byol", "nnclr")),
    *(
        (kind, {"cut": FAST}, crops_loop(cut=True), (12, 12, 8, 8))
        for kind in ("moco_v3", "byol", "simsiam", "nnclr")
    ),
    ("simclr", {"pool": "other_view", "negatives": 3}, sampled_loop, (12, 12)),
    ("simo", {"negatives": 3, "sampling": "per_query"}, sampled_loop, (12, 12)),
    ("simo", {"negatives": 2, "sampling": "shared"}, sampled_loop, (12, 12)),
    ("simclr", {}, simclr_loop, (12, 12)),
    ("simclr", {"pool": "other_view"}, other_view_loop, (12, 12)),
    ("simclr", {}, multicrop_loop, (12, 12, 8, 8, 8)),
    ("moco_v3", {}, moco_v3_loop, (12, 12)),
    ("moco_v3", {"cut": FAST}, fast_moco_loop, (12, 12)),
    ("simo", {}, simo_loop, (12, 12)),
    ("byol", {}, byol_loop, (12, 12)),
    ("simsiam", {}, simsiam_loop, (12, 12)),
    ("nnclr", {}, nnclr_loop, (12, 12)),
]


@pytest.mark.parametrize(
    ("kind", "settings", "loop", "sizes"),
    LOOPS,
    ids=[f"{kind}-{loop.__qualname__.split('.')[0]}" for kind, _, loop, _ in LOOPS],
)
def test_a_method_equals_its_papers_loop(kind, settings, loop, sizes) -> None:
    method = build(kind, **settings)
    for parameter in method.target.parameters() if getattr(method, "target", None) else []:
        parameter.data.add_(0.1)  # a target of its own
    assert_equals_the_loop(method, loop, views(5, sizes=sizes))


def test_moco_equals_its_algorithm() -> None:
    """Three steps of Algorithm 1 in a plain loop: query, key, queue as a list, target as an average."""
    method = build("moco", shuffle=False, ema=Ema(momentum=0.9, schedule="constant"))
    online = nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.projector))
    target = copy.deepcopy(online)
    queue = list(method.queue.rows.clone())
    module, config = loss_of(method)
    for step in range(3):
        first, second = views(6, seed=step)
        optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], 0.1)
        reference_optimizer = torch.optim.SGD(online.parameters(), 0.1)
        (contrast,) = method([first, second])
        ours = module.loss(contrast, config, 0.0)
        queries = normal(online(first))
        keys = normal(target(second)).detach()
        theirs = torch.stack(
            [
                cross_entropy(q @ k / TAU, [q @ n / TAU for n in queue])
                for q, k in zip(queries, keys, strict=True)
            ]
        ).mean()
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        ours.backward()
        theirs.backward()
        optimizer.step()
        reference_optimizer.step()
        method.after_step(0.0)
        with torch.no_grad():
            for t, o in zip(target.parameters(), online.parameters(), strict=True):
                t.copy_(0.9 * t + 0.1 * o)
        queue = queue[len(keys) :] + list(keys)
        start = int(method.queue.oldest)
        torch.testing.assert_close(
            torch.cat([method.queue.rows[start:], method.queue.rows[:start]]), torch.stack(queue)
        )


def test_symmetric_moco_is_both_directions() -> None:
    """The loss is the mean of the two asymmetric ones, and both key sets are queued."""
    method, forth, back = build("moco", symmetric=True), build("moco"), build("moco")
    first, second = views(6)
    module, config = loss_of(method)
    ours = [module.loss(c, config, 0.0) for c in method([first, second])]
    theirs = [
        module.loss(c, config, 0.0)
        for m, v in ((forth, [first, second]), (back, [second, first]))
        for c in m(v)
    ]
    torch.testing.assert_close(torch.stack(ours), torch.stack(theirs))
    method.after_step(1.0)
    torch.testing.assert_close(method.queue.rows[:6], forth._keys[0])
    torch.testing.assert_close(method.queue.rows[6:12], back._keys[0])


def test_all_views_after_the_first_are_keys() -> None:
    """JCL's keys: encoded in one pass, contrasted together, and their mean, not normalised, is queued."""
    method = build("moco", keys="rest", shuffle=False)
    inputs = views(4, sizes=(12, 12, 12, 12))
    (contrast,) = method(inputs)
    keys = normal(method.target(torch.stack(inputs[1:], 1).flatten(0, 1))).unflatten(0, (4, 3))
    torch.testing.assert_close(contrast.positives, keys)
    method.after_step(1.0)
    torch.testing.assert_close(method.queue.rows[:4], keys.mean(1))
    assert (method.queue.rows.norm(dim=1) <= 1 + 1e-6).all()


@pytest.mark.parametrize("sizes", [[3, 3, 3], [7, 2, 9, 1], [10]])
def test_the_queue_takes_any_batch(sizes) -> None:
    """A ring of ten against a list; batches that do not divide it."""
    queue = Queue(10, 5)
    expected = list(queue.rows.clone())
    for number, size in enumerate(sizes):
        keys = torch.randn(size, 5, generator=torch.Generator().manual_seed(number))
        queue.enqueue(keys, torch.Generator())
        expected = (expected + list(keys))[-10:]
        start = int(queue.oldest)
        assert torch.equal(torch.cat([queue.rows[start:], queue.rows[:start]]), torch.stack(expected))


def test_shuffling_and_queueing_draw_apart() -> None:
    """The keys that a small queue keeps do not all come from one group of batch norm."""
    method = build("moco", bn_groups=3, queue=3)
    several = 0
    for step in range(20):
        method.step = step
        method(views(9, seed=step))
        order = method.shuffled(9, "keys 1").tolist()
        method.after_step(1.0)
        kept = [int((method._keys[0] == row).all(1).nonzero()) for row in method.queue.rows]
        several += len({order.index(image) // 3 for image in kept}) > 1
    assert several > 15


def test_neighbours_are_sought_in_full_precision() -> None:
    """In bfloat16 most near neighbours would be ties."""
    method = build("nnclr").float()
    torch.manual_seed(0)
    centre = F.normalize(torch.randn(5), dim=0)
    method.queue = Queue(4096, 5)
    method.queue.rows.copy_(F.normalize(centre + 0.05 * torch.randn(4096, 5), dim=1))
    queries = F.normalize(centre + 0.05 * torch.randn(64, 5), dim=1)
    expected = method._nearest(queries)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(method._nearest(queries), expected)


def test_a_queue_smaller_than_the_batch_holds_random_keys_of_it() -> None:
    """EqCo, section 2.3: K < N."""
    queue = Queue(3, 5)
    seen = set()
    for step in range(20):
        keys = torch.randn(8, 5)
        queue.enqueue(keys, torch.Generator().manual_seed(step))
        places = [int((keys == row).all(1).nonzero()) for row in queue.rows]
        assert len(set(places)) == 3
        seen |= set(places)
    assert seen == set(range(8))


@pytest.mark.parametrize("kind", ["moco", "moco_v3", "simo", "byol", "simsiam", "nnclr"])
def test_no_gradient_reaches_what_is_detached(kind) -> None:
    """Keys, queue, target encoder; NNCLR's neighbour. The online encoder gets all of it."""
    method = build(kind)
    module, config = loss_of(method)
    contrasts = method(views(6))
    detached = [c.queries if kind == "nnclr" else c.positives for c in contrasts]
    assert not any(tensor.requires_grad for tensor in detached)
    if kind in ("moco", "moco_v3", "simo"):
        assert not any(c.negatives.requires_grad for c in contrasts)
    if kind == "nnclr":
        assert all(c.negatives.requires_grad and c.positives.requires_grad for c in contrasts)
    torch.stack([module.loss(c, config, 0.0) for c in contrasts]).mean().backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None) == (not name.startswith("target.")), name


def test_the_target_is_an_average_of_parameters_exclusive() -> None:
    """BYOL's schedule: 1 - (1 - m) (1 + cos(pi t)) / 2; running statistics are the target's own."""
    method = build("byol")
    with torch.no_grad():
        for parameter in method.backbone.parameters():
            parameter += 1
    before = copy.deepcopy(method.target.state_dict())
    method.after_step(0.25)
    m = 1 - 0.1 * (1 + math.cos(math.pi / 4)) / 2
    for name, parameter in method.target[0].named_parameters():
        expected = m * before[f"0.{name}"] + (1 - m) * method.backbone.get_parameter(name)
        torch.testing.assert_close(parameter, expected)
    for name, buffer in method.target.named_buffers():
        assert torch.equal(buffer, before[name])
    assert EMA.at(1.0) == 1
    assert Ema(momentum=0.9, schedule="constant").at(0.7) == 0.9


def test_shuffled_keys_are_the_keys_of_shuffled_groups() -> None:
    """ShuffleBN: other images share the statistics, and every key comes back to its image."""
    for kind in ("moco", "simo"):
        shuffled, plain = build(kind, bn_groups=3, shuffle=True), build(kind, bn_groups=3, shuffle=False)
        inputs = views(12)
        order = shuffled.shuffled(12, "keys 1" if kind == "moco" else "keys")
        expected = torch.empty(12, 5, dtype=torch.float64)
        expected[order] = normal(plain.target(inputs[1][order]))
        torch.testing.assert_close(shuffled(inputs)[0].positives[:, 0], expected)
        assert not torch.allclose(
            expected, build(kind, bn_groups=3, shuffle=False)(inputs)[0].positives[:, 0]
        )


def test_simos_shared_sample_is_one_permutation_of_the_others() -> None:
    """Place c of query i is image c if c < i, else c + 1; the same K places for all queries, other ones each step."""
    method = build("simo", negatives=3, sampling="shared")
    samples = []
    for step in range(4):
        method.step = step
        selected = method(views(6))[0].selected
        places = torch.randperm(5, generator=method.generator("negatives"))[:3].tolist()
        assert selected.tolist() == [[c if c < i else c + 1 for c in places] for i in range(6)]
        samples.append(tuple(places))
    assert len(set(samples)) > 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("simo", {"negatives": 3, "sampling": "per_query"}),
        ("simclr", {"pool": "other_view", "negatives": 3}),
        ("simclr", {"pool": "both_views", "negatives": 7}),
    ],
)
def test_per_query_samples_are_distinct_and_of_other_images(kind, settings) -> None:
    method = build(kind, **settings)
    seen: set[tuple[int, int]] = set()
    for step in range(40):
        method.step = step
        for contrast in method(views(6)):
            width = len(contrast.negatives) // 6
            for i, row in enumerate(contrast.selected.tolist()):
                assert len(set(row)) == settings["negatives"]
                assert all(column // width != i for column in row)
                seen |= {(i, column) for column in row}
            assert len({tuple(row) for row in contrast.selected.tolist()}) > 1
    assert len(seen) == 6 * 5 * width  # all others come up


def test_a_draw_is_uniform_without_replacement() -> None:
    rows = draw(20_000, 6, 2, torch.Generator().manual_seed(0))
    assert (rows[:, 0] != rows[:, 1]).all()
    frequencies = torch.bincount(rows.flatten(), minlength=6) / 20_000
    torch.testing.assert_close(frequencies, torch.full((6,), 1 / 3), atol=0.02, rtol=0)


def test_multicrop_of_two_views_is_two_views() -> None:
    """SimCLR: the one contrast of 2N queries is the mean of the two pairs of the general form."""
    method = build("simclr")
    inputs = views(5)
    for kind, settings in (
        ("infonce", {"alpha": 100.0}),
        ("dcl", {}),
        ("dclw", {"sigma": 0.5, "detach_weight": True}),
    ):
        module = module_of("losses", kind)
        config = module.Config(kind=kind, **settings)
        (joint,) = method(inputs)
        z = joint.queries.unflatten(0, (5, 2))
        apart = [
            method._contrast(z[:, a], z[:, 1 - a], joint.negatives, method.generator("")) for a in range(2)
        ]
        torch.testing.assert_close(
            module.loss(joint, config, 0.0), torch.stack([module.loss(c, config, 0.0) for c in apart]).mean()
        )


def test_small_crops_of_one_size_share_a_pass() -> None:
    sizes = []

    def encode(x: Tensor) -> Tensor:
        sizes.append((len(x), x.shape[-1]))
        return x.mean((1, 2, 3))

    inputs = views(3, sizes=(12, 12, 8, 8, 6))
    encoded = in_passes(encode, inputs, separate=2)
    assert sizes == [(3, 12), (3, 12), (6, 8), (3, 6)]
    for view, value in zip(inputs, encoded, strict=True):
        torch.testing.assert_close(value, view.mean((1, 2, 3)))


COMBINE = {"kind": "combine", "grid": 2, "choose": 2, "stage": "final", "pairs": "all"}
CUTS = [
    ({}, 6),
    ({"choose": 3}, 4),
    ({"choose": 1}, 4),
    ({"grid": 3}, 36),
    ({"stage": "projector"}, 6),
    ({"stage": "predictor"}, 6),
    ({"pairs": "adjacent"}, 4),
    ({"pairs": "drawn", "stage": "projector"}, 2),
    *(({"pairs": "adjacent", "stage": stage}, 4) for stage in patches.STITCHED),
    *(({"pairs": "drawn", "stage": stage}, 2) for stage in patches.STITCHED),
]


@pytest.mark.parametrize(("change", "count"), CUTS)
def test_patches_give_so_many_embeddings(change, count) -> None:
    config = patches.Combine(**{**COMBINE, **change})
    torch.manual_seed(0)
    network = backbones.build(
        backbones.Config(kind="resnet18", width=1, stem="small", zero_init_residual=False)
    )
    projector, predictor = nn.Linear(512, 8), nn.Linear(8, 8)
    embeddings = patches.encode(
        config, torch.randn(3, 3, 24, 24), network, projector, predictor, torch.Generator()
    )
    assert embeddings.shape == (3, count, 8)
    embeddings.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_patches_are_cut_column_by_column_and_stitched_back() -> None:
    images = torch.arange(2 * 16.0).view(2, 1, 4, 4)
    cut = patches.cut(images, 2).unflatten(0, (2, 4))
    corners = [images[:, :, r : r + 2, c : c + 2] for c in (0, 2) for r in (0, 2)]
    assert torch.equal(cut, torch.stack(corners, 1))
    left, right = patches.stitch(cut, "vertical").unbind(1)
    assert torch.equal(torch.cat([left, right], 3), images)
    top, bottom = patches.stitch(cut, "horizontal").unbind(1)
    assert torch.equal(torch.cat([top, bottom], 2), images)


def test_patches_stitched_at_the_input_are_halves_of_the_image() -> None:
    """Pixels, encoder and all: the left half of an image is what its two left patches make."""
    torch.manual_seed(0)
    network = backbones.build(
        backbones.Config(kind="resnet18", width=1, stem="small", zero_init_residual=False)
    ).eval()
    config = patches.Combine(**{**COMBINE, "stage": "input", "pairs": "adjacent"})
    images = torch.randn(2, 3, 16, 16)
    ours = patches.encode(config, images, network, nn.Identity(), nn.Identity(), torch.Generator())
    halves = [images[..., :8], images[..., 8:], images[:, :, :8], images[:, :, 8:]]
    torch.testing.assert_close(ours, torch.stack([network(half) for half in halves], 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", patches.MEANS)
def test_identical_patches_are_no_patches(stage) -> None:
    """An image of four equal patches: each combination is the embedding of one patch."""
    method = build("moco_v3", cut=patches.Combine(**{**COMBINE, "stage": stage})).eval()
    patch = views(4, sizes=(6,))[0]
    ours, _ = method.predictions_and_targets([patch.repeat(1, 1, 2, 2)] * 2)
    plain, _ = build("moco_v3").eval().predictions_and_targets([patch] * 2)
    torch.testing.assert_close(ours[0], plain[0].expand(4, 6, 5))


def test_the_drawn_direction_is_the_same_for_both_views_and_changes_with_the_step() -> None:
    method = build("byol", cut=patches.Combine(**{**COMBINE, "pairs": "drawn"}))
    chosen = []
    for step in range(8):
        method.step = step
        chosen.append([patches._combinations(method.patches, method.generator("patches")) for _ in range(2)])
        assert chosen[-1][0] == chosen[-1][1]
    assert {tuple(c[0]) for c in chosen} == {((0, 1), (2, 3)), ((0, 2), (1, 3))}


@pytest.mark.parametrize("kind", ["moco_v3", "byol", "simsiam", "nnclr"])
def test_patches_meet_targets_of_whole_views(kind) -> None:
    """Six embeddings an image against the projection of the uncut other view."""
    method = build(kind, cut=FAST, **({"ema": EMA} if kind == "nnclr" else {}))
    inputs = views(4)
    reference = copy.deepcopy(method)
    contrasts = method(inputs)
    target = reference.target or nn.Sequential(reference.backbone, reference.projector)
    keys = [normal(target(x)) for x in inputs]
    if kind == "nnclr":
        assert len(contrasts) == 12
        expected = method.queue.rows[(keys[0] @ method.queue.rows.T).argmax(1)]
        torch.testing.assert_close(contrasts[0].queries, expected)
    else:
        assert [len(c.queries) for c in contrasts] == [24, 24]
        torch.testing.assert_close(contrasts[0].positives[:, 0], keys[0].repeat_interleave(6, 0))
        torch.testing.assert_close(contrasts[1].positives[:, 0], keys[1].repeat_interleave(6, 0))


def test_group_batch_norm_is_batch_norm_of_each_group() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4).double()
    with torch.no_grad():
        plain.weight.uniform_(), plain.bias.uniform_()
    grouped = GroupBatchNorm(copy.deepcopy(plain), 3)
    x = torch.randn(12, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    parts = [copy.deepcopy(plain) for _ in range(3)]
    expected = torch.cat([norm(part) for norm, part in zip(parts, x.chunk(3), strict=True)])
    torch.testing.assert_close(grouped(x), expected)
    update_running_stats(grouped)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(grouped, name), torch.stack([getattr(n, name) for n in parts]).mean(0)
        )
    torch.testing.assert_close(
        torch.autograd.grad(grouped(x).square().sum(), x)[0],
        torch.autograd.grad(expected.square().sum(), x)[0],
    )
    plain.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(grouped.eval()(x), plain.eval()(x))


def test_one_group_leaves_batch_norm_exclusive() -> None:
    module = TinyBackbone()
    set_groups(module, 1)
    assert type(module.bn) is nn.BatchNorm2d
    set_groups(module, 2)
    assert type(module.bn) is GroupBatchNorm


def train_step(task: PretrainingTask, number: int, inputs: list[Tensor]) -> Tensor:
    """Plain gradient descent."""
    task.begin_step(number, number / 10)
    loss = task(inputs, torch.zeros(0))
    loss.backward()
    with torch.no_grad():
        for p in task.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None
    task.after_step((number + 1) / 10)
    return loss


def inputs_of(option: dict, n: int, seed: int) -> list[Tensor]:
    """Two large and two small views, or four large ones where all are keys."""
    return views(n, seed, (12, 12, 12, 12) if option.get("keys") == "rest" else (12, 12, 8, 8))


def takes_patches(kind: str) -> bool:
    return module_of("methods", kind).Config.takes_patches


CASES = [(kind, option, WHOLE) for kind, option in VARIANTS]
CASES += [(kind, option, FAST) for kind, option in VARIANTS if takes_patches(kind)]


@pytest.mark.parametrize("bn_groups", [1, 2])
@pytest.mark.parametrize(("kind", "option", "cut"), CASES)
def test_every_method_trains_saves_and_continues_equal(kind, option, cut, bn_groups) -> None:
    """Two steps with batches of different sizes, a copy through the state dict, one more step of both: equal bit for bit."""
    first = task_of(build(kind, cut=cut, bn_groups=bn_groups, **option))
    before = copy.deepcopy(first.state_dict())
    for number in range(2):
        train_step(first, number, inputs_of(option, 4 + 2 * (number % 2), number))
    second = task_of(build(kind, cut=cut, bn_groups=bn_groups, **option))
    second.load_state_dict(first.state_dict())
    for one in (first, second):
        train_step(one, 2, inputs_of(option, 6, 2))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert any(not torch.equal(before[name], tensor) for name, tensor in first.state_dict().items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("kind", "option", "cut"), CASES)
def test_every_method_runs_with_every_loss_and_a_batch_of_two(kind, option, cut, precision) -> None:
    """In float32 and under bfloat16 autocast; embeddings and loss stay float32, and every trained tensor gets a gradient."""
    here = machine.Machine(torch.device("cpu"), 0, precision)
    for name, settings in LOSSES.items():
        module = module_of("losses", name)
        config = module.Config(kind=name, **settings)
        method = build(kind, cut=cut, **option).float()
        if config.needs_negatives != gives_negatives(method):
            continue
        task = PretrainingTask(method, module, config, 1.0, here)
        loss = train_step_float(task, [view.float() for view in inputs_of(option, 2, 0)])
        assert loss.dtype == torch.float32
        assert torch.isfinite(loss)


LOSSES: dict[str, dict] = {
    "infonce": {"alpha": 64.0},
    "dcl": {},
    "dclw": {"sigma": 0.5, "detach_weight": True},
    "jcl": {"strength": 4.0, "ramp": True, "unbiased": False},
    "cosine": {},
}


def train_step_float(task: PretrainingTask, inputs: list[Tensor]) -> Tensor:
    task.begin_step(0, 0.5)
    loss = task(inputs, torch.zeros(0))
    loss.backward()
    for name, parameter in task.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    task.after_step(0.6)
    return loss.detach()


@pytest.mark.parametrize("name", ["infonce", "dcl", "dclw"])
def test_a_step_of_simclr_holds_no_matrix_of_all_pairs(name) -> None:
    """N = 8192 images: one matrix of their embeddings' logits would take 1 GiB."""
    module = module_of("losses", name)
    method = build("simclr").float()
    task = PretrainingTask(method, module, module.Config(kind=name, **LOSSES[name]), 1.0, HERE)
    inputs = [torch.randn(8192, 3, 8, 8) for _ in range(2)]
    train_step_float(task, [view[:512] for view in inputs])  # warm-up
    assert growth(lambda: train_step_float(task, inputs)) < 200 * 2**20


def test_no_loss_is_forgotten_here() -> None:
    assert set(LOSSES) == set(kinds("losses"))
    assert set(SETTINGS) == set(kinds("methods"))


GOLDEN = {
    "byol whole": (0.8393376870803874, 7.765004333785829),
    "moco whole": (3.267687070833437, 7.507007839881877),
    "moco whole symmetric=True": (3.3354028009848045, 7.223966134801556),
    "moco whole keys=rest": (3.104019077194195, 7.7795454966737445),
    "moco whole queue=3": (1.5901984616637066, 7.55629429487206),
    "moco_v3 whole": (2.7144611253284463, 8.433462691006158),
    "nnclr whole": (2.129774698684025, 6.951261910016938),
    "nnclr whole ema": (2.098903289309265, 8.417486556670486),
    "simclr whole": (2.715001779165051, 5.788467558800473),
    "simclr whole pool=other_view": (2.08929272386314, 6.133084015689704),
    "simclr whole pool=other_view negatives=3": (1.393971001104423, 6.704529359990795),
    "simclr whole negatives=4": (1.614890647725477, 6.144202023428067),
    "simo whole": (2.1655355668681326, 8.384741862187632),
    "simo whole negatives=3 sampling=shared": (2.001170242699292, 8.244465835333498),
    "simo whole negatives=3 sampling=per_query": (1.7563048820238303, 8.075019390341055),
    "simo whole shuffle=True": (2.2537226755285915, 7.653459332326464),
    "simsiam whole": (0.8734774407717621, 6.195453554628427),
    "byol combine": (1.0811767263622565, 7.581985476129036),
    "moco_v3 combine": (2.45393954341576, 7.8353707983628045),
    "nnclr combine": (2.122013544813826, 6.185384043764642),
    "nnclr combine ema": (2.1276827077396776, 7.723083143581354),
    "simsiam combine": (1.045245025346648, 6.0008907425819915),
}


@pytest.mark.parametrize(("kind", "option", "cut"), CASES)
def test_golden(kind, option, cut) -> None:
    """Ten steps in float64: the last loss and the length of all weights; a refactoring leaves them as they were."""
    task = task_of(build(kind, bn_groups=2, cut=cut, **option))
    optimizer = torch.optim.SGD([p for p in task.parameters() if p.requires_grad], 0.05, momentum=0.9)
    for number in range(10):
        task.begin_step(number, number / 10)
        loss = task(inputs_of(option, 8, number), torch.zeros(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        task.after_step((number + 1) / 10)
    length = torch.cat([p.detach().flatten() for p in task.parameters()]).norm()
    name = " ".join([kind, cut.kind, *(f"{key}={value}" for key, value in option.items() if key != "ema")])
    name += " ema" if "ema" in option else ""
    assert (float(loss.detach()), float(length)) == pytest.approx(GOLDEN[name], rel=1e-10)


@pytest.mark.parametrize("last_norm", ["none", "affine", "plain"])
def test_heads_have_the_layers_asked_for(last_norm) -> None:
    config = heads.Config(hidden=[4, 6], out=3, norm=True, last_norm=last_norm, last_bias=False, std=0.01)
    layers = heads.build(config, 800)
    names = ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"] + ["BatchNorm1d"] * (last_norm != "none")
    assert [type(layer).__name__ for layer in layers] == names
    assert [layer.bias is None for layer in layers if isinstance(layer, nn.Linear)] == [True, True, True]
    assert float(layers[0].weight.std()) == pytest.approx(0.01, rel=0.1)
    if last_norm != "none":
        assert layers[-1].affine == (last_norm == "affine")
    plain = heads.build(HEAD.model_copy(update={"norm": False, "hidden": [4]}), 8)
    assert [type(layer).__name__ for layer in plain] == ["Linear", "ReLU", "Linear"]
    assert all(layer.bias is not None for layer in plain if isinstance(layer, nn.Linear))


@pytest.mark.parametrize(
    ("kind", "option", "count"),
    [
        ("simclr", {}, 2 * (6 - 1)),
        ("simclr", {"pool": "other_view"}, 6 - 1),
        ("simclr", {"pool": "other_view", "negatives": 3}, 3),
        ("moco", {}, 20),
        ("moco_v3", {}, 6 - 1),
        ("simo", {}, 6 - 1),
        ("simo", {"negatives": 2, "sampling": "shared"}, 2),
        ("nnclr", {}, 6 - 1),
        ("byol", {}, None),
    ],
)
def test_a_run_says_how_many_negatives_a_query_meets(kind, option, count) -> None:
    task = task_of(build(kind, **option))
    task(views(6), torch.zeros(0))
    assert task.negatives == count


@pytest.mark.parametrize(("width", "parameters"), [(1, 23.5), (2, 93.9), (4, 375.4)])
def test_wide_networks_have_the_papers_size(width, parameters) -> None:
    """94 and 375 million parameters (EqCo, Table 7)."""
    with torch.device("meta"):
        network = backbones.build(
            backbones.Config(kind="resnet50", width=width, stem="imagenet", zero_init_residual=True)
        )
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(parameters, abs=0.05)
    assert network.fc_features == 2048 * width


def test_a_wide_network_runs() -> None:
    network = backbones.build(
        backbones.Config(kind="resnet18", width=2, stem="small", zero_init_residual=False)
    )
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, network.fc_features) == (2, 1024)
