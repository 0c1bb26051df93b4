"""cl classify with and without --finetune: accuracy of the unlabelled images, and whether the rule is right.

`python -W ignore -m benchmarks.finetuning ENCODER RESIZE CROP FOLDER [FOLDER ...]`: folders of images in
folders named after their class. Labels are drawn twice, equally many for each class.
"""

import sys
import time
from pathlib import Path

import numpy as np

import cl
from benchmarks.classification import draw
from cl.commands.classifiers.finetuning import finetune, finetuned_if_better, middles
from cl.commands.classifiers.heads import train
from cl.commands.inputs.labels import Targets
from cl.console.command import progress

LABELS, DRAWS = (50, 300), 2
HEADS = "set | labels | frozen | fine-tuned | log-loss, held out | standard error | accuracy, held out | used"


def main() -> None:
    file, resize, crop, *folders = sys.argv[1:]
    encoder = cl.load(file)
    encoder.transform = encoder.transform.model_copy(update={"resize": int(resize), "crop": int(crop)})
    print(f"| {HEADS} | right | seconds |", "|---" * 10 + "|", sep="\n")
    for folder in map(Path, folders):
        files = np.array(sorted(folder.rglob("*.jpg")))
        classes = np.unique([path.parent.name for path in files], return_inverse=True)[1]
        features = encoder.embed(list(files)).numpy()
        for seed in range(DRAWS):
            for labels in LABELS:
                measure(encoder, folder.name, files, classes, features, labels, seed)


def measure(encoder, name, files, classes, features, labels, seed) -> None:  # type: ignore[no-untyped-def]
    """Print a row; fine-tuning is measured even where the rule refuses it."""
    numbered = np.column_stack([np.arange(len(files)), features])
    drawn = draw(numbered, classes, labels, seed)
    chosen, rest = (list(files[rows[:, 0].astype(int)]) for rows in (drawn.features, drawn.rest))
    names = [str(number) for number in range(drawn.labels.max() + 1)]
    targets = np.eye(len(names), dtype=bool)[drawn.labels]
    trained = train(drawn.features[:, 1:], targets, names)
    began = time.perf_counter()
    known = Targets([], names, targets, np.full(len(targets), -1), np.zeros(len(targets), bool), [])
    compared, better = finetuned_if_better(
        encoder, chosen, drawn.features[:, 1:], known, trained.head, progress("classify")
    )
    seconds = time.perf_counter() - began
    if better:
        tuned, head = better[0], better[1].head
    else:
        tuned, head = finetune(encoder, trained.head, middles(encoder, chosen), targets)
    found = [
        100 * float((model.probabilities(rows).argmax(1) == drawn.truth).mean())
        for model, rows in ((trained.head, drawn.rest[:, 1:]), (head, tuned.embed(rest).numpy()))
    ]
    cells = [
        *(name, str(len(chosen)), *(f"{value:.1f}" for value in found)),
        "{:.3f} to {:.3f}".format(*compared.log_loss),
        f"{compared.error:.3f}",
        "{:.1f} to {:.1f}".format(*compared.accuracy),
        "fine-tuned" if compared.better else "frozen",
        "yes" if compared.better == (found[1] > found[0]) else "no",
        f"{seconds:.0f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
