"""kNN against a dense product and scikit-learn, and a grid of linear classifiers against a single one.

Each kNN case runs in its own process, so that peak memory is measured separately; the cases take turns.
"""

import copy
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from cl.training.optim import Config
    from cl.training.tasks import Probes

BANK, QUERIES, WIDTH, CLASSES, K, TEMPERATURE = 50_000, 10_000, 512, 1000, 200, 0.07
CASES = ("blocks", "half", "dense", "scikit-learn")
ROUNDS, GRID = 3, 16


def main() -> None:
    import torch

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{QUERIES} queries, {BANK} x {WIDTH} bank, k = {K}")
    results: dict[str, list[tuple[float, float, int]]] = {case: [] for case in CASES}
    for _ in range(ROUNDS):
        for case in CASES:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.evaluation", case]
            results[case].append(
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            )
    best = {
        case: (min(t for t, _, _ in runs), min(m for _, m, _ in runs), runs[0][2])
        for case, runs in results.items()
    }
    print("case           seconds   extra MiB   speed / dense   memory / dense   answers equal to dense")
    for case, (seconds, memory, equal) in best.items():
        faster, smaller = best["dense"][0] / seconds, memory / best["dense"][1]
        ours = f"{case:<14} {seconds:7.2f}   {memory:9.0f}"
        print(f"{ours}   {faster:13.2f}   {smaller:14.3f}   {equal} of {QUERIES}", flush=True)
    grid()


def measure(case: str) -> None:
    """Print [seconds, MiB, number of answers equal to the dense product's] of one classification."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from benchmarks.memory import peak
    from cl.features.knn import classify, vote

    torch.manual_seed(0)
    centres, labels = torch.randn(CLASSES, WIDTH), torch.randint(0, CLASSES, (BANK,))
    bank = F.normalize(centres[labels] + 4 * torch.randn(BANK, WIDTH), dim=1)
    queries = F.normalize(
        centres[torch.randint(0, CLASSES, (QUERIES,))] + 4 * torch.randn(QUERIES, WIDTH), dim=1
    )

    def ours(bank: Tensor = bank) -> Tensor:
        return classify(queries, bank, labels, CLASSES, k=[K], temperature=TEMPERATURE)[0]

    def dense() -> Tensor:
        cosines, positions = (queries @ bank.T).topk(K, dim=1)
        return vote(cosines, labels[positions], CLASSES, TEMPERATURE).argmax(1)

    small = torch.randn(256, 256)
    (small @ small).sum()  # allocate the matrix library's own buffers first
    if case == "scikit-learn":
        import numpy as np
        from sklearn.neighbors import KNeighborsClassifier

        weights = lambda distance: np.exp((1 - distance) / TEMPERATURE)  # noqa: E731
        fitted = KNeighborsClassifier(K, metric="cosine", algorithm="brute", weights=weights).fit(
            bank.numpy(), labels.numpy()
        )
        run = lambda: torch.from_numpy(fitted.predict(queries.numpy()))  # noqa: E731
    elif case == "half":
        bank_of_half = bank.half()
        run = lambda: ours(bank_of_half)  # noqa: E731
    else:
        run = dense if case == "dense" else ours
    before = peak(reset=True)
    began = time.perf_counter()
    answers = run()
    seconds, memory = time.perf_counter() - began, peak() - before
    print(json.dumps([seconds, memory, int((answers == dense()).sum())]))


def grid() -> None:
    """A step of the linear evaluation with one classifier and with sixteen, in turns."""
    import torch
    from torch import nn

    from cl.config import read
    from cl.networks import backbones
    from cl.networks.backbones import resnet
    from cl.runtime.machine import find
    from cl.training import optim
    from cl.training.tasks import Probes, classifier

    here = find("fp32", deterministic=False)
    settings = optim.Config(
        **read(Path("pipeline/conf/trainer/sgd.yaml")), batch_size=32, epochs=1, base_lr=1.0
    )
    print(f"\nlinear evaluation: images/s with 1 and with {GRID} classifiers, and the ratio of the times")
    for kind, size, batch, classes in (
        ("resnet50", 224, 32, 1000),
        ("resnet18", 32, 256, 100),
        ("resnet18", 32, 256, 1000),
    ):
        backbone = backbones.build(
            resnet.Config(kind="resnet", name=kind, width=1, stem="imagenet", zero_init_residual=False)
        ).eval()
        images, labels = torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
        first = classifier(backbone.fc_features, classes)
        steps = {}
        for number in (1, GRID):
            task = here.place(
                Probes(here.place(backbone), nn.ModuleList(copy.deepcopy(first) for _ in range(number)), here)
            )
            optimizer = optim.build(settings, [optim.Part(head, 1 + i) for i, head in enumerate(task.heads)])

            steps[number] = partial(
                _step, task, optimizer, settings, images.to(here.device), labels.to(here.device)
            )
        times: dict[int, list[float]] = {number: [] for number in steps}
        for _ in range(2 + 5 * ROUNDS):
            for number, step in steps.items():
                began = time.perf_counter()
                step()
                if here.device.type == "cuda":
                    torch.cuda.synchronize()
                times[number].append(time.perf_counter() - began)
        one, many = (sorted(values[2:])[len(values[2:]) // 2] for values in times.values())
        rates = f"{batch / one:.0f} and {batch / many:.0f}, {many / one:.2f}"
        print(f"{kind} at {size} px, {classes} classes: {rates}", flush=True)


def _step(
    task: "Probes", optimizer: "Optimizer", settings: "Config", images: "Tensor", labels: "Tensor"
) -> None:
    import torch

    from cl.objective.batch import Batch
    from cl.training.optim import clip_gradients

    task(Batch([images], labels, torch.arange(len(labels)))).backward()
    clip_gradients(optimizer, settings)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
