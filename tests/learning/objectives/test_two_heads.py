"""The losses of two heads against loops, and the start of their trunk at the axes."""

import pytest
import torch
from torch import Tensor, nn

from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.objectives.two_heads import start_at_axes, two_head_terms
from combemb.system.machine import seeded

B, D, LABELS = 7, 4, torch.tensor([2, 0, 1])
N = len(LABELS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def heads() -> nn.ModuleDict:
    with seeded(0):
        return nn.ModuleDict({"seen": nn.Linear(D, 3), "all": nn.Linear(D, 5)}).double()


def views() -> tuple[Tensor, Tensor]:
    return normal(B, D, seed=1).requires_grad_(), normal(B, D, seed=2).requires_grad_()


def softmax(scores: Tensor) -> Tensor:
    return torch.exp(scores) / torch.exp(scores).sum(dim=1, keepdim=True)


def test_terms_and_gradients_are_those_of_loops_also_if_the_pairs_are_not_symmetric():
    two, (f, other) = heads(), views()
    similar = torch.rand(B - N, B - N, generator=torch.Generator().manual_seed(3)) < 0.5
    assert not torch.equal(similar, similar.T)
    seen, seen_other, p, q = (softmax(two[name](x)) for name in ("seen", "all") for x in (f, other))
    pairs = [
        -torch.log(p[N + i] @ q[N + j] if similar[i, j] else 1 - p[N + i] @ q[N + j])
        for i in range(B - N)
        for j in range(B - N)
    ]
    squares = [(seen - seen_other).square().sum() / (3 * B), (p - q).square().sum() / (5 * B)]
    expected = {
        "classes": -sum(torch.log(seen[i, y]) for i, y in enumerate(LABELS)) / N,
        "pairs": sum(pairs) / len(pairs),
        "consistency": 0.7 * sum(squares),
    }
    terms = two_head_terms(two, f, other, LABELS, similar=similar, weight=0.7)
    assert terms.keys() == expected.keys()
    of = [f, other, *two.parameters()]
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name])
        found, wanted = (
            torch.autograd.grad(loss, of, retain_graph=True, materialize_grads=True, allow_unused=True)
            for loss in (term, expected[name])
        )
        torch.testing.assert_close(found, wanted)


def test_pairs_that_are_not_known_yet_have_no_loss():
    terms = two_head_terms(heads(), *views(), LABELS, similar=None, weight=1.0)
    assert terms["pairs"].item() == 0
    assert terms["pairs"].dtype == torch.float64


def test_equal_views_are_consistent():
    f, _ = views()
    assert two_head_terms(heads(), f, f, LABELS, similar=None, weight=1.0)["consistency"].item() == 0


@pytest.mark.parametrize("width", [3, 8, 10])
def test_the_trunk_starts_with_single_features_and_their_opposites(width):
    with seeded(0):
        trunk = HeadNetwork(4, width, {}).trunk
    before = trunk[0].weight.clone()
    start_at_axes(trunk)
    x = normal(5, 4).float()
    axes = torch.stack([x[:, 0], -x[:, 0], x[:, 1], -x[:, 1], x[:, 2], -x[:, 2], x[:, 3], -x[:, 3]], dim=1)
    n = min(width, 8)
    assert torch.equal((x @ trunk[0].weight.T)[:, :n], axes[:, :n])
    assert torch.equal(trunk[0].weight[n:], before[n:])


def test_a_trunk_without_a_layer_has_no_axes():
    start_at_axes(nn.Identity())
