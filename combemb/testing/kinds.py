"""Promises of some kinds of methods: those that have codes or a head, or learn from labelled items alone."""

import json
from typing import Any

import torch

from combemb.learning.codes import CodeMethod
from combemb.learning.head import HeadMethod
from combemb.learning.run_folder import CONFIG
from combemb.search.codebook import ProductCodebook
from combemb.testing.promise import expect, expect_same, only_for, refused
from combemb.testing.trial import Trial


def codes_or_none(trial: Trial) -> None:
    """Codes have the requested bits and match the codebook; a method without codes has no `encode`."""
    if not issubclass(trial.cls, CodeMethod):
        expect(not hasattr(trial.cls, "encode"), "it has `encode` but is not a CodeMethod")
        return
    model: Any
    for toy, model in trial.good.items():
        codebook, codes, z = model.codebook, model.encode(toy.x), model.embed(toy.x)
        expect(codebook.bits == model.bits, f"bits={model.bits} were requested, the codebook has {codebook.bits}")
        expect(codes.dtype == torch.uint8, f"codes are {codes.dtype}, not uint8")
        expected = (len(toy.x), len(codebook.sizes))
        expect(codes.shape == expected, f"codes have shape {tuple(codes.shape)}, the codebook says {expected}")
        expect((codes.long() < torch.tensor(codebook.sizes)).all(), "codes name words that the codebook lacks")
        expect_same(codes, codebook.encode(z), "codes of items and of their embeddings")
        decoded = codebook.decode(codes)
        expect(decoded.shape == z.shape, f"decoded codes are {tuple(decoded.shape)}, embeddings {tuple(z.shape)}")
        scores = codebook.scores(z[:3], codes)
        expect(scores.shape == (3, len(codes)) and scores.isfinite().all(), "scores are not finite (Q, N)")
        if isinstance(codebook, ProductCodebook) and codebook.metric != "inner":
            again = codebook.encode(decoded)  # may name another word only where it scores as much
            rows, own = torch.arange(len(codes)), codebook.scores(decoded, codes).diagonal()
            gain = (codebook.scores(decoded, again)[rows, rows] - own).abs().max()
            expect(gain <= 1e-3 * own.abs().max().clamp(min=1), f"codes of decoded vectors score {gain:.2g} more")


def predicts_by(trial: Trial) -> None:
    """A method without a head predicts by clusters and refuses `by="head"`; every method refuses other values."""
    toy = trial.plain
    model: Any = trial.good[toy]
    expected = "head" if issubclass(trial.cls, HeadMethod) else "clusters"
    expect(model.predicts_by == expected, f"predicts_by is {model.predicts_by!r}, not {expected!r}")
    expect_same(model.predict(toy.x), model.predict(toy.x, by=expected), f"predict(x) and predict(x, by={expected!r})")
    for by in ("nothing", *(["head"] if expected == "clusters" else [])):
        with refused(f"predict(x, by={by!r})", f"by={by!r}"):
            model.predict(toy.x, by=by)


@only_for(HeadMethod)
def head(trial: Trial) -> None:
    """A head has outputs for `n_novel` novel classes, or for as many as were estimated before training."""
    toy, (estimated, folder), given = trial.plain, trial.runs[trial.plain], trial.fitted(n_novel=3)
    numbers = estimated.n_novel_, trial.short.n_novel_
    expect(numbers[0] == numbers[1], f"it is {numbers[0]} after a long fit and {numbers[1]} after a short one")
    expect(given.n_novel_ == 3, f"n_novel_ is {given.n_novel_} with n_novel=3")
    for model, place in ((estimated, folder), (given, trial.saved(given))):
        stored = json.loads((place / CONFIG).read_text())["n_novel"]
        expect(stored == model.n_novel_, f"{CONFIG} says {stored} novel classes, n_novel_ is {model.n_novel_}")
        loaded = trial.cls.load(place)
        expect(loaded.n_novel_ == model.n_novel_, f"n_novel_ was {model.n_novel_} and is {loaded.n_novel_} after load")
        names = {*model.classes_.tolist(), *(f"novel-{i + 1}" for i in range(model.n_novel_))}
        found = model.predict(toy.x)
        expect(found.shape == (len(toy.x),) and found.dtype == object, f"predictions are {found.dtype} {found.shape}")
        expect(set(found) <= names, f"predictions are {set(found)}, the classes {names}")
        expect_same(loaded.predict(toy.x), found, "predictions of the fitted and the loaded method")
    known = toy.labels >= 0
    share = float((estimated.predict(toy.x)[known] == toy.labels[known]).mean())
    expect(share > 0.3, f"the head puts only {share:.0%} of the labelled items into their class")
    model = trial.good[toy]
    expected = model.discovery_.predict(model.embed(toy.x), toy.clean)
    expect_same(model.predict(toy.x, by="clusters"), expected, "predictions by clusters and those of the discovery")


def labelled_alone(trial: Trial) -> None:
    """A method with `uses_unlabelled = False` learns the same from the labelled items alone and from all."""
    if not trial.cls.uses_unlabelled:
        toy, known = trial.plain, trial.plain.labels >= 0
        alone = trial.small().fit(toy.x[known], toy.labels[known])
        expect_same(alone.embed(toy.x), trial.references[toy], "embeddings of fits on labelled items and on all")
