"""Frozen networks by OpenVINO: the same features as torch's, and torch where it cannot be used."""

import json
import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from combemb import backbones
from combemb.backbones import computing
from combemb.backbones.computing import LastInput
from combemb.backbones.openvino_network import SWITCH, TOLERANCE, converted, is_wanted
from tests.backbones.tiny import Tiny, run, some_images


@pytest.fixture(autouse=True)
def is_used_for_few_images(monkeypatch):
    monkeypatch.setattr(computing, "MANY_PIXELS", 0)
    monkeypatch.delenv(SWITCH, raising=False)


def network_of(found) -> str:
    return json.loads(next(found.folder.glob("*.json")).read_text())["network"]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("name", "size", "last_stage"),
    [
        ("efficientnet_lite0", 64, False),
        ("efficientnet_lite0", 64, True),
        ("resnet18", 32, False),
        ("alexnet", 64, False),
        ("vgg", 32, False),
    ],
)
def test_features_are_those_of_torch_in_any_batch(name, size, last_stage):
    torch.manual_seed(0)
    frozen = backbones.build(name).for_inference()
    network = LastInput(frozen) if last_stage else frozen
    fast = converted(network, size)
    assert fast is not None
    pixels = torch.randint(256, (11, 3, size, size)).float().contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = network(pixels)
    assert relative(fast(pixels), expected) < TOLERANCE
    assert relative(fast(pixels[3:4]), expected[3:4]) < TOLERANCE
    if fast.shape[0] == 1:
        assert torch.equal(fast(pixels.flip(0)), fast(pixels).flip(0))


def test_the_cache_knows_who_computed_and_mixes_both(tmp_path, monkeypatch):
    images = some_images()
    fast = run(images, tmp_path / "fast")
    assert network_of(fast).startswith("openvino 20")
    monkeypatch.setenv(SWITCH, "0")
    slow = run(images, tmp_path / "slow")
    assert network_of(slow) == f"torch {torch.__version__}"
    x = slow.x.astype(np.float32)
    assert np.abs(fast.x - x).max() <= max(TOLERANCE, 2.0**-11) * np.abs(x).max()  # float16 rounds to 2^-11
    backbone = Tiny()
    assert run(images, tmp_path / "fast", backbone).is_hit
    run(some_images(31), tmp_path / "fast", backbone)
    assert backbone.n_seen == 3


def test_few_images_are_left_to_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(computing, "MANY_PIXELS", 30 * 3 * 16**2 + 1)
    assert network_of(run(some_images(), tmp_path)).startswith("torch ")


class Unknown(nn.Module):
    """A network that torch's tracer cannot follow."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("it cannot be traced")


class Wrong(nn.Module):
    """A network that the tracer sees otherwise than it is."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1) * (1.001 if torch.jit.is_tracing() else 1)


@pytest.mark.parametrize(("network", "reason"), [(Unknown(), "TorchScript"), (Wrong(), "differ by 1.0e-03")])
def test_a_network_that_it_cannot_run_is_left_to_torch_with_a_line_in_the_log(network, reason, caplog):
    caplog.set_level(logging.DEBUG, "combemb")
    assert converted(network, 16) is None
    (line,) = caplog.messages
    assert line.startswith("OpenVINO cannot run this network, torch does: ")
    assert reason in line


def test_an_extraction_whose_network_cannot_be_converted_uses_torch(tmp_path):
    class Untraceable(Tiny):
        def before_last(self, pixels):
            if torch.jit.is_tracing():
                raise NotImplementedError
            return super().before_last(pixels)

    assert network_of(run(some_images(), tmp_path, Untraceable())).startswith("torch ")


def test_it_is_off_where_it_is_switched_off(monkeypatch):
    assert is_wanted()
    monkeypatch.setenv(SWITCH, "0")
    assert not is_wanted()


def test_nothing_is_reported_to_the_makers_of_openvino():
    code = (
        "import sys, torch; from combemb.backbones.openvino_network import converted;"
        "assert converted(torch.nn.Flatten(), 8) is not None;"
        "assert 'openvino' in sys.modules; assert 'openvino_telemetry' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
