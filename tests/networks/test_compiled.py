"""Compiled networks: how often they are compiled, and what they leave behind."""

import copy
import sys
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from benchmarks.gpu.roofline.fake_gpu import pretended_ranks
from cl.networks import backbones
from cl.networks.batch_norm import GroupBatchNorm, set_groups, update_running_stats
from cl.networks.passes import compile_forward, encoders, in_microbatches
from cl.pretraining.task import PretrainingTask
from cl.training.checkpoints import Checkpoints
from pipeline.support import pretraining
from tests.support.backbones import config
from tests.support.methods import CASES, WHOLE, Case, build, case_name, task_of, train_step, training_batch
from tests.support.tiny import TinyBackbone


def network(groups: int, microbatches: int) -> TinyBackbone:
    torch.manual_seed(0)
    network = TinyBackbone().double()
    set_groups(network, groups, microbatches)
    network.microbatches = microbatches  # type: ignore[assignment]
    return network.train()


def step(network: TinyBackbone, images: torch.Tensor) -> torch.Tensor:
    """Two passes with a gradient, one without, and the running statistics of all three."""
    total = sum(in_microbatches(network, network, images + n).square().mean() for n in range(2))
    total.backward()
    with torch.no_grad():
        in_microbatches(network, network, images)
    update_running_stats(network)
    return total.detach()


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def images_of(number: int, size: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 3, size, size, dtype=torch.float64, generator=generator)


def assert_compiled_once(groups: int, microbatches: int) -> None:
    """Passes with a gradient are one graph, those without another; what they compute does not change."""
    counter = CompileCounterWithBackend("eager")
    plain, compiled = network(groups, microbatches), network(groups, microbatches)
    names = list(plain.state_dict())
    compile_forward(compiled, counter)
    for number in range(4):
        images = images_of(number)
        torch.testing.assert_close(step(compiled, images), step(plain, images))
    assert counter.frame_count == 2
    assert list(compiled.state_dict()) == names
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value)
    for p, q in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize(("groups", "microbatches"), [(1, 1), (2, 1), (4, 2)])
def test_passes_with_and_without_gradient_are_compiled_once(groups: int, microbatches: int) -> None:
    """A microbatch that is encoded again for the backward pass is of the first kind."""
    assert_compiled_once(groups, microbatches)


def test_batch_norm_over_processes_is_part_of_the_graph() -> None:
    with pretended_ranks(2):
        assert_compiled_once(1, 1)


def test_a_graph_is_as_large_for_any_number_of_groups() -> None:
    sizes = []

    def backend(module, inputs):  # type: ignore[no-untyped-def]
        sizes.append(len(module.graph.nodes))
        return module.forward

    for groups in (2, 8):
        torch._dynamo.reset()
        compiled = network(groups, 1)
        compile_forward(compiled, backend)
        compiled(images_of(0))
    assert sizes[0] == sizes[1]


def test_two_networks_of_one_backbone_are_compiled_together(monkeypatch) -> None:
    """Compiled one by one as well, their batch norm would count each pass twice."""
    monkeypatch.setattr(pretraining, "compile_forward", partial(compile_forward, backend="eager"))
    monkeypatch.setenv("CXX", sys.executable)
    plain, compiled = (task_of(build("cmc", bn_groups=2)) for _ in range(2))
    pretraining.compile_encoders(compiled.method)
    for task in (plain, compiled):
        train_step(task, 0, training_batch("cmc", {}, 8, 0))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_network_continues_exactly_from_a_checkpoint(backend: str, tmp_path) -> None:
    """The one that continues is compiled again, as in another process."""
    store, ends = Checkpoints(tmp_path), []
    for first in (0, 2):
        torch._dynamo.reset()
        compiled = network(2, 1)
        compile_forward(compiled, backend)
        optimizer = torch.optim.SGD(compiled.parameters(), 0.1, momentum=0.9)
        assert store.restore(compiled, optimizer, print)[0] == first
        for number in range(first, 4):
            step(compiled, images_of(number))
            optimizer.step()
            optimizer.zero_grad()
            if number == 1:
                store.save(2, compiled, optimizer, {})
                store.finish()
        ends.append(compiled.state_dict())
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


@pytest.mark.parametrize("checkpointing", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    ["vit", *(pytest.param(f"test_{name}", marks=pytest.mark.slow) for name in ("convnext", "efficientnet"))],
)
def test_every_kind_of_backbone_can_be_compiled(name: str, checkpointing: bool) -> None:
    """With the same features and gradients, images of two sizes, and recomputed activations."""
    if checkpointing and name == "test_efficientnet":
        pytest.skip("its batch norm would count each batch twice, which backbone.check refuses")
    torch.manual_seed(0)
    plain = backbones.build(config(name, checkpointing=checkpointing)).double().train()
    set_groups(plain, 2, 1)
    compiled = copy.deepcopy(plain)
    counter = CompileCounterWithBackend("aot_eager")
    compile_forward(compiled, counter)
    for size in (64, 32):
        images = images_of(0, size)
        found, expected = (part(images) for part in (compiled, plain))
        torch.testing.assert_close(found, expected)
        found.square().mean().backward(), expected.square().mean().backward()
    assert counter.frame_count == 2
    for p, q in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_graphs_are_asked_of_the_compiler() -> None:
    modes = []

    def backend(module, inputs, *, mode):  # type: ignore[no-untyped-def]
        modes.append(mode)
        return module.forward

    compiled = network(1, 1)
    compile_forward(compiled, backend, graphs=True)
    step(compiled, images_of(0))
    assert set(modes) == {"reduce-overhead"}


class AsGraphs:
    """Encoders whose outputs the next step overwrites, and the next pass without gradient: as CUDA graphs."""

    def __init__(self, task: PretrainingTask) -> None:
        self.outputs: list[torch.Tensor] = []
        for encoder in encoders(task.method):
            encoder.forward = partial(self.run, encoder, encoder.forward)  # type: ignore[method-assign]

    def run(self, encoder, forward, images: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        result = forward(images)
        norms = [norm for norm in encoder.modules() if isinstance(norm, GroupBatchNorm) and encoder.training]
        self.outputs += [result, *(norm.latest for norm in norms)]
        return result if torch.is_grad_enabled() else result.clone()

    def overwrite(self) -> None:
        for output in self.outputs:
            output.data.fill_(float("nan"))
        self.outputs.clear()


def addresses(task: PretrainingTask) -> dict[str, int]:
    return {name: value.data_ptr() for name, value in task.state_dict(keep_vars=True).items()}


@pytest.mark.parametrize("case", [case for case in CASES if case[2] == WHOLE], ids=case_name)
def test_a_method_writes_in_place_and_keeps_no_output_of_its_encoder(case: Case, tmp_path) -> None:
    """A captured graph reads tensors where they are; also after a checkpoint is restored."""
    kind, option, _ = case
    plain, captured = (task_of(build(kind, bn_groups=2, **option)) for _ in range(2))
    graphs, places = AsGraphs(captured), addresses(captured)
    optimizer = torch.optim.SGD(captured.parameters(), 0.1)
    for number in range(3):
        for task in (plain, captured):
            loss = train_step(task, number, training_batch(kind, option, 8, number))
            if task is plain:
                expected = loss
        assert torch.equal(loss, expected)
        graphs.overwrite()
    for name, value in plain.state_dict().items():
        assert torch.equal(captured.state_dict()[name], value), name
    store = Checkpoints(tmp_path)
    store.save(3, captured, optimizer, {})
    store.finish()
    store.restore(captured, optimizer)
    assert addresses(captured) == places
