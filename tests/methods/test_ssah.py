"""SSAH: its losses against loops, distortions of features, who learns from what, and whether it learns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from combemb.data.datasets.digits import digits
from combemb.data.labels import same_class
from combemb.data.splits import open_set_split
from combemb.learning.batches import Batch
from combemb.learning.loop import parameters_of
from combemb.learning.objectives.image_players import ImageDistorter
from combemb.methods.itq import ITQ
from combemb.methods.ssah import SSAH, Distorter, Pace, consistent_loss, kept_cells, pair_loss
from combemb.search.metrics import code_retrieval
from combemb.system.machine import seeded
from tests.blobs import blobs
from tests.pictures import LABELS, PIXELS

SMALL = {"bits": 12, "epochs": 1, "batch_size": 48, "player_width": 8, "device": "cpu"}
BLOBS = blobs(4, 2, n_each=30, D=16)
ONE_LABEL = torch.tensor([0, 0, 1, 1, 2, 0, 1, -1, -1, -1])
SEVERAL = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0], [-1] * 3, [-1] * 3]).float()
CASES = pytest.mark.parametrize("labels", [ONE_LABEL, SEVERAL], ids=["one label", "several"])
PACE = Pace(0.5, 0.3, math.radians(20))


@pytest.fixture(scope="module")
def model():
    odd = {"consistent_weight": 0.7, "quantisation_weight": 0.2, "clip_norm": 1e9}
    return SSAH(**SMALL, **odd).fit(BLOBS.x, BLOBS.labels)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_of(labels, done=1.0):
    x = normal(len(labels), 16, seed=1)
    n_labelled = int((labels.reshape(len(labels), -1)[:, 0] >= 0).sum())
    return Batch(torch.arange(len(labels)), x, x, labels, n_labelled, fraction_done=done)


# The losses in loops


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def mean(values):
    return sum(values) / len(values)


def naive_pairs(a, b, classes):
    losses = {True: [], False: []}
    for i, j in np.ndindex(len(classes), len(classes)):
        if i != j:
            s, theta = bool(classes[i] & classes[j]), dot(a[i], b[j]) / 2
            losses[s].append(math.log(1 + math.exp(theta)) - s * theta)
    return mean(losses[True]) / 2 + mean(losses[False]) / 2


def classes_of(labels):
    if labels.ndim == 1:
        return [{int(c)} for c in labels if c >= 0]
    return [set(np.flatnonzero(row)) for row in labels.tolist() if row[0] >= 0]


def sign(value):
    return 1.0 if value >= 0 else -1.0


@CASES
def test_losses_of_the_hash_network_are_the_formulas(model, labels):
    classes = classes_of(labels)
    n, B = len(classes), len(labels)
    similar = same_class(labels[:n], labels[:n])
    u, hard = normal(B, 12), normal(B, 12, seed=2)
    terms = model.hash_terms(u, hard, similar, 0.6)
    u, hard = u.double().tolist(), hard.double().tolist()
    v, soft = [[sign(x) for x in row] for row in u], [[math.tanh(x) for x in row] for row in hard]
    square = [(dot(soft[i], soft[j]) / 12 - dot(v[i], v[j]) / 12) ** 2 for i, j in np.ndindex(B, B)]
    own = [sum((p - q) ** 2 for p, q in zip(soft[i], v[i], strict=True)) / 12 for i in range(B)]
    naive = {
        "pairs": naive_pairs(u[:n], u[:n], classes),
        "hard_pairs": naive_pairs(hard[:n], u[:n], classes),
        "consistent": 0.6 * (mean(square) + mean(own)),
        "quantisation": 0.2
        * mean([sum((p - q) ** 2 for p, q in zip(*rows, strict=True)) for rows in zip(u, v, strict=True)]),
    }
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(naive, rel=1e-4)


@pytest.mark.parametrize("size", [0.1, 3.0], ids=["too easy", "too hard"])
def test_the_adversary_aims_at_the_loss_that_the_pace_allows(model, size):
    labels = ONE_LABEL[:7]
    similar = same_class(labels, labels)
    u = normal(10, 12)
    hard = (size * normal(10, 12, seed=2)).requires_grad_()
    loss = model.adversary_terms(u, hard, similar, PACE)["adversary"]
    own, made = (naive_pairs(a[:7].detach().tolist(), u[:7].tolist(), classes_of(labels)) for a in (u, hard))
    assert loss.item() == pytest.approx(abs(made - 1.5 * own), rel=1e-4)
    (gradient,) = torch.autograd.grad(loss, hard)
    after = naive_pairs((hard - 1e-2 * gradient)[:7].tolist(), u[:7].tolist(), classes_of(labels))
    assert after > made if made < 1.5 * own else after < made


def test_equal_pairs_give_the_known_values():
    similar = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    zero = torch.zeros(3, 4)
    assert pair_loss(zero, zero, similar).item() == pytest.approx(math.log(2))
    signs = torch.tensor([[1.0, 1, -1, -1], [1, 1, -1, -1], [1, -1, 1, -1]])
    assert consistent_loss(signs, signs) == 0
    near, far = math.log(1 + math.exp(-2)), math.log(2)  # theta is 2 and 0
    assert pair_loss(signs, signs, similar).item() == pytest.approx((near + far) / 2)
    assert pair_loss(signs[:1], signs[:1], similar[:1, :1]) == 0  # no pair


def test_the_signs_of_originals_are_held_fixed(model):
    u, hard = normal(6, 12).requires_grad_(), normal(6, 12, seed=2).requires_grad_()
    similar = torch.eye(6, dtype=torch.bool)
    consistent = model.hash_terms(u, hard, similar, 1.0)["consistent"]
    assert torch.autograd.grad(consistent, [u, hard], allow_unused=True)[0] is None


def test_sign_of_zero_is_plus_one(model):
    zero = torch.zeros(2, 12)
    terms = model.hash_terms(zero, 9 * torch.ones(2, 12), torch.eye(2, dtype=torch.bool), 1.0)
    assert terms["consistent"] < 1e-6


# The pace


def test_difficulty_rises_to_its_limits():
    method = SSAH(pace_share=0.5, excess=2.0, occlusion=0.4, angle=30.0, consistent_weight=3.0)
    (start, _), (half, weight), (end, last) = map(method.pace, (0.0, 0.25, 0.5))
    assert start == Pace(0, 0, 0)
    assert (half.excess, half.share, half.angle) == pytest.approx((1.0, 0.2, math.radians(15)))
    assert weight == pytest.approx(3 * math.exp(-1.25))
    assert (end.excess, end.share, end.angle) == pytest.approx((2.0, 0.4, math.radians(30)))
    assert last == 3.0
    assert method.pace(0.9) == method.pace(0.5)
    assert SSAH(pace_share=0).pace(0.0)[0].share == 0.3


# Hard items


def test_the_cells_with_the_highest_logits_are_occluded():
    logits = torch.tensor([[0.0, 3.0, -1.0, 2.0, 1.0], [5.0, 4.0, 3.0, 2.0, 1.0]], requires_grad=True)
    keep = kept_cells(logits, 0.4)
    assert keep.tolist() == [[1, 0, 1, 0, 1], [0, 0, 1, 1, 1]]
    keep.sum().backward()
    p = logits.detach().sigmoid()
    torch.testing.assert_close(logits.grad, -p * (1 - p))  # a higher logit keeps less
    assert kept_cells(logits, 0.0).min() == 1


@pytest.fixture
def distorter():
    with seeded(0):
        return Distorter(40, 8)


def all_kept(distorter, n):
    return [torch.ones(n, blocks) for blocks in distorter.blocks]


def test_blocks_of_the_chosen_scale_become_zero(distorter):
    assert distorter.blocks == [16, 40, 40]
    x, keep = normal(2, 40), all_kept(distorter, 2)
    keep[0][:, 1] = 0
    keep[1][:, 7] = 0
    hard = distorter.distorted(x, keep, torch.zeros(2, 20), torch.tensor([0, 1]))
    expected = x.clone()
    expected[0, [f for f in range(40) if f * 16 // 40 == 1]] = 0
    expected[1, 7] = 0
    assert torch.equal(hard, expected)


@pytest.mark.parametrize("n_features", [40, 41])
def test_pairs_of_features_turn_by_their_angles(n_features):
    with seeded(0):
        distorter = Distorter(n_features, 8)
    x, angles = normal(3, n_features), normal(3, n_features // 2, seed=2)
    hard = distorter.distorted(x, all_kept(distorter, 3), angles, torch.tensor([0, 1, 2]))
    expected = x.clone()
    for i, (row, turns) in enumerate(zip(x.tolist(), angles.tolist(), strict=True)):
        for (a, b), angle in zip(distorter.pairs.T.tolist(), turns, strict=True):
            turned = complex(row[a], row[b]) * complex(math.cos(angle), math.sin(angle))
            expected[i, a], expected[i, b] = turned.real, turned.imag
    torch.testing.assert_close(hard, expected)
    assert len(distorter.pairs.unique()) == 40
    torch.testing.assert_close(hard.norm(dim=1), x.norm(dim=1))


def test_occlusion_comes_before_rotation(distorter):
    x, keep = torch.ones(1, 40), all_kept(distorter, 1)
    a, b = distorter.pairs[:, 0]
    keep[1][:, a] = 0
    hard = distorter.distorted(x, keep, torch.full((1, 20), math.pi / 2), torch.tensor([1]))
    assert hard[0, [a, b]].tolist() == pytest.approx([-1, 0], abs=1e-6)


def test_hard_items_stay_inside_the_pace(model):
    x = normal(64, 16)
    for adversary in (True, False):
        method = SSAH(**{**model.get_params(), "adversary": adversary})
        method.tower_, method.image_input_ = model.tower_, None
        with seeded(0), torch.no_grad():
            assert torch.equal(method.hard(x, Pace(0, 0, 0)), x)
            turned = method.hard(x, Pace(1, 0, 0.4))
            occluded = method.hard(x, Pace(1, 0.25, 0))
        first, second = model.network_.adversary.pairs
        angle = torch.atan2(turned[:, second], turned[:, first]) - torch.atan2(x[:, second], x[:, first])
        angle = torch.atan2(angle.sin(), angle.cos()).abs()
        assert angle.max() <= 0.4 + 1e-5
        assert angle.max() > 0.01
        assert set((occluded == 0).sum(dim=1).tolist()) == {4}


def test_without_the_adversary_cells_and_angles_are_random(model):
    method = SSAH(**{**model.get_params(), "adversary": False})
    method.tower_, method.image_input_ = model.tower_, None
    x = normal(1, 16).expand(400, -1)
    with seeded(0), torch.no_grad():
        hard, turned = method.hard(x, Pace(1, 0.25, 0)), method.hard(x, Pace(1, 0, 0.4))
    share = (hard == 0).float().mean(dim=0)
    assert 0.15 < share.min() < share.max() < 0.35
    first, second = model.network_.adversary.pairs
    angle = torch.atan2(turned[:, second], turned[:, first]) - torch.atan2(x[:, second], x[:, first])
    angle = torch.atan2(angle.sin(), angle.cos())
    assert angle.mean().abs() < 0.02
    assert angle.abs().mean().item() == pytest.approx(0.2, abs=0.02)


# Who learns from what


def moved_by_step(model, player):
    """Returns a player's parameters before and after a step in which only it has a learning rate."""
    net = model.network_
    before = {name: value.clone() for name, value in net.state_dict().items()}
    rates = {"hashing": 0.0, "adversary": 0.0, player: 1.0}
    with seeded(3):
        terms = model.step(
            batch_of(ONE_LABEL), [SGD(getattr(net, name).parameters(), lr=rates[name]) for name in rates]
        )
    after = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(before)
    return before, after, terms


def formula_gradient(model, player):
    """Returns the gradients of the loss that a player should minimise, at the end of the pace."""
    net, x = model.network_, batch_of(ONE_LABEL).x
    labels = ONE_LABEL[:7]
    similar = same_class(labels, labels)
    pace = Pace(model.excess, model.occlusion, math.radians(model.angle))
    with seeded(3):
        first, second = model.hard(x, pace), model.hard(x, pace)
    if player == "adversary":
        u = net(x).detach()
        target = (1 + pace.excess) * pair_loss(u[:7], u[:7], similar)
        loss = (pair_loss(net(first)[:7], u[:7], similar) - target).abs()
    else:
        u, hard = net(x), net(second.detach())
        signs = u.detach().sign()
        loss = pair_loss(u[:7], u[:7], similar) + pair_loss(hard[:7], u[:7], similar)
        loss = loss + 0.7 * consistent_loss(hard.tanh(), signs) + 0.2 * ((u - signs) ** 2).sum(dim=1).mean()
    parameters = {f"{player}.{k}": v for k, v in getattr(net, player).named_parameters()}
    return dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))


@pytest.mark.parametrize("player", ["hashing", "adversary"])
def test_each_player_descends_its_own_loss_and_moves_no_other(model, player):
    expected = formula_gradient(model, player)
    before, after, _ = moved_by_step(model, player)
    for name in before:
        step = expected.get(name, torch.zeros_like(before[name]))
        if player == "hashing" or name in expected:
            torch.testing.assert_close(before[name] - after[name], step, rtol=1e-3, atol=2e-5)
        else:
            assert torch.equal(before[name], after[name])
    assert all(value.abs().sum() > 0 for value in expected.values())


def test_the_adversary_makes_items_harder_than_chance():
    data = blobs(6, 2, n_each=40, D=32, spread=0.15)
    shared = {"bits": 24, "epochs": 30, "batch_size": 96, "player_rate": 3e-3, "excess": 4.0, "device": "cpu"}
    flipped = {}
    for adversary in (True, False):
        model = SSAH(**shared, adversary=adversary).fit(data.x, data.labels)
        flipped[adversary] = model.log_[-1]["flipped_bits"]
        assert ("adversary" in model.log_[-1]) == adversary
    assert flipped[True] > flipped[False] + 0.02


# Whether it learns


def test_it_overfits_200_labelled_items():
    rng = np.random.default_rng(0)
    targets = np.arange(220) % 10
    x = (rng.normal(size=(10, 32))[targets] + 0.8 * rng.normal(size=(220, 32))).astype(np.float32)
    labels = np.where(np.arange(220) < 200, targets, -1)
    model = SSAH(bits=24, epochs=40, batch_size=128, view_noise=0.1, device="cpu").fit(x, labels)
    known = x[:200]
    found = code_retrieval(model.codebook, model.embed(known), model.encode(known), targets[:200], targets[:200])
    assert found.map > 0.95


def test_it_beats_itq_on_seen_digits_with_and_without_the_adversary():
    data = digits()
    split = open_set_split(data.train_targets, "tune-0", seed=0)
    seen = ~split.is_novel(data.test_targets)
    scores = []
    short = {"bits": 24, "epochs": 12, "batch_size": 128, "device": "cpu"}
    for method in (ITQ(bits=24), SSAH(**short), SSAH(**short, adversary=False)):
        method.fit(data.train_x, split.labels)
        z, codes = method.embed(data.test_x[seen]), method.encode(data.train_x)
        scores.append(code_retrieval(method.codebook, z, codes, data.test_targets[seen], data.train_targets).map)
    assert min(scores[1:]) > scores[0] + 0.1


# What it takes


@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_all_lengths_of_codes(bits):
    model = SSAH(**{**SMALL, "bits": bits}).fit(BLOBS.x, BLOBS.labels)
    assert torch.equal(model.encode(BLOBS.x), (model.embed(BLOBS.x) >= 0).to(torch.uint8))
    assert model.codebook.bits == bits


def test_asymmetric_scores_are_inner_products():
    model = SSAH(**SMALL, asymmetric=True).fit(BLOBS.x, BLOBS.labels)
    z, codes = model.embed(BLOBS.x[:4]), model.encode(BLOBS.x)
    torch.testing.assert_close(model.codebook.scores(z, codes), z.double() @ (2.0 * codes.double() - 1).T)


def test_several_labels_per_item():
    members = np.eye(4)[np.clip(BLOBS.targets, 0, 3)]
    members[::3, 0] = 1
    labels = np.where(BLOBS.labels[:, None] >= 0, members, -1)
    assert SSAH(**SMALL).fit(BLOBS.x, labels).encode(BLOBS.x).shape == (len(BLOBS.x), 12)


def test_labels_without_a_similar_pair_are_refused(tmp_path):
    single = np.full(len(BLOBS.x), -1)
    for c in range(4):
        single[np.flatnonzero(BLOBS.targets == c)[0]] = c
    with pytest.raises(ValueError, match="label at least two items of one class"):
        SSAH(**SMALL).fit(BLOBS.x, single, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# On pixels


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A short fit with a backbone that is trained whole, and its run folder."""
    backbone = {"backbone": "resnet18", "backbone_width": 4, "image_size": 32, "finetune": "all", "n_views": 2}
    few = {"epochs": 2, "batch_size": 24, "player_width": 4}
    folder = tmp_path_factory.mktemp("images") / "run"
    return SSAH(**{**SMALL, **few}, **backbone).fit(PIXELS, LABELS, folder=folder), folder


def test_the_adversary_acts_on_pixels_if_the_backbone_is_trained(images):
    model, folder = images
    assert isinstance(model.network_.adversary, ImageDistorter)
    z = model.embed(PIXELS)
    assert torch.equal(SSAH.load(folder).embed(PIXELS), z)
    x = torch.from_numpy(PIXELS[:8]).permute(0, 3, 1, 2).float()
    with seeded(0), torch.no_grad():
        hard = model.hard(x, Pace(1, 0.3, 0.5))
        same = model.hard(x, Pace(1, 0.0, 0.0))
    assert hard.shape == x.shape
    assert 0 <= hard.min() < hard.max() <= 255
    torch.testing.assert_close(same, x, atol=1e-2, rtol=0)
    assert ((hard - x).abs() > 1).float().mean() > 0.2


def test_real_images_alone_make_the_statistics_of_the_backbone(images):
    model = SSAH.load(images[1])
    x = torch.from_numpy(PIXELS[:12]).permute(0, 3, 1, 2).float()
    batch = replace(batch_of(torch.tensor([0, 0, 1, 1] * 2 + [-1] * 4)), x=x, other=x)
    model.tower_.train()
    norm = next(m for m in model.tower_.backbone.modules() if isinstance(m, nn.BatchNorm2d))
    before, seen = norm.running_mean.clone(), []
    norm.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()))
    adversary = {name: value.clone() for name, value in model.network_.adversary.named_parameters()}
    hashing, player = model.optimisers()
    model.step(batch, [SGD(parameters_of(hashing), lr=0.0), SGD(parameters_of(player), lr=1.0)])
    assert len(seen) == 3  # real images once, hard ones for each player
    torch.testing.assert_close(norm.running_mean, before.lerp(seen[0].mean(dim=(0, 2, 3)), 0.1))
    moved = {n for n, v in model.network_.adversary.named_parameters() if not torch.equal(v, adversary[n])}
    assert {"turns.weight", "trunk.0.weight"} <= moved
