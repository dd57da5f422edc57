"""What every method must do, checked on every file of combemb/methods."""

import dataclasses
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone

from combemb import methods
from combemb.codes import Codebook
from combemb.metrics import code_retrieval, float_retrieval
from combemb.runs import Run

NAMES = methods.names()
TRAINED = [name for name in NAMES if "epochs" in {f.name for f in dataclasses.fields(methods.get(name))}]
BITS = 12


def small(name: str, epochs: int = 2, **fields) -> methods.Method:
    """A method that is quick on the toy data: the fields that it has, set to small values."""
    cls = methods.get(name)
    wanted = {"bits": BITS, "epochs": epochs, "batch_size": 128, "device": "cpu"}
    known = {f.name for f in dataclasses.fields(cls)}
    return cls(**{**{key: value for key, value in wanted.items() if key in known}, **fields})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(name, toy, tmp_path_factory):
    """A method fitted long enough to be good, and its run folder."""
    folder = tmp_path_factory.mktemp(name) / "run"
    return small(name, epochs=15).fit(toy.x, toy.labels, folder=folder), folder


@pytest.fixture
def fitted(run):
    return run[0]


@pytest.fixture(scope="module")
def reference(name, toy) -> torch.Tensor:
    """What a short fit of the toy data gives."""
    return small(name).fit(toy.x, toy.labels).embed(toy.x)


@pytest.fixture(scope="module")
def plain_reference(name, plain) -> torch.Tensor:
    return small(name).fit(plain.x, plain.labels).embed(plain.x)


@pytest.fixture
def coded(fitted):
    if fitted.task == "discovery":
        pytest.skip("a method without codes")
    return fitted


# The class


def test_every_field_has_a_default_and_says_what_it_is(name):
    for field in dataclasses.fields(methods.get(name)):
        assert field.default is not dataclasses.MISSING, field.name
        assert len(field.metadata.get("about", "")) > 10, field.name


def test_the_constructor_only_stores(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {field.name: object() for field in dataclasses.fields(methods.get(name))}
    stored = vars(methods.get(name)(**given))
    assert stored.keys() == given.keys()
    assert all(stored[key] is given[key] for key in given)
    assert not any(tmp_path.iterdir())


def test_scikit_learn_can_read_set_and_copy_the_fields(name):
    method = small(name, seed=5)
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    assert method.get_params() == fields
    copy = clone(method)
    assert copy is not method
    assert copy.get_params() == fields
    assert copy.set_params(seed=6) is copy
    assert (copy.seed, method.seed) == (6, 5)
    with pytest.raises(ValueError, match="no_such_field"):
        copy.set_params(no_such_field=1)


def test_a_copy_of_a_fitted_method_is_not_fitted(name, plain):
    copy = clone(small(name).fit(plain.x, plain.labels))
    assert not [key for key in vars(copy) if key.endswith("_")]
    with pytest.raises(ValueError, match="not fitted"):
        copy.embed(plain.x)


def test_the_docstring_names_the_paper_and_its_formula(name):
    cls = methods.get(name)
    assert cls.task in {"retrieval", "discovery", "both"}
    assert re.search(r"\b(19|20)\d\d\b", cls.paper), "the paper's title and year"
    assert re.search(r"\b(19|20)\d\d\b", cls.__doc__), "who and when"
    assert "=" in cls.__doc__, "the formula"


def test_unfitted_use_says_what_to_do(name, plain, tmp_path):
    method = small(name)
    for use in (method.embed, method.encode, lambda _: method.save(tmp_path / "run")):
        with pytest.raises(ValueError, match=r"fit\(x, labels\)|gives no codes"):
            use(plain.x)
    assert not any(tmp_path.iterdir())


# What comes out


def test_fit_returns_the_method_itself(name, plain):
    method = small(name)
    assert method.fit(plain.x, plain.labels) is method


def test_embeddings_are_finite_and_the_same_at_every_call(fitted, toy):
    z = fitted.embed(toy.x)
    assert z.dtype == torch.float32
    assert z.ndim == 2
    assert len(z) == len(toy.x)
    assert z.isfinite().all()
    assert len(z.unique(dim=0)) > 1
    assert torch.equal(fitted.embed(toy.x), z)


def test_an_embedding_does_not_depend_on_the_items_beside_it(fitted, toy):
    z = fitted.embed(toy.x)
    alone = torch.cat([fitted.embed(toy.x[i : i + 1]) for i in range(10)])
    torch.testing.assert_close(alone, z[:10], rtol=1e-4, atol=1e-5)


def test_only_the_clean_view_is_embedded(fitted, toy):
    if toy.x.ndim == 3:
        assert torch.equal(fitted.embed(toy.x[:, 0]), fitted.embed(toy.x))
        assert torch.equal(fitted.embed(toy.x[:, :2]), fitted.embed(toy.x))
    else:
        assert torch.equal(fitted.embed(toy.x[:, None]), fitted.embed(toy.x))


def test_codes_have_the_bits_that_were_asked_for(coded, toy):
    codebook, codes = coded.codebook, coded.encode(toy.x)
    assert codebook.bits == coded.bits == BITS
    assert coded.embed(toy.x).shape[1] == codebook.words.shape[0] * codebook.words.shape[2]
    assert codes.dtype == torch.uint8
    assert codes.shape == (len(toy.x), len(codebook.sizes))
    assert (codes.long() < torch.tensor(codebook.sizes)).all()
    assert torch.equal(codes, codebook.encode(coded.embed(toy.x)))


def test_encoding_undoes_decoding(coded, toy):
    if not isinstance(coded.codebook, Codebook):
        pytest.skip("a local codebook may choose another cell")
    codes = coded.encode(toy.x)
    assert torch.equal(coded.codebook.encode(coded.codebook.decode(codes)), codes)


def test_novel_classes_are_found(fitted, toy):
    z, queries = fitted.embed(toy.x), fitted.embed(toy.queries)
    targets = (toy.query_targets, toy.targets)
    assert float_retrieval(queries, z, *targets).map >= 0.6
    if fitted.task != "discovery":
        found = code_retrieval(fitted.codebook, queries, fitted.encode(toy.x), *targets)
        assert found.map >= 0.6 > 2 * found.chance


# Randomness


def test_the_seed_decides(name, toy):
    first, same, other = (small(name, seed=seed).fit(toy.x, toy.labels) for seed in (3, 3, 4))
    assert torch.equal(first.embed(toy.x), same.embed(toy.x))
    assert not torch.equal(first.embed(toy.x), other.embed(toy.x))
    if first.task != "discovery":
        assert torch.equal(first.encode(toy.x), same.encode(toy.x))


def test_fitting_again_forgets_the_first_fit(name, plain, plain_reference):
    method = small(name).fit(plain.x[::-1, :20], np.where(plain.labels[::-1] == 0, 7, plain.labels[::-1]))
    assert method.classes_.tolist() == [1, 2, 3, 4, 7]
    method.fit(plain.x, plain.labels)
    assert method.classes_.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(method.embed(plain.x), plain_reference)


def test_the_global_random_state_is_neither_used_nor_changed(name, plain, tmp_path):
    def everything(folder: Path) -> torch.Tensor:
        method = small(name).fit(plain.x, plain.labels, folder=folder)
        if method.task != "discovery":
            method.encode(plain.x)
        return methods.load(folder).embed(plain.x)

    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    states = (torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    first = everything(tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), states[0])
    for now, before in zip(np.random.get_state(), states[1], strict=True):  # noqa: NPY002
        assert np.array_equal(now, before)
    assert random.getstate() == states[2]
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    random.seed(2)
    assert torch.equal(everything(tmp_path / "second"), first)


def test_the_number_of_threads_is_left_as_it_was(name, plain):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        small(name).fit(plain.x, plain.labels).embed(plain.x)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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
        "images": (np.zeros((len(toy.x), 3, 8, 8), np.float32), toy.labels, "backbone"),
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


@pytest.mark.parametrize("fields", [{"bits": 0}, {"bits": -4}, {"device": "abacus"}, {"batch_size": 1}], ids=str)
def test_fields_that_do_not_fit_are_refused_before_an_old_run_is_touched(name, fields, plain, tmp_path):
    (field,) = fields
    if field not in small(name).get_params():
        pytest.skip(f"has no {field}")
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


# The run folder


def test_a_run_folder_gives_the_method_back(run, toy, name):
    fitted, folder = run
    for loaded in (type(fitted).load(folder), methods.load(folder), methods.load(str(folder))):
        assert type(loaded) is type(fitted)
        assert loaded.get_params() == fitted.get_params()
        assert loaded.classes_.tolist() == fitted.classes_.tolist()
        assert torch.equal(loaded.embed(toy.queries), fitted.embed(toy.queries))
        if fitted.task != "discovery":
            assert loaded.codebook == fitted.codebook
            assert torch.equal(loaded.encode(toy.x), fitted.encode(toy.x))


def test_a_loaded_method_can_be_diagnosed(run, toy):
    fitted, folder = run
    found = methods.load(folder).diagnosis(toy.x)
    if fitted.task != "discovery":
        assert found["n_codes"] == len(fitted.encode(toy.x).unique(dim=0))


def test_saving_gives_what_fitting_into_a_folder_gives(run, toy, tmp_path):
    fitted, folder = run
    fitted.save(tmp_path / "saved")
    assert torch.equal(methods.load(tmp_path / "saved").embed(toy.x), fitted.embed(toy.x))
    assert (tmp_path / "saved/weights.safetensors").read_bytes() == (folder / "weights.safetensors").read_bytes()
    methods.load(tmp_path / "saved").save(tmp_path / "saved", overwrite=True)
    assert torch.equal(methods.load(tmp_path / "saved").embed(toy.x), fitted.embed(toy.x))


def test_class_names_survive_the_run_folder(name, plain, tmp_path):
    words = np.array([f"klasse ä{c}" if c >= 0 else "" for c in plain.labels])
    small(name).fit(plain.x, words, folder=tmp_path / "run")
    assert methods.load(tmp_path / "run").classes_.tolist() == [f"klasse ä{c}" for c in range(5)]


def test_a_run_folder_holds_no_pickle(run, tmp_path):
    fitted, folder = run
    fitted.save(tmp_path / "saved")
    for place in (folder, tmp_path / "saved"):
        found = contents(place)
        assert {"run.json", "weights.safetensors"} <= found.keys()
        assert {Path(path).suffix for path in found} <= {".json", ".safetensors", ".jsonl", ".png"}
        assert not [path for path in found if Path(path).name.startswith(".")], "a temporary file was left"
        assert load_file(place / "weights.safetensors").keys() == fitted.state().keys()


def test_a_run_folder_belongs_to_its_method(run, name):
    for other in set(NAMES) - {name}:
        with pytest.raises(ValueError, match=f"{name}.*{other}"):
            methods.get(other).load(run[1])


def test_an_existing_run_is_kept_unless_told_otherwise(run, plain, tmp_path, name):
    fitted, folder = run
    before = contents(folder)
    with pytest.raises(ValueError, match="overwrite"):
        small(name).fit(plain.x, plain.labels, folder=folder)
    with pytest.raises(ValueError, match="overwrite"):
        fitted.save(folder)
    nan = np.full_like(plain.x, np.nan)
    with pytest.raises(ValueError, match="NaN"):
        small(name).fit(nan, plain.labels, folder=folder, overwrite=True)
    assert contents(folder) == before


def test_overwriting_leaves_nothing_of_the_old_run(name, plain, tmp_path):
    small(name, seed=1).fit(plain.x, plain.labels, folder=tmp_path / "run")
    new = small(name, seed=2).fit(plain.x, plain.labels, folder=tmp_path / "run", overwrite=True)
    small(name, seed=2).fit(plain.x, plain.labels, folder=tmp_path / "fresh")
    assert contents(tmp_path / "run").keys() == contents(tmp_path / "fresh").keys()
    assert methods.load(tmp_path / "run").seed == 2
    assert torch.equal(methods.load(tmp_path / "run").embed(plain.x), new.embed(plain.x))
    assert Run(tmp_path / "run").log() == getattr(new, "log_", [])


@pytest.mark.parametrize(("field", "value"), [("bits", np.int64(BITS)), ("seed", np.int64(3))])
def test_numbers_of_numpy_can_be_fields(name, field, value, plain, tmp_path):
    """A sweep over np.arange gives them."""
    if field not in small(name).get_params():
        pytest.skip(f"has no {field}")
    method = small(name, **{field: value}).fit(plain.x, plain.labels, folder=tmp_path / "run")
    assert getattr(methods.load(tmp_path / "run"), field) == value
    assert torch.equal(methods.load(tmp_path / "run").embed(plain.x), method.embed(plain.x))


def test_a_refused_resume_leaves_the_method_unfitted(name, plain, tmp_path):
    small(name).fit(plain.x, plain.labels, folder=tmp_path / "run")
    before = contents(tmp_path / "run")
    method = small(name)
    with pytest.raises(ValueError, match="resume"):
        method.fit(plain.x[:, :20], plain.labels, folder=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    with pytest.raises(ValueError, match="not fitted"):
        method.embed(plain.x)


@pytest.mark.parametrize("damage", ["no fields", "no method", "no classes", "a tensor is missing", "weights are cut"])
def test_a_damaged_run_folder_is_named_in_the_error(name, damage, plain, tmp_path):
    small(name).fit(plain.x, plain.labels).save(tmp_path / "run")
    config, weights = tmp_path / "run/run.json", tmp_path / "run/weights.safetensors"
    if damage.startswith("no "):
        stored = json.loads(config.read_text())
        del stored[damage.removeprefix("no ")]
        config.write_text(json.dumps(stored))
    elif damage == "weights are cut":
        weights.write_bytes(weights.read_bytes()[:-10])
    else:
        tensors = load_file(weights)
        del tensors[min(tensors)]
        save_file(tensors, weights)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "run"))):
        methods.load(tmp_path / "run")


# Methods that are trained


@pytest.mark.parametrize("trained", TRAINED)
def test_training_is_logged_epoch_by_epoch(trained, plain, tmp_path):
    method = small(trained, epochs=3).fit(plain.x, plain.labels, folder=tmp_path / "run")
    assert [record["epoch"] for record in method.log_] == [1, 2, 3]
    assert Run(tmp_path / "run").log() == method.log_
    assert {"training.png", "diagnosis.json", "metrics.jsonl"} <= contents(tmp_path / "run").keys()


def test_the_list_of_methods_is_the_list_of_files():
    folder = Path(methods.__file__).parent
    assert sorted(path.stem for path in folder.glob("*.py") if path.stem not in {"__init__", "base", "deep"}) == NAMES
    assert {"combemb", "itq"} <= set(NAMES)
    for name in NAMES:
        assert methods.get(name).__module__ == f"combemb.methods.{name}"
    with pytest.raises(ValueError, match=r"combemb.*itq"):
        methods.get("base")
