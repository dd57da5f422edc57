"""Promises about the labels and data that a fit is given, good and bad."""

import numpy as np
import torch

from combemb.search.metrics import float_retrieval
from combemb.testing.promise import expect, expect_refused_fit, expect_same, refused
from combemb.testing.trial import N_SEEN, Trial


def labels_in_files(trial: Trial) -> None:
    """Labels in a file of embeddings are used if none are given; otherwise they change nothing."""
    toy = trial.plain
    for stored, labels in ((toy.labels, None), (toy.targets, toy.labels), (toy.other_truth, toy.labels)):
        what = "labels of a file" if labels is None else "hidden labels"
        found = trial.small().fit(trial.stored(stored), labels)
        expect(found.classes_.tolist() == list(range(N_SEEN)), f"classes_ is {found.classes_} with {what}")
        expect_same(found.embed(toy.x), trial.references[toy], f"embeddings of fits with {what} and without a file")


def form_of_labels(trial: Trial) -> None:
    """The form of the labels changes nothing."""
    toy = trial.plain
    forms = {
        "other numbers": np.where(toy.labels >= 0, 10 * toy.labels + 3, -1),
        "names with None": toy.names().tolist(),
        "names with ''": toy.names(gap="").astype(str),
        "a list": toy.labels.tolist(),
        "floats with NaN": np.where(toy.labels >= 0, toy.labels, np.nan),
        "a tensor": torch.from_numpy(toy.labels),
    }
    for form, labels in forms.items():
        found = trial.small().fit(toy.x, labels)
        expect(len(found.classes_) == N_SEEN, f"{form}: classes_ is {found.classes_}")
        expect_same(found.embed(toy.x), trial.references[toy], f"embeddings with labels as {form} and as ints")


def form_of_data(trial: Trial) -> None:
    """The form of the data changes nothing."""
    for is_odd, toy in enumerate(trial.toys):
        path, read_only = trial.new_path(".npy"), toy.x.copy()
        np.save(path, toy.x)
        read_only.flags.writeable = False
        forms = {
            "a file": path,
            "the name of a file": str(path),
            "a tensor": torch.from_numpy(toy.x.copy()),
            "float64": toy.x.astype(np.float64),
            "a strided array": np.repeat(toy.x, 2, axis=0)[::2],
            "a read-only array": read_only,
        }
        for form in list(forms)[is_odd::2]:
            found = trial.small().fit(forms[form], toy.labels).embed(forms[form])
            expect_same(found, trial.references[toy], f"embeddings of {form} and of a plain array")
    rough = torch.from_numpy(trial.plain.x).bfloat16()
    first, same = (trial.small().fit(x, trial.plain.labels).embed(x) for x in (rough, rough.float()))
    expect_same(first, same, "embeddings of bfloat16 and of the same as float32")


def data_unchanged(trial: Trial) -> None:
    """Neither `fit` nor later calls change data or labels."""
    for toy in trial.toys:
        x, labels, tensor = toy.x.copy(), toy.labels.copy(), torch.from_numpy(toy.x.copy())
        for data, given in ((x, labels), (tensor, torch.from_numpy(labels))):
            model = trial.small().fit(data, given)
            model.embed(data)
            model.discover(data, given, 2)
            model.predict(data)
            model.novelty(data)
        expect_same(x, toy.x, "the array before and after")
        expect_same(tensor, toy.x, "the tensor before and after")
        expect_same(labels, toy.labels, "the labels before and after")


def unusable_data(trial: Trial) -> None:
    """Data that cannot be learned from are refused before anything is written."""
    for toy in trial.toys:
        N, huge, (nan, infinite, last_view) = len(toy.x), toy.x.astype(np.float64), (toy.x.copy() for _ in range(3))
        nan[3, ..., 0] = np.nan
        infinite[5, ..., -1] = -np.inf
        last_view.reshape(N, -1)[7, -1] = np.nan
        huge[2] *= 1e300
        cases = {
            "NaN": (nan, toy.labels, "row 3"),
            "infinity": (infinite, toy.labels, "row 5"),
            "NaN in the last view": (last_view, toy.labels, "row 7"),
            "numbers beyond float32": (huge, toy.labels, "row 2"),
            "equal items": (np.ones_like(toy.x), toy.labels, "same features"),
            "too few labels": (toy.x, toy.labels[:-1], f"{N - 1} labels for {N} items"),
            "negative labels": (toy.x, np.where(toy.labels < 0, -2, toy.labels), "-2"),
            "one row": (toy.x[0, ..., 0], toy.labels, "shape"),
            "images of floats": (np.zeros((N, 3, 8, 8), np.float32), toy.labels, "H, W, 3"),
        }
        for what, (x, labels, word) in cases.items():
            is_learned = trial.cls.uses_unlabelled or labels is not toy.labels
            given = labels if is_learned else toy.targets  # unlabelled items may be ignored, whatever they hold
            expect_refused_fit(trial, trial.small(), x, given, what, word)


def labels_needed(trial: Trial) -> None:
    """Labels that a method cannot learn from are refused with a ValueError before anything is written."""
    toy = trial.plain
    several = np.eye(N_SEEN, dtype=int)[toy.labels] | np.eye(N_SEEN, dtype=int)[(toy.labels + 1) % N_SEEN]
    kinds = {
        "no labels": np.full(len(toy.x), -1),
        "all items labelled": toy.targets,
        "labels of one class": np.where(toy.labels == 0, 0, -1),
        "several labels per item": np.where(toy.labels[:, None] < 0, -1, several),
    }
    for what, labels in kinds.items():
        try:
            z = trial.small().fit(toy.x, labels).embed(toy.x)
        except ValueError:
            expect_refused_fit(trial, trial.small(), toy.x, labels, what)
        else:
            expect(z.isfinite().all(), f"{what}: not all embeddings are finite")


def large_features(trial: Trial) -> None:
    """Features whose squares overflow float32 are refused or learned."""
    toy, scale = trial.plain, np.float32(1e25)
    try:
        method = trial.small().fit(toy.x * scale, toy.labels)
    except ValueError:
        return
    z, queries = method.embed(toy.x * scale), method.embed(toy.queries * scale)
    found = float_retrieval(queries, z, toy.query_targets, toy.targets)
    expect(found.map >= 0.6, f"they are accepted, but novel classes are not retrieved: {found}")


def embedding_refuses(trial: Trial) -> None:
    """`embed`, `discover`, `predict` and `novelty` refuse items of another width, `embed` items that are not finite."""
    for toy, model in trial.good.items():
        F, query = toy.x.shape[-1], toy.queries[:1]
        for width in (F - 1, F + 1):
            for use in (model.embed, model.discover, model.predict, model.novelty):
                with refused(f"{use.__name__} of {width} features after a fit on {F}", f"{width} features", str(F)):
                    use(np.zeros((4, width), np.float32))
        for value in (np.nan, np.inf):
            with refused(f"embed of {value}", "row 1"):
                model.embed(np.vstack([query, np.full_like(query, value)]))
        z = model.embed(np.repeat(query, 3, axis=0))
        expect_same(z[:1], z[2:], "embeddings of equal items")
