"""NINH: each bit sees its own slice, the threshold, the ranking loss and its gradient in loops; the trunk `nin`."""

import math

import numpy as np
import pytest
import torch

from combemb.data.labels import same_class
from combemb.learning.batches import Batch
from combemb.learning.objectives.triplets import triplets
from combemb.methods.ninh import NINH, DivideAndEncode, piecewise_threshold
from combemb.search.metrics import code_retrieval
from combemb.system.machine import seeded
from combemb.testing.trial import Pictures

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 2, 2])
SEVERAL = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0], [0, 0, 1], [1, 0, 1]])


def small(seed: int = 0, epsilon: float = 0.5) -> DivideAndEncode:
    with seeded(seed):
        return DivideAndEncode(n_features=4, bits=3, slice_size=5, epsilon=epsilon).double()


def points(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).double()


def naive_bits(network: DivideAndEncode, x: torch.Tensor) -> list[list[float]]:
    """Bit i of each row: the features 5i to 5i + 4 of the trunk, weighted, through sigmoid and threshold."""
    found = []
    linear = network.trunk[0]
    for row in x.tolist():
        trunk = [
            max(sum(w * v for w, v in zip(weights, row, strict=True)) + b, 0.0)
            for weights, b in zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
        ]
        bits = []
        for i in range(3):
            a = network.bias.tolist()[i]
            for j in range(5):
                a += network.weight.tolist()[i][j] * trunk[5 * i + j]
            s = 1 / (1 + math.exp(-a))
            low, high = 0.5 - network.epsilon, 0.5 + network.epsilon
            bits.append(0.0 if s < low else 1.0 if s > high else s)
        found.append(bits)
    return found


@pytest.mark.parametrize("epsilon", [0.5, 0.02])
def test_each_bit_is_the_threshold_of_the_sigmoid_of_its_own_slice(epsilon):
    network, x = small(epsilon=epsilon), points(9)
    expected = torch.tensor(naive_bits(network, x), dtype=torch.float64)
    torch.testing.assert_close(network.bits(x), expected)
    torch.testing.assert_close(network(x), 2 * expected - 1)
    inside = (expected > 0) & (expected < 1)
    assert inside.any()
    assert inside.all() == (epsilon == 0.5)


def test_the_threshold_is_piecewise_and_has_a_gradient_inside_its_band_only():
    s = torch.tensor([0.0, 0.29, 0.31, 0.5, 0.69, 0.71, 1.0], requires_grad=True)
    out = piecewise_threshold(s, 0.2)
    torch.testing.assert_close(out, torch.tensor([0, 0, 0.31, 0.5, 0.69, 1, 1]))
    out.sum().backward()
    assert s.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert torch.equal(piecewise_threshold(s, 0.5), s)


def training(margin: float, epsilon: float = 0.5) -> NINH:
    method = NINH(bits=3, slice_size=5, margin=margin, epsilon=epsilon)
    method.tower_ = torch.nn.Module()
    method.tower_.network = small(epsilon=epsilon)
    return method


def batch_of(x: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch(torch.arange(len(x)), x, torch.full_like(x, torch.nan), labels, len(x))


@pytest.mark.parametrize("labels", [LABELS, SEVERAL])
@pytest.mark.parametrize("margin", [0.05, 1.0])
def test_the_loss_and_its_gradient_are_those_of_the_formula(labels, margin):
    method, x = training(margin), 3 * points(8)
    with seeded(5):
        drawn = torch.stack(triplets(same_class(labels, labels))).T.tolist()
    with seeded(5):
        terms = method.losses(batch_of(x, labels))
    assert terms.keys() == {"ranking"}
    F = method.network_.bits(x)
    total, n_active = torch.zeros((), dtype=torch.float64), 0
    for i, j, k in drawn:
        near = sum((F[i, b] - F[j, b]) ** 2 for b in range(3))
        far = sum((F[i, b] - F[k, b]) ** 2 for b in range(3))
        n_active += bool(margin + near - far > 0)
        total = total + torch.relu(margin + near - far)
    assert n_active > 0
    assert (n_active < len(drawn)) == (margin < 1)
    total = total / len(drawn)
    torch.testing.assert_close(terms["ranking"], total)
    parameters = list(method.network_.parameters())
    for found, expected in zip(
        torch.autograd.grad(terms["ranking"], parameters), torch.autograd.grad(total, parameters), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_the_settings_reach_the_network_and_the_defaults_are_those_of_the_paper():
    network = NINH(bits=24, epsilon=0.3).network(16, n_seen=4, n_novel=0)
    assert network.weight.shape == (24, 50)
    assert network.trunk[0].weight.shape == (24 * 50, 16)
    assert network.epsilon == 0.3
    assert NINH().margin == 1
    assert not NINH.uses_unlabelled


def test_the_trunk_of_the_paper_is_trained_from_pixels():
    pictures = Pictures()
    known = pictures.labels != None  # noqa: E711 - elementwise
    settings = {"backbone": "nin", "finetune": "all", "image_size": 16, "device": "cpu"}
    model = NINH(bits=12, epochs=30, batch_size=12, **settings).fit(pictures.pixels, pictures.labels, progress=False)
    start = model.image_input().backbone.stages.state_dict()
    now = model.tower_.backbone.stages.state_dict()
    assert not any(torch.equal(now[name], start[name]) for name in now)
    targets = np.unique(pictures.targets[known].astype(str), return_inverse=True)[1]
    z, codes = model.embed(pictures.pixels[known]), model.encode(pictures.pixels[known])
    found = code_retrieval(model.codebook, z, codes, targets, targets)
    assert found.map > 2 * found.chance
