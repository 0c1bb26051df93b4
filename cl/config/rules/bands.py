"""Rules about images of bands: what needs RGB, and views that change colours."""

from collections.abc import Iterator

from cl.config.params import Params, SupervisedTraining
from cl.data.views import View


def check_bands(params: Params) -> None:
    """Raises ValueError if bands and other parameters exclude each other."""
    channels = params.dataset.channels
    if channels is None:
        for place, view in _views(params):
            if view.bands:
                raise ValueError(
                    f"{place}.bands changes bands, but dataset.channels=null reads images as RGB; choose "
                    "dataset.channels=all or a list of bands, or other views"
                )
        if params.dataset.show:
            raise ValueError(
                f"dataset.show={params.dataset.show} has no effect with dataset.channels=null; remove it"
            )
        return
    for place, remedy in _in_need_of_rgb(params):
        raise ValueError(f"{place} needs RGB, but dataset.channels={channels} reads bands; choose {remedy}")


def _in_need_of_rgb(params: Params) -> Iterator[tuple[str, str]]:
    """Each parameter that cannot work with bands, and a remedy."""
    if params.teacher:
        yield f"teacher={params.teacher.name}", "teacher=null and another method, such as method=simclr"
    if getattr(params.backbone, "streams", None):
        yield "backbone.streams", "a backbone without streams"
    if params.optim.cropping == "device":
        yield "optim.cropping=device", "optim.cropping=workers"
    for name in params.transfers:
        yield f"transfers.{name}", "transfer=[]"
    for name, baseline in params.baselines.items():
        if baseline.weights:
            yield f"baselines.{name}.weights={baseline.weights}", "baseline=[random]"
    for place, view in _views(params):
        chances = {"jitter.p": view.jitter.p, "grayscale": view.grayscale, "solarize": view.solarize}
        chances |= {"photometric": view.photometric or 0, "jigsaw": float(view.jigsaw is not None)}
        if needing := [name for name, chance in chances.items() if chance]:
            yield f"{place}.{needing[0]}", "recipe=own/bands, or views=bands and views without colour changes"


def _views(params: Params) -> Iterator[tuple[str, View]]:
    """All views, with their places in the parameters."""
    groups = {"views": params.views}
    for name, entry in params.evaluations.items():
        groups[f"evaluations.{name}.views"] = getattr(entry, "views", {})
    for name, baseline in params.baselines.items():
        if isinstance(baseline.training, SupervisedTraining):
            groups[f"baselines.{name}.training.views"] = baseline.training.views
    for group, views in groups.items():
        for name, view in views.items():
            yield f"{group}.{name}", view
