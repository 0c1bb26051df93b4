"""What `benchmarks.beside` runs in other programs' environments: `PYTHON beside_cases.py CASE NETWORK ...`.

NETWORK is `NAME=FILE`: timm's name of a network without classifier, and its .safetensors file. Imports come
late, so that the start of a program does not count the libraries of another.
"""

import json
import sys
from pathlib import Path
from typing import Any

BATCH = 256  # images, as in `cl embed`


def network(described: str) -> Any:
    import timm
    from safetensors.torch import load_file

    name, file = described.split("=")
    built = timm.create_model(name, num_classes=0)
    weights = load_file(file)
    built.load_state_dict({key: weights[key] for key in built.state_dict()})
    return built.eval()


def lightly_checkpoint(described: str, to: str) -> None:
    """Write the network as a training of lightly-train would."""
    from lightly_train._checkpoint import Checkpoint, CheckpointLightlyTrain, CheckpointLightlyTrainModels
    from lightly_train._models.embedding_model import EmbeddingModel
    from lightly_train._models.package_helpers import get_wrapped_model
    from lightly_train._transforms.transform import NormalizeArgs

    model = network(described)
    wrapped = get_wrapped_model(model, num_input_channels=3)
    models = CheckpointLightlyTrainModels(model, wrapped, EmbeddingModel(wrapped))
    Checkpoint({}, CheckpointLightlyTrain.from_now(models, NormalizeArgs())).save(Path(to))


def imagededup(described: str, side: int) -> Any:
    """Its CNN method with the network, and with the images that `cl embed` gives to it."""
    from imagededup.methods import CNN
    from imagededup.utils.models import CustomModel
    from torchvision import transforms

    model = network(described)
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    transform = transforms.Compose(
        [
            transforms.Resize(side * 8 // 7, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(side),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )
    method = CNN(model_config=CustomModel("the network", model, transform))
    method.batch_size = BATCH
    return method


def imagededup_embed(described: str, folder: str, to: str, side: str) -> None:
    import numpy as np
    import torch

    encodings = imagededup(described, int(side)).encode_images(folder)
    features = torch.from_numpy(np.stack(list(encodings.values())))  # arrays need pickle to be read
    torch.save({"filenames": list(encodings), "embeddings": features}, to)


def imagededup_cnn(described: str, folder: str, to: str) -> None:
    imagededup(described, 224).find_duplicates(folder, outfile=to)


def imagededup_phash(_: str, folder: str, to: str) -> None:
    from imagededup.methods import PHash

    PHash().find_duplicates(folder, outfile=to)


def fiftyone_brain(_: str, folder: str, to: str) -> None:
    """With its default network, resnet18-imagenet-torch, and its default threshold."""
    import fiftyone
    import fiftyone.brain

    dataset = fiftyone.Dataset.from_images_dir(folder)
    index = fiftyone.brain.compute_near_duplicates(dataset)
    names = dict(zip(*dataset.values(["id", "filepath"]), strict=True))
    found = {
        Path(names[first]).name: [Path(names[second]).name for second, _ in others]
        for first, others in index.neighbors_map.items()
    }
    Path(to).write_text(json.dumps(found))


CASES = (
    lightly_checkpoint,
    imagededup_embed,
    imagededup_cnn,
    imagededup_phash,
    fiftyone_brain,
)

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[1]](*sys.argv[2:])
