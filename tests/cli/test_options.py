"""How the texts of the command line are read: settings of a method, and files of labels."""

from pathlib import Path

from combemb import methods
from combemb.cli.options import parse_settings, read_label_file


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
