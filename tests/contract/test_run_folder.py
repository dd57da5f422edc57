"""What every method must do with its run folder."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from combemb import methods
from combemb.learning.run_folder import RunFolder
from tests.contract.quick import BITS, NAMES, TRAINED, contents, small, with_field

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


def test_the_diagnosis_counts_the_codes_of_all_items(run, toy):
    fitted, folder = run
    if fitted.task != "discovery":
        found = json.loads((folder / "diagnosis.json").read_text())
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
    assert RunFolder(tmp_path / "run").log() == getattr(new, "log_", [])


@pytest.mark.parametrize(("name", "fields"), with_field({"bits": np.int64(BITS)}, {"seed": np.int64(3)}), ids=str)
def test_numbers_of_numpy_can_be_fields(name, fields, plain, tmp_path):
    """A sweep over np.arange gives them."""
    ((field, value),) = fields.items()
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
    assert RunFolder(tmp_path / "run").log() == method.log_
    assert {"training.png", "diagnosis.json", "metrics.jsonl"} <= contents(tmp_path / "run").keys()


def test_the_list_of_methods_is_the_list_of_files():
    folder = Path(methods.__file__).parent
    assert sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__") == NAMES
    assert {"combemb", "itq"} <= set(NAMES)
    for name in NAMES:
        assert methods.get(name).__network__ == f"combemb.methods.{name}"
    with pytest.raises(ValueError, match=r"combemb.*itq"):
        methods.get("base")
