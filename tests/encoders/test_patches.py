"""`encoder.patches`: dense features, equal to timm's."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

import cl
from cl.encoders.encoder import IMAGENET, Encoder
from cl.networks import backbones
from cl.networks.backbones import Backbone
from cl.networks.backbones.timm import Config
from tests.support.pictures import picture_file
from tests.support.resnets import IMAGES, torchvision_network
from tests.support.transformers import randomised, transformer


def loaded(network: nn.Module, folder) -> Encoder:
    torch.save(network.state_dict(), folder / "weights.pth")
    return cl.load(folder / "weights.pth")


@torch.no_grad()
def in_timm(network: nn.Module, images: Tensor) -> Tensor:
    return network.forward_features(images)


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 4, "no_embed_class": True}])
def test_a_transformers_patches_are_timms_tokens_without_the_others(tmp_path, options) -> None:
    network = transformer(**options, dynamic_img_size=True)
    encoder, others = loaded(network, tmp_path), 1 + options.get("reg_tokens", 0)
    for size, grid in (((32, 32), (4, 4)), ((16, 48), (2, 6))):
        images = torch.randn(3, 3, *size)
        expected = in_timm(network, images)[:, others:].unflatten(1, grid)
        torch.testing.assert_close(encoder.patches(images, batch_size=2), expected)


def test_a_residual_networks_patches_are_timms_last_map(tmp_path) -> None:
    """torchvision and timm have the same names of tensors; the mean over the places is what `embed` gives."""
    network = torchvision_network(resnet18)
    encoder, theirs = loaded(network, tmp_path), timm.create_model("resnet18").eval()
    theirs.load_state_dict(network.state_dict())
    images = torch.cat([IMAGES, IMAGES.flip(3)])
    found = encoder.double().patches(images)
    assert (found.shape, found.dtype) == ((4, 2, 2, 512), torch.float32)
    torch.testing.assert_close(found, in_timm(theirs.double(), images.double()).permute(0, 2, 3, 1).float())
    torch.testing.assert_close(found.mean((1, 2)), encoder.embed(images))
    assert not encoder.training


# The last map of these in timm: channels first, last, and as tokens behind two others.
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("convnext_atto", lambda x: x.permute(0, 2, 3, 1)),
        ("efficientnet_lite0", lambda x: x.permute(0, 2, 3, 1)),
        ("mambaout_femto", lambda x: x),
        ("mobilenetv3_small_100", lambda x: x.permute(0, 2, 3, 1)),  # not as wide as what `embed` gives
        ("deit_tiny_distilled_patch16_224", lambda x: x[:, 2:].unflatten(1, (4, 4))),
    ],
)
def test_other_networks_of_timm(name, order) -> None:
    config = Config(kind="timm", name=name, size=64, drop_path=0, checkpointing=False, pool=None)
    network = randomised(backbones.build(config))
    found = Encoder(network, IMAGENET, "").patches(IMAGES)
    torch.testing.assert_close(found, order(in_timm(network, IMAGES)))


def test_files_and_no_images(tmp_path) -> None:
    encoder = loaded(transformer(), tmp_path)
    encoder.transform = encoder.transform.model_copy(update={"resize": 40, "crop": 32})
    path = picture_file(tmp_path / "a.jpg", 0, (50, 40))
    torch.testing.assert_close(encoder.patches(path), encoder.patches(encoder.transform(path)[None]))
    assert encoder.patches([]).shape == (0, 0, 0, 128)


def test_a_network_without_places_is_refused() -> None:
    class Plain(Backbone):
        fc_features = 3

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)) * self.scale

    with pytest.raises(ValueError, match="Plain gives no map .* 64 x 64 px; choose"):
        Encoder(Plain(), IMAGENET, "").patches(IMAGES)
