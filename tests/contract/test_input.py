"""What every method must do with labels and data, good and bad."""

import numpy as np
import pytest
import torch

from combemb.search.metrics import float_retrieval
from tests.contract.quick import contents, small, with_field

# Labels


def test_hidden_labels_in_the_file_of_the_embeddings_do_not_leak(name, plain, plain_reference, tmp_path):
    truth, other_truth = plain.targets, plain.with_targets_behind_gaps(seed=0)
    assert not np.array_equal(truth, other_truth)
    for i, targets in enumerate((truth, other_truth)):
        np.savez(tmp_path / f"{i}.npz", x=plain.x, labels=targets)
        found = small(name).fit(tmp_path / f"{i}.npz", plain.labels)
        assert found.classes_.tolist() == [0, 1, 2, 3, 4]
        assert torch.equal(found.embed(plain.x), plain_reference)


@pytest.mark.parametrize("form", ["shifted", "gaps are None", "gaps are empty", "list", "floats with NaN", "tensor"])
def test_the_form_of_the_labels_changes_nothing(name, form, plain, plain_reference):
    labels = plain.labels
    words = [f"class {c}" if c >= 0 else None for c in labels]
    forms = {
        "shifted": np.where(labels >= 0, 10 * labels + 3, -1),  # other names in the same order
        "gaps are None": words,
        "gaps are empty": np.array([word or "" for word in words]),
        "list": labels.tolist(),
        "floats with NaN": np.where(labels >= 0, labels, np.nan),
        "tensor": torch.from_numpy(labels),
    }
    found = small(name).fit(plain.x, forms[form])
    assert len(found.classes_) == 5
    assert torch.equal(found.embed(plain.x), plain_reference)


def test_labels_of_a_file_are_used_when_none_are_given(name, plain, plain_reference, tmp_path):
    np.savez(tmp_path / "data.npz", x=plain.x, labels=plain.labels)
    found = small(name).fit(tmp_path / "data.npz")
    assert found.classes_.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(found.embed(plain.x), plain_reference)


# Input


def test_the_input_is_not_changed(name, toy):
    x, labels, tensor = toy.x.copy(), toy.labels.copy(), torch.from_numpy(toy.x.copy())
    small(name).fit(x, labels).embed(x)
    small(name).fit(tensor, torch.from_numpy(labels)).embed(tensor)
    assert np.array_equal(x, toy.x)
    assert np.array_equal(labels, toy.labels)
    assert np.array_equal(tensor.numpy(), toy.x)


def test_embeddings_may_be_bfloat16(name, toy):
    rough = torch.from_numpy(toy.x).bfloat16()
    found, same = (small(name).fit(x, toy.labels).embed(x) for x in (rough, rough.float()))
    assert torch.equal(found, same)


@pytest.mark.parametrize("form", ["file", "name of a file", "tensor", "float64", "strided", "read-only"])
def test_the_form_of_the_input_changes_nothing(name, form, toy, reference, tmp_path):
    np.save(tmp_path / "x.npy", toy.x)
    read_only = toy.x.copy()
    read_only.flags.writeable = False
    forms = {
        "file": tmp_path / "x.npy",
        "name of a file": str(tmp_path / "x.npy"),
        "tensor": torch.from_numpy(toy.x.copy()),
        "float64": toy.x.astype(np.float64),
        "strided": np.repeat(toy.x, 2, axis=0)[::2],
        "read-only": read_only,
    }
    found = small(name).fit(forms[form], toy.labels)
    assert torch.equal(found.embed(forms[form]), reference)


def broken(toy) -> dict[str, tuple[np.ndarray, object, str]]:
    """Data that cannot be learned from, with a word that the error must have."""
    nan, inf, last_view, huge = toy.x.copy(), toy.x.copy(), toy.x.copy(), toy.x.astype(np.float64)
    nan[3, ..., 0] = np.nan
    inf[5, ..., -1] = -np.inf
    last_view.reshape(len(toy.x), -1)[7, -1] = np.nan
    huge[2] *= 1e300  # more than float32 holds
    return {
        "nan": (nan, toy.labels, "row 3"),
        "infinity": (inf, toy.labels, "row 5"),
        "nan in the last view": (last_view, toy.labels, "row 7"),
        "beyond float32": (huge, toy.labels, "row 2"),
        "constant": (np.ones_like(toy.x), toy.labels, "same features"),
        "too few labels": (toy.x, toy.labels[:-1], f"{len(toy.x) - 1} labels for {len(toy.x)} items"),
        "negative labels": (toy.x, np.where(toy.labels < 0, -2, toy.labels), "-2"),
        "one row": (toy.x[0, ..., 0], toy.labels, "shape"),
        "images": (np.zeros((len(toy.x), 3, 8, 8), np.float32), toy.labels, "H, W, 3"),
    }


FAULTS = [
    *("nan", "infinity", "nan in the last view", "beyond float32", "constant", "too few labels", "negative labels"),
    *("one row", "images"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_data_are_refused_before_anything_is_written(name, fault, toy, tmp_path):
    x, labels, word = broken(toy)[fault]
    method = small(name)
    with pytest.raises(ValueError, match=word):
        method.fit(x, labels, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="not fitted"):
        method.embed(toy.x)


@pytest.mark.parametrize(
    ("name", "fields"), with_field({"bits": 0}, {"bits": -4}, {"device": "abacus"}, {"batch_size": 1}), ids=str
)
def test_fields_that_do_not_fit_are_refused_before_an_old_run_is_touched(name, fields, plain, tmp_path):
    (field,) = fields
    small(name).fit(plain.x, plain.labels, folder=tmp_path / "run")
    before = contents(tmp_path / "run")
    for folder in ("run", "new"):
        with pytest.raises(ValueError, match=field):
            small(name, **fields).fit(plain.x, plain.labels, folder=tmp_path / folder, overwrite=folder == "run")
    assert not (tmp_path / "new").exists()
    assert contents(tmp_path / "run") == before


def test_very_large_features_are_refused_or_learned(name, plain):
    """The squares of these are infinite in float32."""
    x, queries = plain.x * np.float32(1e25), plain.queries * np.float32(1e25)
    try:
        method = small(name).fit(x, plain.labels)
    except ValueError:
        return
    assert float_retrieval(method.embed(queries), method.embed(x), plain.query_targets, plain.targets).map >= 0.6


def test_embedding_refuses_what_the_fit_did_not_see(fitted, toy):
    for width in (toy.x.shape[-1] - 1, toy.x.shape[-1] + 1):
        with pytest.raises(ValueError, match=rf"{width} features.*{toy.x.shape[-1]}"):
            fitted.embed(np.zeros((4, width), np.float32))
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="row 1"):
            fitted.embed(np.vstack([toy.queries[:1], np.full_like(toy.queries[:1], bad)]))
    z = fitted.embed(np.repeat(toy.queries[:1], 3, axis=0))  # equal items are fine here
    assert torch.equal(z[0], z[2])
