"""Weights that torchvision and timm publish by name, downloaded once.

`torchvision:<network>[:<weights>]`, such as torchvision:resnet50:IMAGENET1K_V2, for its ResNets;
`timm:<name>`, such as timm:convnext_tiny.fb_in1k, for all networks of timm. Importing this module is fast.
"""

import dataclasses
import hashlib
from contextlib import suppress
from pathlib import Path

SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".tar", ".pkl", ".torch")  # of weights


def is_name(name: str) -> bool:
    """Whether this names published weights."""
    return name.startswith(("torchvision:", "timm:"))


def check_file(name: str) -> None:
    """Raises ValueError if this names a file that is missing."""
    if not is_name(name):
        located(str(file_and_prefix(name)[0]))


def file_and_prefix(name: str, prefix: str | None = None) -> tuple[Path, str | None]:
    """The two of `<file>:<prefix>`, if there is only that file; of other names, the whole and `prefix`."""
    whole = Path(name).expanduser()
    file, colon, own = str(whole).rpartition(":")
    return (Path(file), own) if colon and Path(file).is_file() and not whole.exists() else (whole, prefix)


def fetch(name: str) -> tuple[Path, dict[str, str]]:
    """The file with these weights, or of this name, and what is known of it, such as license and network."""
    if name.startswith("timm:"):
        return _timm(name)
    return _torchvision(name) if name.startswith("torchvision:") else located(name), {}


def downloaded() -> list[str]:
    """The names of published weights that are on this machine, found without a connection."""
    import torch  # late: it takes seconds to import
    from huggingface_hub import CacheNotFound, scan_cache_dir
    from torchvision.models import get_model_weights

    from cl.networks.backbones.resnet import PUBLISHED

    files = Path(torch.hub.get_dir()) / "checkpoints"
    names = [
        f"torchvision:{network}:{weights.name}"
        for network in PUBLISHED
        for weights in get_model_weights(network)
        if (files / weights.url.rsplit("/", 1)[1]).is_file()
    ]
    with suppress(CacheNotFound):
        for repository in scan_cache_dir().repos:
            stored = {file.file_name for revision in repository.revisions for file in revision.files}
            if repository.repo_id.startswith("timm/") and "model.safetensors" in stored:
                names.append(f"timm:{repository.repo_id.removeprefix('timm/')}")
    return sorted(names)


def located(name: str) -> Path:
    """The file of this name, or model.safetensors in a folder of this name, as timm saves it."""
    for path in (Path(name), Path(name) / "model.safetensors"):
        if path.is_file():
            return path
    raise ValueError(missing(Path(name)))


def missing(path: Path) -> str:
    """The error message about a path that is not a file."""
    if not path.is_dir():
        what = "is not a file" if path.exists() else "does not exist"
        given = f"{path} {what}; give a checkpoint, torchvision:resnet50 or timm:resnet50.a1_in1k"
        if path != Path("models/backbone.safetensors"):
            return given
        return f"{given} with --encoder: the pipeline writes it in its project, and this is {Path.cwd()}"
    if any(path.glob("*.distcp")):
        merge = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} {path}.pth"
        return f"{path} is a folder with a distributed checkpoint; merge it into a file: `{merge}`"
    if any(path.glob("*-of-*.safetensors")):
        return f"{path} has its weights in parts; save one file: save_pretrained(..., max_shard_size='1TB')"
    inside = [file for file in path.glob("*") if file.suffix in SUFFIXES and file.is_file()]
    inside.sort(key=lambda file: (SUFFIXES.index(file.suffix), file.name))
    if inside:
        return f"{path} is a folder; give the file in it: {inside[0]}"
    return f"{path} is a folder; none of its files ends in {', '.join(SUFFIXES)}"


def torchvision_url(name: str) -> str:
    """The address of torchvision's weights; it ends in `-<hash>.pth`."""
    from torchvision.models import get_model_weights

    from cl.networks.backbones.resnet import PUBLISHED

    _, network, *version = name.split(":")
    if network not in PUBLISHED:
        raise ValueError(
            f"{name} is not supported; choose one of torchvision:{', torchvision:'.join(PUBLISHED)}"
        )
    known = get_model_weights(network).__members__
    chosen = version[0] if version else "IMAGENET1K_V1"  # the papers' supervised network
    if chosen not in known:
        raise ValueError(f"{name} does not exist; {network} has the weights {', '.join(known)}")
    return str(known[chosen].url)


def _torchvision(name: str) -> Path:
    import torch  # late: it takes seconds to import

    url = torchvision_url(name)
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
    hash_prefix = file.stem.rsplit("-", 1)[1]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(file), hash_prefix, progress=False)
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{name} cannot be downloaded ({error}); put {file.name} into {file.parent}"
            ) from error
    if not hashlib.sha256(file.read_bytes()).hexdigest().startswith(hash_prefix):
        raise ValueError(f"{file} is not {name}: its SHA-256 must start with {hash_prefix}; remove the file")
    return file


def _timm(name: str) -> tuple[Path, dict[str, str]]:
    model = name.removeprefix("timm:")
    import timm  # late: it takes seconds to import
    from huggingface_hub import hf_hub_download

    from cl.encoders._descriptions import metadata

    try:
        settings = timm.models.get_pretrained_cfg(model, allow_unregistered=False)
    except RuntimeError:
        settings = None
    if settings is None or not settings.hf_hub_id:
        similar = ", ".join(timm.list_pretrained(f"{model.split('.')[0]}.*")[:6])
        remedy = f"; choose for example {similar}" if similar else ""
        raise ValueError(f"timm has no weights called {model}{remedy}")
    try:
        file = hf_hub_download(settings.hf_hub_id, "model.safetensors")
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{name} cannot be downloaded ({reason}); load it on a machine with a connection, and copy its "
            "HF_HOME folder"
        ) from error
    architecture = model.split(".")[0]
    return Path(file), metadata(
        {"architecture": architecture, "pretrained_cfg": dataclasses.asdict(settings)}
    )
