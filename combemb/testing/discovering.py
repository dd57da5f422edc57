"""Promises about discovery: what `discover` finds, and how it is used, stored and discarded."""

import warnings
from typing import Any

import numpy as np
import torch

from combemb.discovery.discovering import NothingToDiscover, discover
from combemb.discovery.metrics import agreement
from combemb.discovery.result import Discovery
from combemb.learning.run_folder import DISCOVERY
from combemb.testing.promise import expect, expect_same, expect_same_discovery, refused, written
from combemb.testing.trial import N_NOVEL, N_SEEN, Trial

UNDISCOVERED = "nothing was discovered yet; call discover(x, labels) first"
NAMES = [*range(N_SEEN), *(f"novel-{i + 1}" for i in range(N_NOVEL))]


def classes_found(trial: Trial) -> None:
    """`discover` finds the seen and the novel classes; labelled items keep their class."""
    for toy, model in trial.good.items():
        found = model.discovery_
        expect(isinstance(found, Discovery) and len(found) == len(toy.x), f"it is {found!r} of {len(toy.x)} items")
        expect(found.names.tolist() == NAMES, f"the classes are {found.names.tolist()}")
        known = toy.labels >= 0
        expect_same(found.is_labelled, known, "labelled items")
        expect_same(found.clusters[known].astype(int), toy.labels[known], "classes of labelled items")
        accuracy = agreement(found.clusters.tolist(), toy.targets, toy.targets >= N_SEEN).acc_joint.all
        expect(accuracy > 0.95, f"{accuracy:.0%} of the items are in the right class")


def last_discovery_kept(trial: Trial) -> None:
    """`discover` returns the result and keeps it as `discovery_`; a refused call keeps the last one."""
    model, toy = trial.fresh(), trial.plain
    first = model.discover(toy.x, toy.labels, 3)
    expect(model.discovery_ is first and first.n_novel == 3, "the first is not kept")
    second = model.discover(toy.x, toy.labels, 1)
    expect(model.discovery_ is second and second.n_novel == 1, "the second is not kept")
    expect("novel-3" not in model.predict(toy.x, by="clusters"), "`predict` uses the first")
    wrong: dict[str, dict[str, Any]] = {
        "n_novel=-1": {"n_novel": -1},
        "2.5": {"n_novel": 2.5},
        "merging, sizes, codes, gcd, dtc": {"count_by": "nope"},
        f"2 labels for {len(toy.x)} items": {"labels": [0, -1]},
    }
    for word, options in wrong.items():
        with refused(f"discover with {options}", word):
            model.discover(toy.x, **{"labels": toy.labels, **options})
        expect(model.discovery_ is second, f"a refused call with {options} has replaced it")


def discovery_defined(trial: Trial) -> None:
    """`discover` returns what `combemb.discover` does for the embeddings and the clean features, at every call."""
    model, toy = trial.fitted(seed=3), trial.plain
    z = model.embed(toy.x)
    for chosen in ({"count_by": "gcd"}, {"count_by": "dtc"}, {"n_novel": 3}):
        expected = discover(z, toy.labels, features=toy.x, seed=3, **chosen)
        expect_same_discovery(model.discover(toy.x, toy.labels, **chosen), expected, f"discoveries with {chosen}")
    same = trial.fitted(seed=3)
    expect_same_discovery(same.discover(toy.x, toy.labels, 3), model.discovery_, "discoveries of two fits with seed=3")
    expect_same_discovery(same.discover(toy.x, toy.labels, 3, z=z), model.discovery_, "discoveries with z and without")


def discovery_label_forms(trial: Trial) -> None:
    """The form of the labels changes only the class names; hidden labels and read-only arrays change nothing."""
    model, toy, path, read_only = trial.fresh(), trial.plain, trial.new_path(".npy"), trial.plain.x.copy()
    reference = model.discover(toy.x, toy.labels, 2)
    np.save(path, toy.x)
    read_only.flags.writeable = False
    forms: dict[str, tuple[Any, Any]] = {
        "names": (toy.x, toy.names("klasse ä{}")),
        "a list": (toy.x, toy.labels.tolist()),
        "floats with NaN": (toy.x, np.where(toy.labels >= 0, toy.labels, np.nan)),
        "a tensor": (torch.from_numpy(toy.x), torch.from_numpy(toy.labels)),
        "stored beside the items": (trial.stored(toy.labels), None),
        "ints, for a read-only array": (read_only, toy.labels),
        "ints, for a file": (path, toy.labels),
        "hidden in a file": (trial.stored(toy.targets), toy.labels),
        "otherwise hidden in a file": (trial.stored(toy.other_truth), toy.labels),
    }
    for form, (x, labels) in forms.items():
        warns_always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with warnings.catch_warnings(action="error"):
                found = model.discover(x, labels, 2)
        finally:
            torch.set_warn_always(warns_always)
        names = [f"klasse ä{c}" for c in range(N_SEEN)] if form == "names" else list(range(N_SEEN))
        expect(found.names[:N_SEEN].tolist() == names, f"labels as {form}: the classes are {found.names}")
        expect_same(found.assignment, reference.assignment, f"clusters with labels as {form} and as ints")
        expect_same(found.confidence, reference.confidence, f"confidences with labels as {form} and as ints")


def discovery_clean_view(trial: Trial) -> None:
    """Discovery and prediction use only the clean view."""
    toy, model = trial.views, trial.good[trial.views]
    shaken = toy.x.copy()
    shaken[:, 1:] += 1
    expect_same(model.predict(shaken), model.predict(toy.clean), "predictions with other views and without")
    found, other = model.discovery_, trial.cls.load(trial.runs[toy][1])
    expect_same_discovery(other.discover(shaken, toy.labels), found, "discoveries with other views")
    plain = trial.good[trial.plain]
    expect_same(plain.predict(trial.plain.x[:, None]), plain.predict(trial.plain.x), "predictions of (N, 1, F), (N, F)")


def discovery_without_labels(trial: Trial) -> None:
    """Without labels all clusters are novel, and a warning says so."""
    model, toy = trial.fresh(), trial.plain
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = model.discover(toy.x, n_novel=4)
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, NothingToDiscover)]
    expect(any("plain clustering" in text for text in texts), "there is no such warning")
    expect(found.names.tolist() == [f"novel-{i}" for i in range(1, 5)], f"the clusters are {found.names}")
    expect(set(model.predict(toy.x, by="clusters")) <= {*found.names, "neither"}, "`predict` gives other names")
    expect(not model.novelty(toy.x).any(), "some items are more novel than others")


def prediction(trial: Trial) -> None:
    """`predict` returns the clusters of known items, novel classes for new items, and "neither" far from all."""
    for toy, model in trial.good.items():
        predicted, clusters = model.predict(toy.x, by="clusters"), model.discovery_.clusters
        expect(predicted.shape == (len(toy.x),) and predicted.dtype == object, f"it is {predicted!r}")
        is_near = predicted != "neither"
        expect(is_near.mean() > 0.9, f"{1 - is_near.mean():.0%} of the items are of no cluster")
        expect_same(predicted[is_near], clusters[is_near], "predictions and clusters of the same items")
        expect({type(name) for name in predicted} <= {int, str}, f"names are { ({type(name) for name in predicted}) }")
        new = model.predict(toy.queries, by="clusters")
        known = [str(name) for name in new if name != "neither"]
        expect(len(known) > 0.7 * len(new), f"{len(new) - len(known)} of {len(new)} new items are of no cluster")
        is_novel = np.mean([name.startswith("novel-") for name in known])
        expect(is_novel > 0.9, f"{is_novel:.0%} of the new items of novel classes are known as such")
        expect("neither" in model.predict(-5 * toy.clean, by="clusters"), "items far from all are in clusters")
        alone = [model.predict(toy.queries[i : i + 1], by="clusters")[0] for i in range(10)]
        expect(alone == new[:10].tolist(), "a prediction depends on the other items")


def novelty(trial: Trial) -> None:
    """`novelty` is finite, larger for items of novel classes, and does not depend on the other items."""
    for toy, model in trial.good.items():
        found, new = model.novelty(toy.x), model.novelty(toy.queries)
        expect(found.shape == (len(toy.x),) and found.dtype == np.float32, f"it is {found.dtype} {found.shape}")
        expect(np.isfinite(found).all(), "it is not finite")
        seen, novel = found[toy.targets < N_SEEN], found[toy.targets >= N_SEEN]
        expect(np.median(novel) > np.quantile(seen, 0.95), "items of novel classes do not stand out")
        expect(np.median(new) > np.median(seen), "new items of novel classes do not stand out")
        alone = np.concatenate([model.novelty(toy.queries[i : i + 1]) for i in range(10)])
        np.testing.assert_allclose(alone, new[:10], rtol=1e-3, atol=1e-3)


def discovery_asked_for(trial: Trial) -> None:
    """Before `discover`, after a fit and after a refused fit, `predict` and `novelty` say what to do."""
    toy, model = trial.plain, trial.fitted()
    model.discover(toy.x, toy.labels, 1)
    folder = trial.saved(model)
    before = written(folder)
    with refused("a fit with NaN", "NaN"):
        model.fit(np.full_like(toy.x, np.nan), toy.labels, folder=folder, overwrite=True)
    expect(written(folder) == before, "a refused fit has changed the folder")
    expect(not hasattr(model, "discovery_"), "a refused fit keeps what was discovered")
    model.fit(toy.x, toy.labels).save(folder, overwrite=True)
    expect(DISCOVERY not in written(folder), "a run folder holds what an earlier fit discovered")
    for fitted in (model, trial.cls.load(folder)):
        for use in (lambda x, fitted=fitted: fitted.predict(x, by="clusters"), fitted.novelty):
            with refused("a question about classes before `discover`", UNDISCOVERED):
                use(toy.x)


def discovery_stored(trial: Trial) -> None:
    """A run folder restores what was discovered; if that file is damaged, the rest loads with a warning."""
    toy, model = trial.plain, trial.good[trial.plain]
    first = trial.saved(model)
    second = trial.saved(trial.cls.load(first))
    expect(written(first) == written(second), "saving a loaded method writes another folder")
    loaded = trial.cls.load(second)
    expect_same_discovery(loaded.discovery_, model.discovery_, "discoveries before and after")
    types = [type(name) for name in loaded.discovery_.names]
    expect(types == [*N_SEEN * [int], *N_NOVEL * [str]], f"the names have the types {types}")
    expect_same(loaded.predict(toy.queries), model.predict(toy.queries), "predictions before and after")
    expect_same(loaded.novelty(toy.x), model.novelty(toy.x), "novelty before and after")
    path = first / DISCOVERY
    path.write_bytes(path.read_bytes()[:-10])
    with warnings.catch_warnings(record=True, action="always") as caught:
        loaded = trial.cls.load(first)
    expect(any(str(path) in str(warning.message) for warning in caught), "no warning names the damaged file")
    expect_same(loaded.embed(toy.x), model.embed(toy.x), "embeddings before and after")
    with refused("predict after the file was damaged", UNDISCOVERED):
        loaded.predict(toy.x, by="clusters")
    expect(loaded.discover(toy.x, toy.labels, 2).n_novel == 2, "it cannot discover again")
