"""The built-in backbones: shapes of every stage, what is trained, sizes in closed form, weights from files."""

from copy import deepcopy
from functools import cache
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from combemb.backbones import Backbone, build, names

WIDTH = 8  # of resnet18 here
MAPS = {  # what each stage gives for an image of the default size
    "alexnet": {
        "conv1": (64, 27, 27),
        "conv2": (192, 13, 13),
        "conv3": (384, 13, 13),
        "conv4": (256, 13, 13),
        "conv5": (256, 6, 6),
        "fc": (4096,),
    },
    "efficientnet_lite0": {
        "stem": (32, 112, 112),
        "stage1": (16, 112, 112),
        "stage2": (24, 56, 56),
        "stage3": (40, 28, 28),
        "stage4": (80, 14, 14),
        "stage5": (112, 14, 14),
        "stage6": (192, 7, 7),
        "stage7": (1280, 7, 7),
    },
    "nin": {"conv1": (96, 16, 16), "conv2": (256, 8, 8), "conv3": (384, 4, 4), "conv4": (1024, 4, 4)},
    "resnet18": {
        "stem": (WIDTH, 32, 32),
        "layer1": (WIDTH, 32, 32),
        "layer2": (2 * WIDTH, 16, 16),
        "layer3": (4 * WIDTH, 8, 8),
        "layer4": (8 * WIDTH, 4, 4),
    },
    "vgg": {"block1": (64, 16, 16), "block2": (128, 8, 8), "block3": (256, 4, 4), "block4": (512, 4, 4)},
}
FEATURES = {"alexnet": 4096, "efficientnet_lite0": 1280, "nin": 1024, "resnet18": 8 * WIDTH, "vgg": 768}
every_backbone = pytest.mark.parametrize("name", names())


def make(name: str, seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    return build(name, width=WIDTH if name.startswith("resnet18") else 64)


@cache
def shared(name: str) -> Backbone:
    """One for all tests that do not change it, in eval mode, with batch norms that are no identity."""
    backbone = make(name).eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d) and not backbone.has_weights:
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data.uniform_(0.5, 1.5)
    return backbone


def pixels(height: int, width: int | None = None, n: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, 3, height, width or height), dtype=torch.uint8, generator=generator)


def test_the_names_are_listed_in_order():
    assert names() == sorted(MAPS)
    assert [shared(name).name for name in names()] == names()


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match=r"unknown backbone 'resnet'.*alexnet, .*resnet18, vgg, or hf:<name>"):
        build("resnet")


@pytest.mark.parametrize(
    ("name", "width", "message"), [("vgg", 32, "width=32 is for resnet18 only; vgg has"), ("resnet18", 0, "width=0")]
)
def test_a_width_that_a_backbone_cannot_have_is_refused(name, width, message):
    with pytest.raises(ValueError, match=message):
        build(name, width=width)


@every_backbone
def test_every_stage_gives_the_maps_that_it_should(name):
    backbone = shared(name)
    images = pixels(backbone.default_size, n=1)
    assert backbone.stage_names == list(MAPS[name])
    with torch.no_grad():
        assert {stage: tuple(backbone.maps(images, stage).shape[1:]) for stage in backbone.stages} == MAPS[name]
        assert backbone(images).shape == (1, backbone.n_features) == (1, FEATURES[name])


@every_backbone
def test_the_last_stage_after_all_others_is_the_whole_for_any_size(name):
    backbone = shared(name)
    side = backbone.min_size
    for height, width in ((side, side), (side + 3, side + 8)):
        images = pixels(height, width)
        with torch.no_grad():
            features = backbone(images)
            assert torch.equal(backbone.before_last(images), backbone.maps(images, backbone.stage_names[-2]))
            assert torch.equal(backbone.last(backbone.before_last(images)), features)
        assert features.shape == (2, backbone.n_features)
        assert features.isfinite().all()
        assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize("name", ["nin", "resnet18", "efficientnet_lite0"])
def test_features_are_the_mean_over_the_positions(name):
    backbone, images = shared(name), pixels(64)
    with torch.no_grad():
        last = backbone.maps(images, backbone.stage_names[-1])
        torch.testing.assert_close(backbone(images), last.flatten(2).mean(dim=2))


def test_features_of_vgg_are_the_means_of_its_last_two_blocks():
    backbone, images = shared("vgg"), pixels(32)
    with torch.no_grad():
        means = [backbone.maps(images, stage).flatten(2).mean(dim=2) for stage in ("block4", "block3")]
        torch.testing.assert_close(backbone(images), torch.cat(means, dim=1))


@every_backbone
def test_pixels_may_be_bytes_or_floats(name):
    backbone, images = shared(name), pixels(64)
    with torch.no_grad():
        assert torch.equal(backbone(images), backbone(images.float()))


@pytest.mark.parametrize("name", ["nin", "resnet18", "vgg"])
def test_pixels_become_numbers_between_minus_one_and_one(name):
    ends = torch.tensor([0.0, 255.0])[:, None, None, None].expand(2, 3, 64, 64)
    assert shared(name).normalised(ends).flatten(1).unique(dim=1).tolist() == [[-1], [1]]


@every_backbone
@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 1, 64, 64), (2, 64, 64, 3)])
def test_pixels_of_another_form_are_refused(name, shape):
    with pytest.raises(ValueError, match=rf"{name} got pixels of shape \({shape[0]}, .*give \(B, 3, H, W\)"):
        shared(name)(torch.zeros(shape))


@every_backbone
def test_images_below_the_least_size_are_refused(name):
    side = shared(name).min_size
    with pytest.raises(ValueError, match=f"sides of at least {side}"):
        shared(name)(pixels(side + 1, side - 1))


def test_the_least_size_of_alexnet_is_the_least_that_its_pooling_takes():
    with pytest.raises(RuntimeError, match="too small"):
        nn.Sequential(*shared("alexnet").stages.values())(torch.zeros(1, 3, 62, 62))


def test_an_unknown_stage_lists_the_choices():
    with pytest.raises(ValueError, match="vgg has no stage 'layer4'; choose one of block1, block2, block3, block4"):
        shared("vgg").maps(pixels(32), "layer4")


@every_backbone
def test_only_the_last_stage_gets_gradients_when_only_it_is_trained(name):
    backbone = make(name).eval().requires_grad_(False)
    last = backbone.stages[backbone.stage_names[-1]].requires_grad_(True)
    backbone(pixels(64)).sum().backward()
    assert {p for p in backbone.parameters() if p.grad is not None} == set(last.parameters())
    assert all(p.grad.any() for p in last.parameters())


@pytest.mark.parametrize("name", ["efficientnet_lite0", "nin", "resnet18", "vgg"])
def test_all_stages_get_gradients_by_default(name):
    backbone = make(name)
    backbone(pixels(64)).square().sum().backward()
    assert all(p.grad is not None for p in backbone.stages.parameters())
    assert all(p.grad is not None for p in backbone.parameters() if p.requires_grad)  # else DDP would wait for them


@pytest.mark.parametrize("name", ["nin", "resnet18", "vgg"])
def test_the_seed_decides_the_weights(name):
    first, again, other = (make(name, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if key.endswith("weight") and first[key].ndim > 1]
    assert len(weights) >= 7
    assert not any(torch.equal(first[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", ["alexnet", "nin", "resnet18", "vgg"])
def test_random_weights_keep_features_of_a_useful_size(name):
    with torch.no_grad():
        spread = shared(name)(pixels(64, n=8)).std(dim=1)
    assert ((spread > 0.05) & (spread < 20)).all()


def n_parameters(name: str, width: int) -> int:
    """In closed form: 9 i o weights for a 3x3 convolution from i to o channels, 2 o for a batch norm."""
    if name == "alexnet":
        convolutions = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
        return sum(i * o * k * k + o for i, o, k in convolutions) + (256 * 36 + 1) * 4096 + (4096 + 1) * 4096
    if name == "vgg":
        sides = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512)
        return sum(9 * i * o + 2 * o for i, o in pairwise(sides))
    if name == "nin":
        convolutions = (
            (3, 96, 5),
            (96, 96, 1),
            (96, 256, 5),
            (256, 256, 1),
            (256, 384, 1),
            (384, 384, 1),
            (384, 1024, 3),
        )
        return sum(i * o * k * k + o for i, o, k in convolutions)
    w = width
    plain = sum(18 * (c * w) ** 2 + 4 * c * w for c in (1, 1, 2, 4, 8))  # the blocks that keep their c w channels
    changing = sum((18 + 36 + 2) * (c * w) ** 2 + 12 * c * w for c in (1, 2, 4))  # from c w to 2 c w, with a shortcut
    return 27 * w + 2 * w + plain + changing


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("alexnet", 64, 57_003_840),
        ("nin", 64, 4_483_552),
        ("vgg", 64, 7_637_952),
        ("resnet18", 64, 11_168_832),
        ("resnet18", WIDTH, 175_752),
    ],
)
def test_the_number_of_parameters_is_the_closed_form(name, width, expected):
    backbone = build(name, width=width) if name == "resnet18" else shared(name)
    assert n_parameters(name, width) == expected
    assert sum(p.numel() for p in backbone.parameters()) == expected


def test_a_block_of_resnet18_whose_residual_is_zero_is_its_shortcut():
    backbone = make("resnet18").eval()
    for i, block in enumerate(backbone.stages["layer2"]):
        nn.init.zeros_(block.residual[-1].weight)
        x = torch.randn(2, WIDTH * (i + 1), 7, 6)
        with torch.no_grad():
            strided = x if i else functional.conv2d(x, block.shortcut[0].weight, stride=2)
            shortcut = strided if i else strided / (1 + 1e-5) ** 0.5  # a fresh batch norm
            torch.testing.assert_close(block(x), shortcut.clamp(min=0))


@every_backbone
def test_the_copy_for_inference_gives_the_same_features(name):
    backbone, images = shared(name), pixels(70, 67)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    copy = backbone.for_inference()
    with torch.no_grad():
        features, maps = copy(images), copy.before_last(images)
        assert (features - backbone(images)).norm() < 1e-4 * features.norm()
        assert (maps - backbone.before_last(images)).norm() < 1e-4 * maps.norm()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in copy.modules())
    assert not any(p.requires_grad for p in copy.parameters())
    assert not any(module.training for module in copy.modules())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_the_copy_for_inference_leaves_the_original_in_training():
    backbone = make("resnet18")
    backbone.for_inference()
    assert all(module.training for module in backbone.modules())
    assert all(p.requires_grad and p.is_contiguous() for p in backbone.parameters())  # safetensors needs the latter


@every_backbone
def test_weights_come_back_from_a_file(name, tmp_path):
    first, path = make(name), tmp_path / "weights.safetensors"
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(0.9)
    save_file(first.state_dict(), path)
    torch.manual_seed(1)
    again = build(name, width=WIDTH if name == "resnet18" else 64, weights=str(path))
    assert again.state_dict().keys() == first.state_dict().keys()
    assert all(torch.equal(value, first.state_dict()[key]) for key, value in again.state_dict().items())


def without(state: dict, key: str) -> dict:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "stages.stem.0.weight"), r"1 missing \(stages.stem.0.weight\)"),
        (lambda s: s | {"head.bias": torch.zeros(1)}, r"1 unknown \(head.bias\)"),
        (
            lambda s: s | {"stages.stem.0.weight": torch.zeros(8, 3, 5, 5)},
            r"1 of another shape \(stages.stem.0.weight \(8, 3, 5, 5\) instead of \(8, 3, 3, 3\)\)",
        ),
        (lambda s: {f"module.{key}": value for key, value in s.items()}, r"120 missing \(.*, \.\.\.\); 120 unknown"),
    ],
)
def test_weights_that_do_not_fit_say_what_is_wrong_and_change_nothing(tmp_path, change, message):
    backbone, path = make("resnet18"), tmp_path / "weights.safetensors"
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    save_file(change(make("resnet18", seed=1).state_dict()), path)
    with pytest.raises(ValueError, match=rf"weights.safetensors does not fit resnet18 \(F=64\): {message}"):
        backbone.load_weights(path)
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_weights_of_another_width_do_not_fit(tmp_path):
    save_file(build("resnet18", width=4).state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"of another shape .* give the file of a backbone with the same name and wid"):
        build("resnet18", width=8, weights=str(tmp_path / "weights.safetensors"))


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    for file in ("broken.safetensors", "missing.safetensors"):
        with pytest.raises(ValueError, match=f"cannot read .*{file}.*give a .safetensors file"):
            build("vgg", weights=str(tmp_path / file))


# A backbone that ends at an earlier stage


@every_backbone
def test_features_of_a_stage_are_its_maps_averaged_over_the_positions(name):
    whole = shared(name)
    images, state = pixels(70, 67), whole.state_dict()
    for stage in whole.stage_names[:-1]:
        ended = deepcopy(whole)
        ended.end_at(stage)
        with torch.no_grad():
            maps = whole.maps(images, stage)
            assert torch.equal(ended(images), maps.mean(dim=(2, 3)))
            assert (ended.for_inference()(images) - ended(images)).norm() < 1e-4 * ended(images).norm()
        assert ended.n_features == maps.shape[1]
        assert ended.name == f"{name}:{stage}"
        assert ended.stage_names == whole.stage_names[: whole.stage_names.index(stage) + 1]
        assert not ended.training
        assert all(torch.equal(tensor, state[key]) for key, tensor in ended.state_dict().items())


def test_a_pretrained_backbone_that_ends_earlier_keeps_its_weights():
    whole, ended = shared("efficientnet_lite0"), build("efficientnet_lite0:stage3")
    assert ended.has_weights
    assert ended.stages
    assert all(torch.equal(tensor, whole.state_dict()[key]) for key, tensor in ended.state_dict().items())


def test_the_last_stage_is_the_whole_backbone():
    whole, images = shared("vgg"), pixels(32)
    ended = deepcopy(whole)
    ended.end_at("block4")
    assert torch.equal(ended(images), whole(images))
    assert ended.n_features == whole.n_features


def test_counting_the_features_of_a_stage_leaves_mode_and_statistics_as_they_were():
    backbone = make("resnet18:layer2")
    assert all(module.training for module in backbone.modules())
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert all(norm.num_batches_tracked == 0 for norm in norms)


@pytest.mark.parametrize("stage", ["conv6", "", "conv5:conv4"])
def test_an_unknown_stage_in_a_name_lists_the_choices(stage):
    with pytest.raises(ValueError, match=f"alexnet has no stage '{stage}'; choose one of conv1, .*, conv5, fc$"):
        build(f"alexnet:{stage}")


def test_an_unknown_backbone_with_a_stage_lists_the_backbones():
    with pytest.raises(ValueError, match=r"unknown backbone 'alexnets:conv5'; choose one of alexnet, .*"):
        build("alexnets:conv5")


def test_weights_of_the_whole_or_of_the_first_stages_fit_a_backbone_that_ends_there(tmp_path):
    whole, images = shared("resnet18"), pixels(32)
    state = {key: tensor.contiguous() for key, tensor in whole.state_dict().items()}
    first = {key: tensor for key, tensor in state.items() if not key.startswith(("stages.layer3", "stages.layer4"))}
    with torch.no_grad():
        expected = whole.maps(images, "layer2").mean(dim=(2, 3))
        for name, weights in (("whole", state), ("first", first)):
            save_file(weights, tmp_path / name)
            ended = build("resnet18:layer2", width=WIDTH, weights=str(tmp_path / name)).eval()
            assert torch.equal(ended(images), expected)
    with pytest.raises(ValueError, match=r"30 missing .* or its last stage, as in alexnet:conv5"):
        build("resnet18:layer3", width=WIDTH, weights=str(tmp_path / "first"))


class Torchvision(nn.Module):
    """AlexNet as torchvision has it, written from its published layers."""

    def __init__(self) -> None:
        super().__init__()
        relu, pool = nn.ReLU(), nn.MaxPool2d(3, 2)
        first = (nn.Conv2d(3, 64, 11, 4, 2), relu, pool, nn.Conv2d(64, 192, 5, padding=2), relu, pool)
        last = (nn.Conv2d(192, 384, 3, padding=1), relu, nn.Conv2d(384, 256, 3, padding=1), relu)
        self.features = nn.Sequential(*first, *last, nn.Conv2d(256, 256, 3, padding=1), relu, pool)
        dense = (nn.Dropout(), nn.Linear(9216, 4096), relu, nn.Dropout(), nn.Linear(4096, 4096), relu)
        self.classifier = nn.Sequential(*dense, nn.Linear(4096, 1000))


def test_weights_with_torchvisions_names_and_scale_of_pixels(tmp_path):
    torch.manual_seed(0)
    theirs, images = Torchvision().eval(), pixels(224, n=1)
    save_file(theirs.state_dict(), tmp_path / "whole")
    save_file({f"features.{key}": value for key, value in theirs.features.state_dict().items()}, tmp_path / "convs")
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        maps = theirs.features((images / 255 - mean) / std)
        ours = build("alexnet", weights=str(tmp_path / "whole")).eval()
        torch.testing.assert_close(ours(images), theirs.classifier[:6](maps.flatten(1)), rtol=1e-4, atol=1e-5)
        for file in ("whole", "convs"):
            ours = build("alexnet:conv5", weights=str(tmp_path / file)).eval()
            torch.testing.assert_close(ours(images), maps.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)
            assert ours.n_features == 256
    with pytest.raises(ValueError, match=r"4 missing \(stages.fc.2.bias"):
        build("alexnet", weights=str(tmp_path / "convs"))
