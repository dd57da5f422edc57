"""GPQ: its three terms against loops, the signs of the minimax, words from class prototypes, and what it learns."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from combemb.data import datasets, open_set_split
from combemb.learning.batches import Batch
from combemb.learning.tower import Tower
from combemb.methods.gpq import GPQ
from combemb.methods.itq import ITQ
from combemb.search.metrics import code_retrieval

M, D, F, C = 2, 3, 5, 4  # books, length of a sub-vector, features, classes
SINGLE = [0, 1, 2, 1, 0, 3]
SEVERAL = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0]]
WEIGHTS = {"sharpness": 3.0, "class_scale": 1.7, "class_weight": 0.6, "entropy_weight": 0.9}


def training(labels: list, n_unlabelled: int = 5, **settings: float) -> tuple[GPQ, Batch]:
    """A small method in double precision before its first step, and a batch."""
    method = GPQ(bits=4 * M, sub_vector=D, device="cpu", **{**WEIGHTS, **settings})
    torch.manual_seed(0)
    method.tower_ = Tower(None, nn.Identity(), method.network(F, C, 0)).double()
    n = len(labels)
    known = torch.tensor(labels, dtype=torch.long if isinstance(labels[0], int) else torch.float32)
    unknown = torch.full((n_unlabelled, *known.shape[1:]), -1, dtype=known.dtype)
    x = torch.randn(n + n_unlabelled, F, dtype=torch.double)
    return method, Batch(torch.arange(len(x)), x, -x, torch.cat([known, unknown]), n)


# The method in loops: vectors are lists, [book][place]


def unit(v: list[float]) -> list[float]:
    length = math.sqrt(sum(a * a for a in v))
    return [a / length for a in v]


def dot(a: list[float], b: list[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


def books(v: list[float]) -> list[list[float]]:
    return [v[m * D : (m + 1) * D] for m in range(M)]


def mixture(v: list[list[float]], words: list[list[list[float]]], alpha: float) -> list[list[float]]:
    out = []
    for m in range(M):
        weights = softmax([alpha * dot(v[m], word[m]) for word in words])
        out.append(unit([sum(w * word[m][i] for w, word in zip(weights, words, strict=True)) for i in range(D)]))
    return out


def naive_parts(method: GPQ, x: Tensor) -> tuple[list, list, list]:
    net = method.network_
    layer, bias = net.project.weight.tolist(), net.project.bias.tolist()
    vectors = [[dot(row, weights) + b for weights, b in zip(layer, bias, strict=True)] for row in x.tolist()]
    features = [[unit(part) for part in books(v)] for v in vectors]
    prototypes = [[unit(part) for part in books(c)] for c in net.prototypes.tolist()]
    words = [mixture(books(z), prototypes, method.sharpness) for z in net.word_parameters.tolist()]
    return features, prototypes, words


def naive_losses(method: GPQ, batch: Batch) -> dict[str, float]:
    features, prototypes, words = naive_parts(method, batch.x)
    n = batch.n_labelled
    owned = [{c} if isinstance(c, int) else {i for i, on in enumerate(c) if on} for c in batch.labels[:n].tolist()]
    quantised = [mixture(x, words, method.sharpness) for x in features[:n]]

    def p(x: list[list[float]]) -> list[float]:
        beta = method.class_scale
        return softmax([sum(dot(x[m], c[m]) * beta * beta for m in range(M)) / M for c in prototypes])

    pairs = classes = entropy = 0.0
    for i in range(n):
        share = softmax([sum(dot(features[i][m], q[m]) for m in range(M)) for q in quantised])
        similar = [j for j in range(n) if owned[i] & owned[j]]
        pairs -= sum(math.log(share[j]) for j in similar) / len(similar) / n
        classes -= sum(math.log(p(features[i])[c]) for c in owned[i]) / len(owned[i]) / n
    for x in features[n:]:
        entropy += sum(a * math.log(a) for a in p(x)) / (len(features) - n)
    return {"n_pair": pairs, "classes": method.class_weight * classes, "entropy": method.entropy_weight * entropy}


@pytest.mark.parametrize("labels", [SINGLE, SEVERAL], ids=["one label", "several labels"])
def test_the_terms_are_those_of_the_loops(labels):
    method, batch = training(labels)
    found = {name: term.item() for name, term in method.losses(batch).items()}
    assert found == pytest.approx(naive_losses(method, batch), rel=1e-10)


def test_known_values():
    """Equal prototypes: all words are equal, so pairs cannot be told apart, and all classes are equally likely."""
    method, batch = training(SINGLE, class_weight=1.0, entropy_weight=1.0)
    with torch.no_grad():
        method.network_.prototypes.copy_(method.network_.prototypes[:1].expand(C, -1))
    terms = {name: term.item() for name, term in method.losses(batch).items()}
    assert terms == pytest.approx({"n_pair": math.log(6), "classes": math.log(C), "entropy": -math.log(C)})


# Entropy minimax


def probabilities(method: GPQ, x: Tensor) -> Tensor:
    """Class probabilities (n, C), by another route than the method's: one logit per book, then their mean."""
    net = method.network_
    features = [nn.functional.normalize(part, dim=1) for part in net.project(x).split(D, dim=1)]
    prototypes = [nn.functional.normalize(part, dim=1) for part in net.prototypes.split(D, dim=1)]
    logits = [method.class_scale**2 * a @ b.T for a, b in zip(features, prototypes, strict=True)]
    return torch.stack(logits).mean(dim=0).softmax(dim=1)


def test_prototypes_maximise_the_entropy_and_features_minimise_it():
    method, batch = training(SINGLE, entropy_weight=0.7)
    net, unlabelled = method.network_, batch.x[batch.n_labelled :].clone().requires_grad_()
    p = probabilities(method, unlabelled)
    entropy = -(p * p.log()).sum(dim=1).mean()
    ascent = torch.autograd.grad(entropy, [net.prototypes, net.project.weight, net.project.bias])
    term = method.losses(batch)["entropy"]
    found = torch.autograd.grad(term, [net.prototypes, net.project.weight, net.project.bias])
    # Descent along these gradients: against the entropy's own for prototypes (it rises), along it for F (it falls).
    for sign, a, b in zip((-1, 1, 1), found, ascent, strict=True):
        torch.testing.assert_close(a, 0.7 * sign * b)
    for players, rises in (([net.prototypes], True), ([net.project.weight, net.project.bias], False)):
        gradients = torch.autograd.grad(method.losses(batch)["entropy"], players)
        with torch.no_grad():
            for player, gradient in zip(players, gradients, strict=True):
                player.sub_(1e-3 * gradient)
        q = probabilities(method, unlabelled)
        after = -(q * q.log()).sum(dim=1).mean()
        assert (after > entropy) == rises
        entropy = after


def test_each_term_uses_its_own_items():
    method, batch = training(SINGLE)
    n, x = batch.n_labelled, batch.x.requires_grad_()
    for name, own in (("n_pair", slice(0, n)), ("classes", slice(0, n)), ("entropy", slice(n, None))):
        (gradient,) = torch.autograd.grad(method.losses(batch)[name], x)
        mine = torch.zeros(len(x), dtype=torch.bool)
        mine[own] = True
        assert (gradient.abs().sum(dim=1) > 0).tolist() == mine.tolist()


def test_n_pair_teaches_features_words_and_prototypes_through_both_sides():
    method, batch = training(SINGLE)
    net = method.network_
    gradients = torch.autograd.grad(
        method.losses(batch)["n_pair"], [net.word_parameters, net.prototypes, net.project.weight]
    )
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)
    step = 1e-6
    for parameter, gradient in zip((net.word_parameters, net.prototypes, net.project.weight), gradients, strict=True):
        with torch.no_grad():
            parameter[1, 2] += step
            higher = naive_losses(method, batch)["n_pair"]
            parameter[1, 2] -= 2 * step
            lower = naive_losses(method, batch)["n_pair"]
            parameter[1, 2] += step
        assert gradient[1, 2].item() == pytest.approx((higher - lower) / (2 * step), rel=1e-5)


# Words


def test_words_are_mixtures_of_the_prototypes_of_their_book():
    method, _ = training(SINGLE)
    words, prototypes = method.words().detach(), method.network_.unit_prototypes().detach()
    torch.testing.assert_close(words.norm(dim=2), torch.ones(16, M, dtype=torch.double))
    few = prototypes[:2]  # two of them span a plane of the three dimensions of a book
    with torch.no_grad():
        method.network_.prototypes.copy_(few.repeat(C // 2, 1, 1).flatten(1))
    for m in range(M):
        weights = torch.linalg.lstsq(few[:, m].T, method.words()[:, m].detach().T).solution.T  # (K, 2)
        torch.testing.assert_close(weights @ few[:, m], method.words()[:, m].detach())
        assert (weights > 0).all()
        assert (weights.argmax(dim=1) != weights[0].argmax()).any()
    moved = method.words()
    with torch.no_grad():
        method.network_.prototypes[:, :D] = method.network_.prototypes[:1, :D]  # equal in the first book only
    torch.testing.assert_close(method.words()[:, 0], few[0, 0].expand(16, -1))
    torch.testing.assert_close(method.words()[:, 1], moved[:, 1])


def test_the_length_of_a_words_parameter_counts_and_that_of_a_prototype_does_not():
    method, _ = training(SINGLE)
    words = method.words().detach()
    with torch.no_grad():
        method.network_.prototypes.mul_(3)
    torch.testing.assert_close(method.words().detach(), words)
    with torch.no_grad():
        method.network_.word_parameters.mul_(100)
    nearest = torch.einsum("kmd,cmd->kmc", words, method.network_.unit_prototypes()).amax(dim=2)
    sharp = torch.einsum("kmd,cmd->kmc", method.words(), method.network_.unit_prototypes()).amax(dim=2)
    assert (sharp > 0.999).float().mean() > 0.9  # long parameters choose one prototype
    assert (nearest < 0.999).all()


def test_codes_are_the_nearest_words_and_scores_add_cosines():
    method, batch = training(SINGLE)
    method.tower_.float()
    method.classes_ = np.arange(C)
    z = method.network_(batch.x.float()).detach()
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    features, _, words = naive_parts(method, batch.x)
    cosines = [[[dot(x[m], word[m]) for word in words] for m in range(M)] for x in features]
    codes = method.codebook.encode(z)
    assert codes.tolist() == [[int(np.argmax(row)) for row in of] for of in cosines]
    expected = [[sum(of[m][code[m]] for m in range(M)) for code in codes.tolist()] for of in cosines]
    assert method.codebook.scores(z, codes).numpy() == pytest.approx(np.array(expected), abs=1e-5)


# Settings and results


@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_a_book_has_16_words_and_4_bits(bits):
    x = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    labels = np.where(np.arange(40) < 20, np.arange(40) % 3, -1)
    method = GPQ(bits=bits, epochs=1, device="cpu").fit(x, labels)
    assert method.codebook.sizes == (16,) * (bits // 4)
    assert method.codebook.bits == bits
    assert method.encode(x).shape == (40, bits // 4)


def test_other_bits_are_refused():
    with pytest.raises(ValueError, match=r"bits=13 is not a multiple of 4; use 12 or 16"):
        GPQ(bits=13).check_settings()
    with pytest.raises(ValueError, match=r"bits=2 must be at least 4"):
        GPQ(bits=2).check_settings()


@pytest.mark.parametrize("several", [False, True])
def test_200_labelled_items_are_learned_by_heart(several):
    rng = np.random.default_rng(0)
    targets = np.arange(220) % 10
    x = rng.normal(size=(220, 64)).astype(np.float32) + 0.7 * rng.normal(size=(10, 64)).astype(np.float32)[targets]
    labels = np.where(np.arange(220) < 200, targets, -1)
    if several:
        labels = np.where(labels[:, None] >= 0, np.eye(10)[targets] + np.eye(10)[(targets + 5) % 10], -1)
        targets = targets % 5
    method = GPQ(bits=24, epochs=100, batch_size=256, learning_rate=3e-3, view_noise=0.1, device="cpu").fit(x, labels)
    z, codes = method.embed(x[:200]), method.encode(x[:200])
    assert code_retrieval(method.codebook, z, codes, targets[:200], targets[:200]).map > 0.95


def test_seen_classes_are_retrieved_better_than_by_itq():
    data = datasets.load("digits")
    split = open_set_split(data.train_targets, "tune-0", seed=0)
    seen = ~split.is_novel(data.test_targets)
    maps = []
    for method in (ITQ(bits=24, device="cpu"), GPQ(bits=24, epochs=50, learning_rate=2e-3, device="cpu")):
        method.fit(data.train_x, split.labels)
        z, codes = method.embed(data.test_x[seen]), method.encode(data.train_x)
        maps.append(code_retrieval(method.codebook, z, codes, data.test_targets[seen], data.train_targets).map)
    assert maps[1] > maps[0] + 0.1
