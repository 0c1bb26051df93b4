"""Every family of timm's networks loads again: our files, our exports, and timm's own folders."""

import json
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import Tensor

import cl
from cl.data.transform import Transform
from cl.encoders import formats
from cl.networks import backbones
from cl.networks.backbones.timm import Config
from cl.runtime.tensor_files import save_tensors

# Timm's smallest; and one whose first tensor is called like others inside its blocks.
FAST = "test_convnext test_efficientnet test_resnet test_vit seresnet18"
# The smallest of each other family, apart from deepseek_vit and gemma4_vit, which take gigabytes.
SLOW = """
test_byobnet test_coatnet test_mambaout test_maxvit test_nfnet test_vit_relpos hrnet_w18_small
beitv2_base_patch16_224 cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32 cpubone_nano crossvit_tiny_240
cs3darknet_focus_s csatv2 cspnext_tiny davit_tiny deit_tiny_distilled_patch16_224 densenet121 dla46x_c
dpn48b edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientvim_m1 efficientvit_b0
efficientvit_m0 ese_vovnet19b_slim_dw fasternet_t0 fastvit_t8 focalnet_tiny_srf gcvit_xxtiny ghostnet_050
gmlp_ti16_224 hardcorenas_a hgnetv2_b0 hiera_tiny_224 iformer_t inception_next_atto inception_resnet_v2
inception_v3 inception_v4 lambda_resnet26t lcnetv2_small legacy_seresnet18 legacy_xception levit_128s
lowformer_b0 mobilenetv3_small_050 mobilenetv5_base mobilevit_xxs mvitv2_tiny
naflexvit_base_patch16_parfac_gap nasnetalarge nest_tiny_jx nextvit_small pit_ti_224 pnasnet5large
poolformerv2_s12 pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050 repvit_m1 res2net50_48w_2s
resnest14d resnetv2_18 rexnet_100 sam2_hiera_tiny samvit_base_patch16_224 selecsls42 sequencer2d_s shvit_s1
skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_384
swinv2_tiny_window16_256 tiny_vit_5m_224 tnt_s_legacy_patch16_224 tresnet_m twins_svt_small vgg11
visformer_tiny vit_tiny_patch16_dinov3_qkvb vit_tiny_r_s16_p8_224 vitamin_small_224 volo_d1_224 xception41p
xcit_nano_12_p8_384
"""


@pytest.mark.parametrize(
    "name", [*FAST.split(), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW.split())]
)
def test_a_family_is_read_as_pretrain_export_and_timm_write_it(name, tmp_path) -> None:
    size = timm.get_pretrained_cfg(name).input_size[-1]
    config = Config(kind="timm", name=name, size=size, pool=None, drop_path=0, checkpointing=False)
    network = backbones.build(config).eval()
    transform = Transform(resize=size, crop=size, mean=(0.5,) * 3, std=(0.5,) * 3, upright=True)
    parameters = json.dumps({"backbone": config.model_dump()})
    metadata = {"parameters": parameters, "transform": transform.model_dump_json()}
    save_tensors(network.state_dict(), tmp_path / "models/backbone.safetensors", metadata)
    description = formats.describe(config, network.fc_features, transform)
    formats.write_folder(network, tmp_path / "ours", description, {})
    theirs = timm.create_model(f"local-dir:{tmp_path}/ours", pretrained=True).eval()
    files = ["models/backbone", "ours/model"]
    if name != "coat_tiny":  # shares tensors, which timm cannot write
        save_for_hf(theirs, str(tmp_path / "theirs"), safe_serialization=True)
        files.append("theirs/model")
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(images)
        assert_close(theirs(images), expected)
    for file in files:
        assert_close(cl.load(Path(f"{tmp_path}/{file}.safetensors")).embed(images), expected)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Up to rounding in networks whose random weights give features of any size."""
    assert float((found - expected).norm() / expected.norm()) < 1e-4
