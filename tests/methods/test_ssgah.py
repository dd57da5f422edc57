"""SSGAH: its losses against loops, who learns from what, and whether it learns."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from combemb.data.datasets.digits import digits
from combemb.data.labels import same_class
from combemb.data.splits import open_set_split
from combemb.learning.batches import Batch
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import parameters_of
from combemb.learning.objectives.image_players import ImageDiscriminator, ImageGenerator
from combemb.learning.objectives.triplets import squared_distances, triplet_hinge, triplets
from combemb.methods.itq import ITQ
from combemb.methods.ssgah import SSGAH, Discriminator, Generator
from combemb.search.metrics import code_retrieval
from combemb.system.machine import seeded
from tests.blobs import blobs
from tests.pictures import LABELS, PIXELS

SMALL = {"bits": 12, "epochs": 1, "batch_size": 48, "player_width": 8, "device": "cpu"}
BLOBS = blobs(4, 2, n_each=30, D=16)
LATE = 0.9  # share of training that is done, after G, D and h have learned alone


@pytest.fixture(scope="module")
def model():
    odd = {"synthetic_weight": 0.7, "adversary_weight": 0.3, "quantisation_weight": 0.2, "clip_norm": 1e9}
    return SSGAH(**SMALL, **odd).fit(BLOBS.x, BLOBS.labels)


def batch_of(labels, done=LATE, n_features=16):
    x = torch.randn(len(labels), n_features, generator=torch.Generator().manual_seed(1))
    n_labelled = int((labels.reshape(len(labels), -1)[:, 0] >= 0).sum())
    return Batch(torch.arange(len(labels)), x, x, labels, n_labelled, fraction_done=done)


ONE_LABEL = torch.tensor([0, 0, 1, 1, 2, 0, 1, -1, -1, -1])
SEVERAL = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0], [-1] * 3, [-1] * 3]).float()
CASES = pytest.mark.parametrize("labels", [ONE_LABEL, SEVERAL], ids=["one label", "several"])


# The losses in loops


def d(a, b):
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / 4


def mean(values):
    return sum(values) / len(values)


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def rows(tensor):
    return tensor.detach().double().tolist()


@CASES
def test_losses_of_h_are_the_formulas(model, labels):
    batch = batch_of(labels)
    with seeded(3):
        real, made = triplets(same_class(labels, labels)), model.network_.generator(batch.x)
    h, positive, negative = (rows(model.network_(x)) for x in (batch.x, *made))
    m, m_a = 12 / 4, 12 / 8
    T = list(zip(*(part.tolist() for part in real), strict=True))
    B = range(len(h))
    naive = {
        "ranking": mean([max(0, m + d(h[a], h[p]) - d(h[a], h[n])) for a, p, n in T]),
        "synthetic_ranking": 0.7 * mean([max(0, m + d(h[i], positive[i]) - d(h[i], negative[i])) for i in B]),
        "adversary_ranking": 0.3
        * mean(
            [
                max(0, m_a + d(h[a], h[p]) - d(h[a], positive[a])) + max(0, m_a + d(h[a], negative[a]) - d(h[a], h[n]))
                for a, p, n in T
            ]
        ),
        "quantisation": 0.2 * mean([(abs(value) - 1) ** 2 for row in h for value in row]),
    }
    terms = model.hash_terms(model.network_(batch.x), real, made)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(naive, rel=1e-4)
    assert min(naive.values()) > 0.01
    assert model.hash_terms(model.network_(batch.x), real, None).keys() == {"ranking", "quantisation"}


@CASES
def test_losses_of_discriminator_and_generator_are_the_formulas(model, labels):
    batch, net = batch_of(labels), model.network_
    with seeded(3):
        (a, p, n), made = triplets(same_class(labels, labels)), net.generator(batch.x)
    x = batch.x
    found, synthetic = rows(net.discriminator(x[a], x[p], x[n])), rows(net.discriminator(x, *made))
    judge = -mean([math.log(sigmoid(v)) for v in found]) - mean([math.log(1 - sigmoid(v)) for v in synthetic])
    assert model.judge_terms(x, x, (a, p, n), made)["judge"].item() == pytest.approx(judge, rel=1e-4)
    h, positive, negative = (rows(net(part)) for part in (x, *made))
    ranking = 0.3 * mean([d(*z[:2]) - d(z[0], z[2]) for z in zip(h, positive, negative, strict=True)])
    terms = model.maker_terms(x, made, net(x))
    assert terms["maker"].item() == pytest.approx(-mean([math.log(sigmoid(v)) for v in synthetic]), rel=1e-4)
    assert terms["maker_ranking"].item() == pytest.approx(ranking, rel=1e-4)
    assert model.maker_terms(x, made, None).keys() == {"maker"}


def test_a_batch_without_a_real_triplet_has_losses_all_the_same(model):
    batch = batch_of(torch.tensor([0, 1, 2, -1]))
    terms = model.step(batch, model.optimisers())
    assert all(term.isfinite() for term in terms.values())
    assert terms["ranking"] == terms["adversary_ranking"] == 0


def test_distance_of_signs_is_the_hamming_distance(model):
    h = torch.where(torch.randn(4, 12, generator=torch.Generator().manual_seed(0)) > 0, 1.0, -1.0)
    real = torch.tensor([0]), torch.tensor([1]), torch.tensor([2])
    near, far = ((h[0] != h[i]).sum() for i in (1, 2))
    assert model.hash_terms(h, real, None)["ranking"].item() == max(0, 3 + int(near) - int(far))


# Who learns from what


def moved_by_step(model, player, done):
    """Returns a player's parameters before and after a step in which only it has a learning rate."""
    net = model.network_
    players = net.hashing, net.discriminator, net.generator
    before = {name: value.clone() for name, value in net.state_dict().items()}
    rates = [1.0 if part == player else 0.0 for part in ("hashing", "discriminator", "generator")]
    optimisers = [SGD(part.parameters(), lr=rate) for part, rate in zip(players, rates, strict=True)]
    with seeded(3):
        terms = model.step(batch_of(ONE_LABEL, done), optimisers)
    after = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(before)
    return before, after, terms


def formula_gradient(model, player, done):
    """Returns the gradients of the losses that a player should minimise, of everything that may have one."""
    net, batch = model.network_, batch_of(ONE_LABEL, done)
    x, labels, late = batch.x, batch.labels[: batch.n_labelled], done > 0.2
    hamming = lambda a, b: ((a - b) ** 2).sum(dim=1) / 4  # noqa: E731
    with seeded(3):
        a, p, n = triplets(same_class(labels, labels))
        positive, negative = net.generator(x)
    if player == "discriminator":
        real, made = net.discriminator(x[a], x[p], x[n]), net.discriminator(x, positive, negative)
        loss = -real.sigmoid().log().mean() - (1 - made.sigmoid()).log().mean()
    elif player == "generator":
        loss = -net.discriminator(x, positive, negative).sigmoid().log().mean()
        if late:
            loss = loss + 0.3 * (hamming(net(x), net(positive)) - hamming(net(x), net(negative))).mean()
    else:
        h, good, bad = net(x), net(positive), net(negative)
        loss = (3 + hamming(h[a], h[p]) - hamming(h[a], h[n])).relu().mean() + 0.2 * ((h.abs() - 1) ** 2).mean()
        if late:
            loss = loss + 0.7 * (3 + hamming(h, good) - hamming(h, bad)).relu().mean()
            harder = (1.5 + hamming(h[a], h[p]) - hamming(h[a], good[a])).relu()
            loss = loss + 0.3 * (harder + (1.5 + hamming(h[a], bad[a]) - hamming(h[a], h[n])).relu()).mean()
    parameters = {f"{player}.{k}": v for k, v in getattr(net, player).named_parameters()}
    return dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))


@pytest.mark.parametrize("done", [0.1, LATE], ids=["alone", "together"])
@pytest.mark.parametrize("player", ["hashing", "discriminator", "generator"])
def test_each_player_descends_its_own_loss_and_moves_no_other(model, player, done):
    before, after, _ = moved_by_step(model, player, done)
    expected = formula_gradient(model, player, done)
    for name in before:
        step = expected.get(name, torch.zeros_like(before[name]))
        torch.testing.assert_close(
            before[name] - after[name], step, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert all(value.abs().sum() > 0 for value in expected.values())


def test_each_half_of_the_generator_adds_to_an_item_what_it_learned(model):
    net, x = model.network_.generator, normal_items()
    with seeded(3):
        made = net(x)
    with seeded(3):
        noise = torch.randn(5, 16), torch.randn(5, 16)
    for part, half, own in zip(made, (net.positive, net.negative), noise, strict=True):
        torch.testing.assert_close(part, x + half(torch.cat([x, own], dim=1)))
    judge = model.network_.discriminator
    triplet = x[:1], x[1:2], x[2:3]
    torch.testing.assert_close(judge(*triplet), judge.layers(torch.cat(triplet, dim=1))[:, 0])


@pytest.mark.parametrize(("weights", "plays"), [((0.5, 0.0), True), ((0.0, 0.1), True), ((0.0, 0.0), False)])
def test_either_weight_brings_the_players_in(weights, plays):
    assert SSGAH(synthetic_weight=weights[0], adversary_weight=weights[1]).plays == plays


def test_each_player_has_its_optimiser(model):
    net, owned = model.network_, [set(map(id, parameters_of(optimiser))) for optimiser in model.optimisers()]
    assert owned == [set(map(id, part.parameters())) for part in (net.hashing, net.discriminator, net.generator)]


def normal_items():
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(5))


def test_players_are_alone_at_first(model):
    made = {"synthetic_ranking", "adversary_ranking", "maker_ranking"}
    alone, together = (set(moved_by_step(model, "hashing", done)[2]) for done in (0.19, 0.21))
    assert not made & alone
    assert together == alone | made


@dataclass(kw_only=True, eq=False, repr=False)
class PlainTriplets(DeepMethod):
    """Triplet hashing on its own (2026): L = hinge + 0.01 mean (|h| - 1)^2."""

    paper: ClassVar[str] = "none, 2026"

    def network(self, n_features, n_seen, n_novel):
        return nn.Sequential(nn.Linear(n_features, 12), nn.Tanh())

    def losses(self, batch):
        h, labels = self.network_(batch.x), batch.labels[: batch.n_labelled]
        a, p, n = triplets(same_class(labels, labels))
        near, far = squared_distances(h[a], h[p]) / 4, squared_distances(h[a], h[n]) / 4
        return {"hinge": triplet_hinge(near, far, 3.0), "flat": 0.01 * (h.abs() - 1).square().mean()}


def test_without_both_weights_it_is_plain_triplets():
    shared = {"epochs": 4, "batch_size": 48, "learning_rate": 0.01, "device": "cpu", "seed": 2}
    plain = PlainTriplets(**shared).fit(BLOBS.x, BLOBS.labels)
    model = SSGAH(bits=12, player_width=8, synthetic_weight=0, adversary_weight=0, **shared).fit(BLOBS.x, BLOBS.labels)
    torch.testing.assert_close(model.embed(BLOBS.x), plain.embed(BLOBS.x))
    assert "judge" not in model.log_[-1]


# Whether it learns


def test_synthetic_positives_are_nearer_than_synthetic_negatives_of_held_out_items():
    data = blobs(5, 2, n_each=60, D=24, spread=0.2)
    held_out = np.arange(len(data.x)) % 3 == 0
    model = SSGAH(bits=24, epochs=50, batch_size=128, player_width=32, device="cpu")
    model.fit(data.x[~held_out], data.labels[~held_out])
    asked = torch.from_numpy(data.x[held_out & (data.targets < 5)])
    with seeded(0), torch.no_grad():
        x = model.feature_map_(asked)
        h, positive, negative = (model.network_(part) for part in (x, *model.network_.generator(x)))
    near, far = squared_distances(h, positive) / 4, squared_distances(h, negative) / 4
    assert near.mean() + 2 < far.mean()  # bits
    assert (near < far).float().mean() > 0.8
    last = model.log_[-1]
    assert last["synthetic_positive"] < last["synthetic_negative"]
    assert last["judge_spread"] > 0


def test_it_overfits_200_labelled_items():
    rng = np.random.default_rng(0)
    targets = np.arange(220) % 10
    x = (rng.normal(size=(10, 32))[targets] + 0.8 * rng.normal(size=(220, 32))).astype(np.float32)
    labels = np.where(np.arange(220) < 200, targets, -1)
    model = SSGAH(bits=24, epochs=40, batch_size=128, player_width=32, view_noise=0.1, device="cpu").fit(x, labels)
    known = x[:200]
    found = code_retrieval(model.codebook, model.embed(known), model.encode(known), targets[:200], targets[:200])
    assert found.map > 0.95


def test_it_beats_itq_on_seen_digits():
    data = digits()
    split = open_set_split(data.train_targets, "tune-0", seed=0)
    seen = ~split.is_novel(data.test_targets)
    scores = []
    for method in (SSGAH(bits=24, epochs=12, batch_size=128, player_width=32, device="cpu"), ITQ(bits=24)):
        method.fit(data.train_x, split.labels)
        z, codes = method.embed(data.test_x[seen]), method.encode(data.train_x)
        scores.append(code_retrieval(method.codebook, z, codes, data.test_targets[seen], data.train_targets).map)
    assert scores[0] > scores[1] + 0.1


# What it takes


@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_all_lengths_of_codes(bits):
    model = SSGAH(**{**SMALL, "bits": bits}).fit(BLOBS.x, BLOBS.labels)
    assert model.encode(BLOBS.x).shape == (len(BLOBS.x), bits)
    z = model.embed(BLOBS.x)
    assert z.abs().max() <= 1
    assert torch.equal(model.encode(BLOBS.x), (z >= 0).to(torch.uint8))


def test_asymmetric_scores_are_inner_products():
    model = SSGAH(**SMALL, asymmetric=True).fit(BLOBS.x, BLOBS.labels)
    z, codes = model.embed(BLOBS.x[:4]), model.encode(BLOBS.x)
    signs = 2.0 * codes.double() - 1
    torch.testing.assert_close(model.codebook.scores(z, codes), z.double() @ signs.T, rtol=1e-5, atol=1e-5)


def test_several_labels_per_item():
    members = np.eye(4)[np.clip(BLOBS.targets, 0, 3)]
    members[::3, 0] = 1
    labels = np.where(BLOBS.labels[:, None] >= 0, members, -1)
    assert SSGAH(**SMALL).fit(BLOBS.x, labels).encode(BLOBS.x).shape == (len(BLOBS.x), 12)


def test_labels_without_a_triplet_are_refused(tmp_path):
    single = np.full(len(BLOBS.x), -1)
    for c in range(4):
        single[np.flatnonzero(BLOBS.targets == c)[0]] = c
    with pytest.raises(ValueError, match="label at least two items of one class"):
        SSGAH(**SMALL).fit(BLOBS.x, single, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# On pixels


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A short fit with a backbone that is trained whole, and its run folder."""
    backbone = {"backbone": "resnet18", "backbone_width": 4, "image_size": 32, "finetune": "all", "n_views": 2}
    few = {"epochs": 2, "batch_size": 24, "player_width": 4, "alone_share": 0.3}
    folder = tmp_path_factory.mktemp("images") / "run"
    return SSGAH(**{**SMALL, **few}, **backbone).fit(PIXELS, LABELS, folder=folder), folder


def test_players_act_on_pixels_if_the_backbone_is_trained(images):
    model, folder = images
    assert isinstance(model.network_.generator, ImageGenerator)
    assert isinstance(model.network_.discriminator, ImageDiscriminator)
    assert model.log_[-1].keys() >= {"ranking", "synthetic_ranking", "adversary_ranking", "judge", "maker_ranking"}
    z = model.embed(PIXELS)
    assert torch.equal(SSGAH.load(folder).embed(PIXELS), z)
    again = SSGAH(**model.get_params()).fit(PIXELS, LABELS)
    assert torch.equal(again.embed(PIXELS), z)


def test_real_images_alone_make_the_statistics_of_the_backbone(images):
    model = SSGAH.load(images[1])
    x = torch.from_numpy(PIXELS[:12]).permute(0, 3, 1, 2).float()
    batch = Batch(torch.arange(12), x, x, torch.tensor([0, 0, 1, 1] * 2 + [-1] * 4), 8, fraction_done=LATE)
    model.tower_.train()
    norm = next(m for m in model.tower_.backbone.modules() if isinstance(m, nn.BatchNorm2d))
    before, seen = norm.running_mean.clone(), []
    norm.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()))
    model.step(batch, [SGD(parameters_of(optimiser), lr=0.0) for optimiser in model.optimisers()])
    assert len(seen) == 5  # real images once, synthetic ones twice for G and twice for h
    torch.testing.assert_close(norm.running_mean, before.lerp(seen[0].mean(dim=(0, 2, 3)), 0.1))


def test_features_are_played_with_if_the_backbone_is_frozen(model):
    assert isinstance(model.network_.generator, Generator)
    assert isinstance(model.network_.discriminator, Discriminator)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    batch = replace(batch_of(ONE_LABEL[:3]), x=x)
    assert model.played(batch) is batch
