"""How the texts of the command line are read: settings of a method, and files of labels."""

from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.cli.options import chosen_method, parse_settings, read_label_file
from tests.blobs import blobs
from tests.commands import done, refused


def test_text_labels_keep_leading_zeros_and_take_minus_one_as_unlabelled(tmp_path: Path):
    (tmp_path / "labels.txt").write_text("001\n2\n-1 \n\n cat \n")
    assert read_label_file(tmp_path / "labels.txt").tolist() == ["001", "2", None, None, "cat"]
    (tmp_path / "labels.txt").write_text("1\n2\n-1\n\n")
    assert read_label_file(tmp_path / "labels.txt").tolist() == [1, 2, -1, -1]


def test_settings_have_the_type_of_their_field():
    chosen = parse_settings(methods.get("combemb"), ["temperature=1", "include_self=False", "finetune=last"])
    assert chosen == {"temperature": 1.0, "include_self": False, "finetune": "last"}
    assert isinstance(chosen["temperature"], float)


def test_text_settings_can_be_none():
    assert parse_settings(methods.get("combemb"), ["backbone_weights=None"]) == {"backbone_weights": None}
    assert parse_settings(methods.get("combemb"), ["backbone=None"]) == {"backbone": "None"}


PUBLISHED = ["combemb", "dtc", "dualrank", "gcd", "ncl", "orca", "rankstats"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_settings_have_a_name_and_single_ones_can_be_changed(name):
    cls, bits = methods.get(name), {"bits": 48} if name == "combemb" else {}
    expected = cls.as_published(**bits, epochs=7, seed=3)
    assert chosen_method(name, None, 3, ["epochs=7"], published=True).get_params() == expected.get_params()
    assert chosen_method(name, None, 3, ["epochs=7"]).get_params() == cls(epochs=7, seed=3).get_params()


def test_a_fit_and_a_run_take_the_published_settings(tmp_path: Path):
    toy = blobs(4, 2, n_each=20, D=16)
    np.savez(tmp_path / "items.npz", x=toy.x, labels=toy.labels)
    for verb in ("fit", "run"):
        asked = (verb, tmp_path / "items.npz", "--out", tmp_path / verb, "--published", "--bits", "12")
        done(*asked, "--set", "epochs=1", "--set", "batch_size=64", "--set", "check=False")
        model = methods.load(tmp_path / verb)
        assert (model.bits, model.positive_threshold, model.pair_rules) == (12, 0.7, ("similar",))


def test_a_method_without_published_settings_is_refused(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    said = refused("fit", tmp_path / "x.npy", "--out", tmp_path / "run", "--method", "itq", "--published")
    assert f"--published: ITQ has no other settings; {', '.join(PUBLISHED)} have" in said
