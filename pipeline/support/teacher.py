"""The teacher of distillation: models/teacher.safetensors, and its features of the training images."""

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cl.config import Params
from cl.console.command import is_main_process
from cl.console.progress import Count, Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.features.extraction import extract
from cl.networks import backbones
from cl.networks.backbones import Backbone
from cl.networks.teacher import SeeingTeacher, StoredTeacher, Teacher
from cl.runtime.distributed import max_over_ranks
from cl.runtime.machine import Machine
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import load_tensors, save_tensors
from pipeline.support import locations
from pipeline.support.command import Results

PART = 8192  # images whose features share a file
TIMED = 64  # images


@dataclass(frozen=True)
class FrozenTeacher:
    """A teacher with its own transform.

    origin: its name, hash and licence.
    """

    network: Backbone
    transform: Transform
    origin: dict[str, str]

    def features(self, images: EvalSet, here: Machine, count: Count) -> Tensor:
        """(N, D): unit features of centre crops, on the device."""
        return F.normalize(extract(here.place(self.network), images, here, count), dim=1)


def load(params: Params) -> FrozenTeacher | None:
    """The teacher that `teacher` names, if any; ValueError if the file holds another one."""
    if params.teacher is None:
        return None
    metadata = load_tensors(locations.TEACHER)[1]
    origin = json.loads(metadata.get("origin", "{}"))
    if {key: origin.get(key) for key in ("name", "hash")} != params.teacher.model_dump():
        raise ValueError(f"{locations.TEACHER} is not {params.teacher.name}: run `dvc repro weights`")
    values = json.loads(metadata["network"])
    config = module_of("networks.backbones", values["kind"]).Config.model_validate(values)
    network = backbones.load(config, locations.TEACHER)
    return FrozenTeacher(network, Transform.model_validate_json(metadata["transform"]), origin)


def keys(params: Params, here: Machine, bank: Reader, progress: Progress) -> Teacher | None:
    """What gives the method its keys, as `method.teacher_views` says."""
    teacher = load(params)
    if teacher is None:
        return None
    if params.method.model_dump()["teacher_views"] == "fixed":
        return StoredTeacher(stored(teacher, here, bank, progress))
    transforms = locations.transform(params.dataset), teacher.transform
    student, own = (torch.tensor([t.mean, t.std], device=here.device) for t in transforms)
    return SeeingTeacher(here.place(teacher.network), teacher.transform.crop, student, own)


def stored(teacher: FrozenTeacher, here: Machine, bank: Reader, progress: Progress) -> Tensor:
    """(images, D): features of all training images, on the device.

    They are computed once for a teacher, images and precision, and kept in CL_SCRATCH part by part: an
    interrupted run continues there, and later runs read them.
    """
    known = [locations.file_sha256(locations.TEACHER), locations.manifest_hash(), here.precision]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
    folder, parts = locations.scratch() / "teachers" / digest[:16], []
    for start in range(0, len(bank), PART):
        path = folder / f"{start}.safetensors"
        (missing,) = max_over_ranks(not path.is_file())
        if missing:
            if start == 0:
                progress.say(f"the teacher encodes {len(bank)} images once, for {folder}")
            images = np.arange(start, min(start + PART, len(bank)))
            part = teacher.features(EvalSet(bank, teacher.transform, images), here, progress.count)
            if is_main_process():
                save_tensors({"features": part}, path)
        else:
            part = load_tensors(path)[0]["features"].to(here.device)
        parts.append(part)
    return torch.cat(parts)


def trial(params: Params, here: Machine, bank: Reader, progress: Progress) -> tuple[Teacher | None, float]:
    """A teacher for a few steps, whose stored features are random, and its seconds per image before them."""
    teacher = load(params)
    if teacher is None or params.method.model_dump()["teacher_views"] == "same":
        return keys(params, here, bank, progress), 0.0
    images = EvalSet(bank, teacher.transform, np.arange(min(TIMED, len(bank))))
    for _ in range(2):  # the first is a warm-up
        since = time.monotonic()
        teacher.features(images, here, progress.count).sum().item()
    seconds = (time.monotonic() - since) / len(images)
    random = torch.randn(len(bank), teacher.network.fc_features, device=here.device)
    return StoredTeacher(F.normalize(random, dim=1)), seconds


def note(results: Results, params: Params, here: Machine) -> dict[str, str] | None:
    """Note what student and teacher cost; returns the teacher's origin, if there is one."""
    teacher = load(params)
    if teacher is None:
        return None
    student = backbones.build(params.backbone).eval()  # not compiled, nor in microbatches
    results.notes["distillation"] = {
        "teacher": teacher.origin | cost(teacher.network, teacher.transform.crop, here),
        "student": cost(student, params.dataset.crop, here),
    }
    return teacher.origin


@torch.no_grad()
def cost(network: Backbone, size: int, here: Machine) -> dict[str, Any]:
    """Parameters, and multiply-accumulates and milliseconds for an image of this side in pixels."""
    image = torch.zeros(1, 3, size, size, device=here.device)
    here.place(network)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # counts attention on CPUs
        network(image)
    seconds = []
    for _ in range(10):
        since = time.monotonic()
        network(image).sum().item()
        seconds.append(time.monotonic() - since)
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "macs": counter.get_total_flops() // 2,
        "milliseconds": 1000 * min(seconds),
    }
