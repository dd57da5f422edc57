"""What every method must do, checked on every file of combemb/methods: the class, its outcome, its randomness."""

import dataclasses
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from combemb import methods
from combemb.search.metrics import code_retrieval, float_retrieval
from tests.contract.quick import BITS, CODED, small

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


def test_scikit_learn_can_search_a_grid(name, plain):
    def spread(method, x, _):
        return float(method.embed(x).std())

    search = GridSearchCV(small(name), {"seed": [0, 1]}, scoring=spread, cv=2).fit(plain.x, plain.labels)
    assert search.best_params_["seed"] in {0, 1}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_numbers_of_numpy_are_numbers(name, plain, tmp_path):
    method = small(name)
    kinds = {int: np.int64, float: np.float64}
    given = {key: kinds.get(type(value), lambda x: x)(value) for key, value in method.get_params().items()}
    again = methods.get(name)(**given).fit(plain.x, plain.labels, folder=tmp_path / "run")
    assert torch.equal(again.embed(plain.x), method.fit(plain.x, plain.labels).embed(plain.x))
    assert methods.load(tmp_path / "run").get_params() == method.get_params()


def test_what_differs_from_the_default_is_shown(name):
    cls = methods.get(name)
    assert repr(cls()) == f"{cls.__name__}()"
    assert repr(cls(seed=3)) == f"{cls.__name__}(seed=3)"


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


@pytest.mark.parametrize("name", CODED, indirect=True, scope="module")
def test_codes_have_the_bits_that_were_asked_for(fitted, toy):
    codebook, codes = fitted.codebook, fitted.encode(toy.x)
    assert codebook.bits == fitted.bits == BITS
    assert fitted.embed(toy.x).shape[1] == codebook.words.shape[0] * codebook.words.shape[2]
    assert codes.dtype == torch.uint8
    assert codes.shape == (len(toy.x), len(codebook.sizes))
    assert (codes.long() < torch.tensor(codebook.sizes)).all()
    assert torch.equal(codes, codebook.encode(fitted.embed(toy.x)))


@pytest.mark.parametrize("name", CODED, indirect=True, scope="module")
def test_encoding_undoes_decoding(fitted, toy):
    codes = fitted.encode(toy.x)
    assert torch.equal(fitted.codebook.encode(fitted.codebook.decode(codes)), codes)


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
