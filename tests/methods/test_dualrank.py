"""DualRank: parts, pair labels, memories and the terms of both branches against loops; branches of a backbone."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.backbones.base import MapStage
from combemb.backbones.resnet18 import ResNet18
from combemb.data.given import read_given
from combemb.learning.batches import Batch
from combemb.learning.objectives.distillation import mutual_divergence, similarities
from combemb.learning.objectives.parts import FeatureBlocks, PlaceLayer, bag_of_parts, inner_places, word_distances
from combemb.learning.objectives.queues import Queue
from combemb.methods.dualrank import DualRank
from combemb.methods.rankstats import RankStats
from combemb.system.arrays import unit
from combemb.system.files import write_tensors
from combemb.system.machine import seeded
from tests.blobs import blobs
from tests.pictures import LABELS, PIXELS

BLOBS = blobs(3, 2, n_each=20, D=12)
SMALL = {
    **{"n_novel": 2, "epochs": 2, "batch_size": 32, "start_steps": 20, "width": 16, "device": "cpu"},
    **{"n_words": 24, "n_memory": 20, "n_places": 2, "n_ranked": 2, "sharpness": 3.0},
}
IMAGE_SETTINGS = {"backbone", "backbone_width", "backbone_weights", "image_size"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


class Stop(Exception):
    pass


def training(progress: float = 0.1, x=BLOBS.x, labels=BLOBS.labels, **settings) -> tuple[DualRank, Batch]:
    """A method before its first step, in double precision, and a batch of the data."""
    method, seen = DualRank(**{**SMALL, **settings}), []

    def stop(batch, optimisers):
        seen.append(batch)
        raise Stop

    method.step = stop
    with pytest.raises(Stop):
        method.fit(x, labels, progress=False)
    method.tower_.double()
    batch = seen[0]
    return method, replace(batch, x=batch.x.double(), other=batch.other.double(), fraction_done=progress)


def fill(method: DualRank, full: bool = True) -> None:
    """Fill dictionary and memories with random rows."""
    net = method.network_
    dtype = net.delta.dtype
    words = normal(*net.words.rows.shape, seed=5).relu().to(dtype)
    net.words.push(words if full else words[:-1])
    net.memory.push(unit(normal(11, net.memory.rows.shape[1], seed=6)).to(dtype))
    net.local_memory.push(unit(normal(11, net.local_memory.rows.shape[1], seed=7)).to(dtype))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    with seeded(1):
        write_tensors(path, ResNet18(4).state_dict())
    return str(path)


@pytest.fixture
def images(weights):
    backbone = {"backbone": "resnet18", "backbone_width": 4, "backbone_weights": weights, "image_size": 16}
    return {"x": PIXELS, "labels": LABELS, "n_views": 2, "batch_size": 24, "n_words": 32, "n_novel": 1, **backbone}


# Parts


def test_blocks_share_no_feature_and_have_layers_of_their_own():
    with seeded(0):
        blocks = FeatureBlocks(7, 3, 4).double()
    torch.nn.init.normal_(blocks.bias)
    x = normal(5, 7)
    maps = blocks(x)
    assert maps.shape == (5, 4, 3, 1)
    parts = blocks.shuffled.view(3, 2)
    assert len(set(blocks.shuffled.tolist())) == 6
    for p in range(3):
        torch.testing.assert_close(maps[:, :, p, 0], torch.relu(x[:, parts[p]] @ blocks.weight[p].T + blocks.bias[p]))


@pytest.mark.parametrize(("side", "left"), [(1, 1), (4, 16), (5, 9), (7, 25)])
def test_large_maps_lose_their_outermost_ring(side, left):
    maps = normal(2, 3, side, side)
    places = inner_places(maps)
    assert places.shape == (2, left, 3)
    first = maps[:, :, 1, 1] if side > 4 else maps[:, :, 0, 0]
    assert torch.equal(places[:, 0], first)
    last = maps[:, :, -2, -2] if side > 4 else maps[:, :, -1, -1]
    assert torch.equal(places[:, -1], last)


def test_a_bag_of_parts_is_that_of_a_loop_and_sums_to_one():
    places, words, delta = normal(3, 4, 5), normal(6, 5, seed=1), torch.tensor(2.5).double()
    distances = word_distances(places, words)
    bags = bag_of_parts(distances, 15.0, delta)
    torch.testing.assert_close(bags.sum(dim=1), torch.ones(3).double())
    for i in range(3):
        expected = torch.zeros(6).double()
        for p in range(4):
            d = torch.stack([sum((places[i, p, k] - words[w, k]) ** 2 for k in range(5)) for w in range(6)])
            torch.testing.assert_close(distances[i, p], d)
            soft = torch.exp(-6 * d)
            expected += soft / soft.sum() / 4
        torch.testing.assert_close(bags[i], expected)


def test_a_place_on_a_word_counts_as_that_word():
    words = 10 * torch.eye(6).double()
    bags = bag_of_parts(word_distances(words[torch.tensor([[0, 3], [3, 3]])], words), 15.0, torch.tensor(0.5))
    torch.testing.assert_close(bags, torch.tensor([[0.5, 0, 0, 0.5, 0, 0], [0, 0, 0, 1, 0, 0]]).double())


def test_parts_are_not_compared_before_the_dictionary_is_full():
    method, batch = training()
    fill(method, full=False)
    assert method.similar_parts(normal(4, 2, 8)) is None
    assert method.network_.delta.item() == 0.5
    assert method.losses(batch)["local_pairs"].item() == 0
    assert method.network_.words.is_full
    assert method.losses(batch)["local_pairs"].item() > 0


def test_delta_is_a_running_mean_of_the_smallest_squared_distance_and_bags_are_compared_by_their_largest_words():
    method, _ = training()
    fill(method)
    net, places = method.network_, normal(9, 2, 8, seed=2).relu()
    places[3] = places[0] + 0.001  # one pair besides those of an item with itself
    distances = word_distances(places, net.words.rows)
    similar = method.similar_parts(places)
    delta = 0.99 * 0.5 + 0.01 * distances.amin(dim=2).mean().item()
    assert net.delta.item() == pytest.approx(delta)
    bags = bag_of_parts(distances, 3.0, torch.tensor(delta).double())
    largest = [set(bag.topk(2).indices.tolist()) for bag in bags]
    assert similar.tolist() == [[a == b for a in largest] for b in largest]
    assert similar[0, 3]
    assert not similar.all()


def test_bags_are_made_with_the_delta_of_their_own_batch(monkeypatch):
    """Far words count for a large delta; a small one leaves the nearest word of each place."""
    monkeypatch.setattr("combemb.methods.dualrank.DELTA_MOMENTUM", 0.0)
    method, _ = training(sharpness=1.0)
    fill(method)
    net, places = method.network_, normal(40, 2, 8, seed=2).relu()
    net.delta.fill_(1e-3)
    distances = word_distances(places, net.words.rows)

    def pairs(delta: Tensor) -> list[list[bool]]:
        largest = [set(bag.topk(2).indices.tolist()) for bag in bag_of_parts(distances, 1.0, delta)]
        return [[a == b for a in largest] for b in largest]

    expected = pairs(distances.amin(dim=2).mean())
    assert expected != pairs(net.delta)
    assert method.similar_parts(places).tolist() == expected


def test_the_global_branch_starts_with_single_features_and_their_opposites():
    method, _ = training(start_steps=0)
    weight = method.network_.trunk[0].weight
    n = min(weight.shape[0], 2 * weight.shape[1])
    axes = torch.eye(weight.shape[1]).double()
    assert torch.equal(weight[:n], torch.stack([axes, -axes], dim=1).flatten(0, 1)[:n])


def test_the_layer_on_maps_starts_with_single_features_and_their_opposites():
    maps = normal(2, 3, 4, 5).float()
    axes = [maps[:, 0], -maps[:, 0], maps[:, 1], -maps[:, 1]]
    assert torch.equal(PlaceLayer(3, 4)(maps), torch.stack(axes, dim=1).relu())


# Distillation


def test_mutual_divergence_is_that_of_a_loop_symmetric_and_zero_for_equal_branches():
    a, b = normal(4, 6), normal(4, 6, seed=1)
    p, q = a.softmax(dim=1), b.softmax(dim=1)
    loop = sum(
        p[i, j] * (p[i, j] / q[i, j]).log() + q[i, j] * (q[i, j] / p[i, j]).log() for i in range(4) for j in range(6)
    )
    torch.testing.assert_close(mutual_divergence(a, b), loop / 8)
    torch.testing.assert_close(mutual_divergence(a, b), mutual_divergence(b, a))
    assert mutual_divergence(a, a).item() == 0


def test_similarities_are_with_the_own_second_view_first_and_then_the_memory():
    f, other, memory = unit(normal(3, 4)), unit(normal(3, 4, seed=1)), unit(normal(5, 4, seed=2))
    found = similarities(f, other, memory, 0.07)
    for i in range(3):
        torch.testing.assert_close(found[i], torch.stack([f[i] @ v for v in (other[i], *memory)]) / 0.07)


@pytest.mark.parametrize("n_places", [1, 2])  # 1: both branches are equally wide
def test_the_memories_hold_second_views_of_the_same_unlabelled_items_in_the_same_places(n_places):
    method, batch = training(n_places=n_places)
    net, n = method.network_, batch.n_labelled
    for _ in range(3):
        method.losses(batch)  # 3 x 16 items for 20 places: the queues wrap around
    f, maps = method.branches(batch.other)
    expected, local = Queue(20, 16).double(), Queue(20, 16 // n_places).double()
    for _ in range(3):
        expected.push(unit(f[n:]))
        local.push(unit(maps.mean(dim=(2, 3))[n:]))
    torch.testing.assert_close(net.memory.rows, expected.rows)
    torch.testing.assert_close(net.local_memory.rows, local.rows)
    assert net.memory.n_pushed == net.local_memory.n_pushed == 3 * (len(batch.x) - n)


def test_the_dictionary_gets_a_place_of_every_item_in_order_in_the_place_of_the_oldest():
    method, batch = training()
    fill(method)
    before = method.network_.words.rows.clone()
    method.losses(batch)
    rows, B = method.network_.words.rows, len(batch.x)
    places = inner_places(method.branches(batch.x)[1])
    assert (B, len(rows)) == (32, 24)  # the first 8 are gone again
    drawn = set()
    for i in range(B - len(rows), B):
        row = rows[i % len(rows)]
        same = [p for p in range(2) if torch.equal(places[i, p], row)]
        assert same, i
        drawn |= set(same)
    assert drawn == {0, 1}
    assert not torch.equal(rows, before)
    assert not rows.requires_grad


# All terms


def terms_by_loops(method: DualRank, batch: Batch) -> dict[str, Tensor]:
    """The loss of the docstring, item by item, for dictionary and memories as they are."""
    net, n, B = method.network_, batch.n_labelled, len(batch.x)
    views = [method.branches(x) for x in (batch.x, batch.other)]
    features = {"": [f for f, _ in views], "local_": [maps.mean(dim=(2, 3)) for _, maps in views]}
    distances = word_distances(inner_places(views[0][1]), net.words.rows).detach()
    delta = 0.99 * net.delta + 0.01 * distances[n:].amin(dim=2).mean()
    ranked = {"": features[""][0], "local_": bag_of_parts(distances, method.sharpness, delta)}
    weight = method.consistency_weight * math.exp(-5 * (1 - min(batch.fraction_done / method.ramp_share, 1)) ** 2)
    terms, logs = {}, {}
    for name, heads, memory in (("", net.heads, net.memory), ("local_", net.local_heads, net.local_memory)):
        (f, g), top = features[name], [set(row.topk(method.n_ranked).indices.tolist()) for row in ranked[name]]
        seen, seen_other = heads["seen"](f).softmax(dim=1), heads["seen"](g).softmax(dim=1)
        p, q = heads["all"](f).softmax(dim=1), heads["all"](g).softmax(dim=1)
        terms[f"{name}classes"] = -sum(seen[i, batch.labels[i]].log() for i in range(n)) / n
        pairs = [(i, j) for i in range(n, B) for j in range(n, B)]
        bce = [-(p[i] @ q[j]).log() if top[i] == top[j] else -(1 - p[i] @ q[j]).log() for i, j in pairs]
        terms[f"{name}pairs"] = sum(bce) / len(bce)
        terms[f"{name}consistency"] = weight * ((seen - seen_other).square().mean() + (p - q).square().mean())
        rows = memory.rows[: len(memory)].clone()
        logs[name] = []
        for i in range(n, B):
            u, v = f[i] / f[i].norm(), g[i] / g[i].norm()
            logs[name].append(torch.stack([u @ v, *(u @ row for row in rows)]).div(method.temperature).log_softmax(0))
    mutual = [
        (a.exp() * (a - b)).sum() + (b.exp() * (b - a)).sum() for a, b in zip(logs[""], logs["local_"], strict=True)
    ]
    terms["mutual"] = method.mutual_weight * sum(mutual) / (2 * len(mutual))
    return terms


def test_terms_and_gradients_are_those_of_loops():
    method, batch = training(mutual_weight=0.7)
    fill(method)
    assert (batch.labels[: batch.n_labelled] >= 0).all()
    assert (batch.labels[batch.n_labelled :] == -1).all()
    expected = terms_by_loops(method, batch)
    terms = method.losses(batch)
    assert terms.keys() == expected.keys()
    parameters = list(method.network_.parameters())
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name])
        options = {"retain_graph": True, "allow_unused": True}
        found, wanted = (torch.autograd.grad(loss, parameters, **options) for loss in (term, expected[name]))
        for a, b in zip(found, wanted, strict=True):
            assert (a is None) == (b is None), name
            if a is not None:
                torch.testing.assert_close(a, b)


def test_pairs_and_distillation_are_of_unlabelled_items_and_classes_of_labelled_ones():
    method, batch = training()
    fill(method)
    batch.x.requires_grad_(True)
    n = batch.n_labelled
    for name, term in method.losses(batch).items():
        gradient = torch.autograd.grad(term, batch.x, retain_graph=True)[0]
        assert (gradient[:n] != 0).any() == (not name.endswith(("pairs", "mutual"))), name
        assert (gradient[n:] != 0).any() == (not name.endswith("classes")), name


def test_the_consistency_rises_to_its_weight():
    method, batch = training(ramp_share=0.5, consistency_weight=3.0)
    found = [method.losses(replace(batch, fraction_done=t))["consistency"].item() for t in (0.0, 0.25, 0.5, 1.0)]
    assert found[0] == pytest.approx(found[2] * math.exp(-5))
    assert found[1] == pytest.approx(found[2] * math.exp(-5 / 4))
    assert found[2] == pytest.approx(found[3])
    off, batch = training(consistency_weight=0.0)
    assert off.losses(batch)["consistency"].item() == 0


def test_the_defaults_are_published():
    method = DualRank()
    assert (method.sharpness, method.n_memory, method.temperature) == (15.0, 2048, 0.07)


def test_ranks_and_words_are_published_for_a_trained_backbone_and_fewer_on_frozen_features(images):
    frozen, _ = training(n_ranked=None, n_words=None)
    trained, _ = training(**{**images, "n_ranked": None, "n_words": None, "finetune": "last"})
    assert (frozen._k, len(frozen.network_.words.rows)) == (1, 128)
    assert (trained._k, len(trained.network_.words.rows)) == (5, 2048)


# Branches of a backbone


@pytest.mark.parametrize("finetune", ["last", "all"])
def test_the_local_branch_is_a_copy_of_the_last_stage_on_the_same_input(finetune, images):
    method, batch = training(finetune=finetune, **images)
    method.tower_.eval()
    backbone = method.tower_.backbone
    f, maps = method.branches(batch.x)
    assert maps.shape[1:] == (32, 2, 2)
    torch.testing.assert_close(f, method.tower_.features(batch.x))
    torch.testing.assert_close(maps.mean(dim=(2, 3)), backbone(batch.x).float())  # still equal
    own = backbone.stage if finetune == "last" else backbone.stages["layer4"]
    local = backbone.get_submodule("local")
    assert {id(p) for p in own.parameters()}.isdisjoint(id(p) for p in local.parameters())
    group = method.backbone_group()[0]
    assert {id(p) for p in local.parameters()} <= {id(p) for p in group["params"]}
    assert group["lr"] == pytest.approx(0.01 * method.learning_rate)  # a pretrained backbone


def test_both_stages_are_trained_and_restored(images, tmp_path):
    settings = {**SMALL, **images, "finetune": "last", "learning_rate": 0.1}
    x, labels = settings.pop("x"), settings.pop("labels")
    method = DualRank(**settings).fit(x, labels, folder=tmp_path / "run", progress=False)
    start = method.image_input_.backbone.stages["layer4"].state_dict()
    backbone = method.tower_.backbone
    now, local = backbone.stage.state_dict(), backbone.get_submodule("local").state_dict()
    for name in ("0.residual.0.weight", "1.residual.3.weight"):
        assert not torch.equal(now[name], start[name])
        assert not torch.equal(local[name], start[name])
        assert not torch.equal(local[name], now[name])
    assert torch.equal(local["0.residual.1.running_mean"], start["0.residual.1.running_mean"])  # norms stay as they are
    loaded = DualRank.load(tmp_path / "run")
    assert torch.equal(loaded.embed(x), method.embed(x))
    restored = loaded.tower_.backbone.get_submodule("local").state_dict()
    assert all(torch.equal(restored[name], local[name]) for name in local)


# Maps of a frozen backbone


@pytest.fixture
def frozen(images):
    """A method before its first step on maps of 5 x 5 places, in single precision, and inputs of the frozen stage."""
    method, _ = training(**{**images, "image_size": 40})
    method.tower_.float()
    assert isinstance(method.tower_.backbone, MapStage)
    assert isinstance(method.network_.local, PlaceLayer)
    x = torch.from_numpy(method.image_input_.load(read_given(PIXELS), 1, False).items.x[:9, 0].astype(np.float32))
    return method, x


@torch.no_grad()
def test_places_of_a_frozen_backbone_are_those_of_its_map(frozen):
    method, x = frozen
    net, feature_map = method.network_, method.tower_.feature_map
    maps = method.image_input_.backbone.eval().stages["layer4"](x.unflatten(1, (16, 10, 10)))
    length = maps.mean(dim=(2, 3)).norm(dim=1, keepdim=True)
    f, found = method.branches(method.tower_.training_items(x))
    assert found.shape == (9, 16, 5, 5)
    assert inner_places(found).shape == (9, 9, 16)  # without the outermost ring
    mapped = (maps.mean(dim=(2, 3)) / length - feature_map.mean) @ feature_map.components
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(f, net.trunk(mapped), **close)
    torch.testing.assert_close(method.tower_.features(x), mapped, **close)
    for row, column in itertools.product(range(5), range(5)):
        place = (maps[:, :, row, column] / length - feature_map.mean) @ feature_map.components
        expected = torch.relu(place @ net.local.layer.weight.T + net.local.layer.bias)
        torch.testing.assert_close(found[:, :, row, column], expected, **close)


@torch.no_grad()
def test_local_pairs_react_to_a_part_at_another_place(frozen):
    method, x = frozen
    fill(method)
    items = method.tower_.training_items(x[:1]).repeat(2, 1)
    assert method.similar_parts(inner_places(method.branches(items)[1])).all()
    maps = method.tower_.maps_of(items)
    maps[1, :, 0, 0] += 50 * normal(maps.shape[1]).float()  # in the ring
    assert method.similar_parts(inner_places(method.branches(maps.flatten(1))[1])).all()
    maps[1, :, 1:4, 1:4] += 50 * normal(maps.shape[1], 3, 3).float()
    pairs = method.similar_parts(inner_places(method.branches(maps.flatten(1))[1]))
    assert pairs.tolist() == [[True, False], [False, True]]


def test_a_frozen_stage_is_neither_trained_nor_stored(images, tmp_path):
    settings = {**SMALL, **images, "learning_rate": 0.1}
    x, labels = settings.pop("x"), settings.pop("labels")
    method = DualRank(**settings).fit(x, labels, folder=tmp_path / "run", progress=False)
    stage = method.tower_.backbone
    assert isinstance(stage, MapStage)
    assert not list(stage.parameters())
    assert not [name for name in method.state() if name.startswith("backbone")]
    assert method.backbone_group() == []
    before = MapStage(method.image_input_.backbone.for_inference(), 16)
    items = torch.randn(3, math.prod(stage.shape), generator=torch.Generator().manual_seed(0))
    assert torch.equal(stage.maps(items), before.maps(items))
    loaded = DualRank.load(tmp_path / "run")
    z = method.embed(x)
    assert torch.equal(loaded.embed(x), z)
    assert np.array_equal(loaded.predict(x), method.predict(x))
    # discovery sees the same features beside the embeddings as it does of methods without maps
    plain = RankStats(**{name: value for name, value in images.items() if name in IMAGE_SETTINGS}).read(x)
    found = method.read(x)
    assert not found.are_features
    np.testing.assert_allclose(found.discovery_features, plain.discovery_features, rtol=1e-2, atol=1e-2)


def test_a_backbone_that_ends_in_a_vector_has_blocks_for_places(images, monkeypatch):
    own = ResNet18.last_maps
    monkeypatch.setattr(ResNet18, "last_maps", lambda self, x: own(self, x).mean(dim=(2, 3)))
    method, batch = training(**images)
    assert method.tower_.backbone is None
    assert isinstance(method.network_.local, FeatureBlocks)
    assert method.branches(batch.x)[1].shape[2:] == (2, 1)


def test_both_branches_start_from_the_labels_and_the_head_is_matched_in_the_end():
    method, batch = training(start_steps=200)
    n, net = batch.n_labelled, method.network_
    f, maps = method.branches(batch.x)
    for heads, features in ((net.heads, f), (net.local_heads, maps.mean(dim=(2, 3)))):
        assert (heads["seen"](features[:n]).argmax(dim=1) == batch.labels[:n]).float().mean() > 0.9
    fitted = DualRank(**{**SMALL, "epochs": 20, "start_steps": 100}).fit(BLOBS.x, BLOBS.labels, progress=False)
    features = fitted.tower_.features(torch.from_numpy(BLOBS.x))
    scores = fitted.network_.heads["all"](fitted.network_.trunk(features))
    torch.testing.assert_close(fitted.logits(features), scores[:, fitted.network_.order])
    known = torch.from_numpy(BLOBS.labels >= 0)
    own = torch.from_numpy(BLOBS.labels)[known]
    counts = torch.zeros(3, 5).index_put((own, scores.argmax(dim=1)[known]), torch.ones(len(own)), accumulate=True)
    best = max(sum(counts[c, o] for c, o in enumerate(order)) for order in itertools.permutations(range(5), 3))
    assert sum(counts[c, fitted.network_.order[c]] for c in range(3)) == best
