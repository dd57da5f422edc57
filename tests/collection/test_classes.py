"""What a person says about items holds, whatever the clusters are called by the next discovery."""

import pyarrow as pa
import pytest

from combemb.collection import changes
from combemb.collection.class_log import Change, append, read_log
from combemb.collection.classes import applied


def table(clusters: dict[str, str], labelled: str = "", seen: tuple[str, ...] = ("ant", "bee")) -> pa.Table:
    """Items by id with their cluster; one letter each."""
    return pa.table(
        {
            "id": pa.array(list(clusters), pa.large_string()),
            "cluster": list(clusters.values()),
            "is_novel": [name not in seen for name in clusters.values()],
            "confidence": pa.array([1.0 if name in labelled else 0.7 for name in clusters], pa.float32()),
        }
    )


def items(classes) -> dict[str, str | None]:
    return dict(zip(classes.ids, classes.names, strict=True))


def spread(**clusters: str) -> dict[str, str]:
    """Cluster of each letter."""
    return {letter: name.replace("_", "-") for name, letters in clusters.items() for letter in letters}


FIRST = table(spread(ant="abc", bee="de", novel_1="fghij", novel_2="klm"), labelled="abd")
NEXT = table(spread(ant="abc", bee="de", novel_1="klmnopq", novel_2="fghijr"), labelled="abd")  # numbers have changed


def said(log: list[Change], make, *arguments) -> None:
    log.append(make(applied(FIRST, log), *arguments))


def test_a_name_stays_with_the_items_when_clusters_are_numbered_anew():
    log: list[Change] = []
    said(log, changes.name, "novel-1", " hawk ")
    for found, rest in ((applied(FIRST, log), "novel-2"), (applied(NEXT, log), "novel-1")):
        assert all(items(found)[letter] == "hawk" for letter in "fghij")
        assert all(items(found)[letter] == rest for letter in "klm")
        assert found.notes == []
    assert items(applied(NEXT, log))["r"] == "novel-2"  # nobody has said anything about it
    assert applied(NEXT, log).of_clusters() == {"ant": "ant", "bee": "bee", "novel-1": "novel-1", "novel-2": "hawk"}


def test_labels_are_those_of_the_data_and_of_people():
    log: list[Change] = []
    said(log, changes.name, "novel-1", "hawk")
    labels = dict(zip(FIRST["id"].to_pylist(), applied(FIRST, log).labels(), strict=True))
    assert labels == {
        **dict.fromkeys("ceklm"),
        **dict.fromkeys("ab", "ant"),
        "d": "bee",
        **dict.fromkeys("fghij", "hawk"),
    }
    said(log, changes.name, "ant", "ant")  # confirms
    assert applied(FIRST, log).labels()[2] == "ant"


def test_merged_clusters_are_one_class_with_or_without_a_name():
    log: list[Change] = []
    said(log, changes.merge, ["novel-2", "novel-1"])
    assert {items(applied(FIRST, log))[letter] for letter in "fghijklm"} == {"novel-2"}
    assert {items(applied(NEXT, log))[letter] for letter in "fghijklm"} == {"novel-1"}
    assert applied(FIRST, log).labels()[5] is None
    said(log, changes.merge, ["bee", "novel-2"])
    assert {items(applied(NEXT, log))[letter] for letter in "fghijklm"} == {"bee"}
    assert applied(FIRST, log).of_clusters()["novel-1"] == "bee"


def test_a_split_makes_a_class_whose_name_is_free_in_every_discovery():
    log: list[Change] = []
    said(log, changes.split, "novel-1", ["ij"])
    found = items(applied(FIRST, log))
    assert [found[letter] for letter in "fghij"] == [*3 * ["novel-1"], *2 * ["novel-3"]]
    more = table(spread(novel_1="klm", novel_2="fghij", novel_3="nop"))
    found = items(applied(more, log))
    assert [found[letter] for letter in "fin"] == ["novel-2", "novel-4", "novel-3"]
    assert applied(FIRST, log).of_clusters()["novel-1"] == "novel-1"


def test_moved_and_rejected_items():
    log: list[Change] = []
    said(log, changes.move, "novel-2", "fg")
    assert items(applied(FIRST, log))["f"] == "novel-2"
    assert items(applied(NEXT, log))["f"] == "novel-1"  # where the others of its class are
    said(log, changes.move, "bee", "c")
    assert applied(FIRST, log).labels()[2] == "bee"
    said(log, changes.reject, "novel-2", "f")
    assert items(applied(FIRST, log))["f"] is None
    said(log, changes.reject, "novel-2")
    assert {items(applied(NEXT, log))[letter] for letter in "fgklm"} == {None}
    assert applied(FIRST, log).of_clusters()["novel-2"] is None
    assert applied(FIRST, log).labels()[5] is None


def test_undo_takes_back_one_change_after_the_other():
    log: list[Change] = []
    said(log, changes.name, "novel-1", "hawk")
    said(log, changes.name, "hawk", "eagle")
    said(log, changes.undo)
    assert items(applied(FIRST, log))["f"] == "hawk"
    said(log, changes.undo)
    assert items(applied(FIRST, log))["f"] == "novel-1"
    with pytest.raises(ValueError, match="there is no change to undo"):
        said(log, changes.undo)


def test_what_cannot_be_applied_is_noted():
    log: list[Change] = []
    said(log, changes.name, "novel-1", "hawk")
    said(log, changes.move, "novel-2", "c")
    found = applied(table(spread(ant="abcd", bee="f", novel_1="gh"), labelled="f"), log)
    assert items(found)["f"] == "bee"
    assert items(found)["g"] == "hawk"
    assert found.notes == [
        "sorted by hand but not among the discovered items: 2, such as i",
        "sorted by hand but labelled otherwise now, which counts: 1, such as f",
        "not applied, since no item of that class is left: move novel-2",
    ]
    assert applied(table(spread(hawk="fghij"), labelled="fghij", seen=("hawk",)), log[:1]).notes == []


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (changes.name, ("novel-9", "hawk"), "no cluster 'novel-9'; choose one of novel-1, novel-2, ant, bee"),
        (changes.name, ("novel-1", " "), "the name is empty"),
        (changes.name, ("novel-1", "a|b"), "cannot be a name"),
        (changes.name, ("novel-1", "a\nb"), "cannot be a name"),
        (changes.name, ("novel-1", "novel-2"), "combemb uses it for items without one"),
        (changes.name, ("novel-1", "neither"), "combemb uses it for items without one"),
        (changes.name, ("ant", "wasp"), "'ant' is a class of the labels; rename it there"),
        (changes.merge, (["novel-1", "novel-1"],), "needs two different clusters"),
        (changes.merge, (["novel-1", "ant"],), "'ant' is a class of the labels, and keeps its name; name it first"),
        (changes.split, ("novel-1", ["k"]), r"\['k'\] is not an unlabelled item of 'novel-1'"),
        (changes.split, ("novel-1", ["fghij"]), "5 of the items of 'novel-1' were chosen; choose some, not all"),
        (changes.move, ("novel-1", ["z"]), "no item 'z'; ids look like 'a'"),
        (changes.move, ("novel-1", ["a"]), "a is labelled, and keeps its label"),
        (changes.reject, ("novel-1", ["k"]), "'k' is not an item of 'novel-1'"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_makes_no_sense_is_refused(make, arguments, message: str):
    with pytest.raises(ValueError, match=message):
        make(applied(FIRST, []), *arguments)


def test_a_line_that_was_cut_off_is_replaced_and_damage_is_named(own_log):
    change = Change("name", ["novel-1"], [["ä", "b"]], "hawk")
    append(own_log, change)
    path = own_log / "classes.jsonl"
    with path.open("ab") as file:
        file.write(path.read_bytes()[:30])
    assert read_log(own_log) == [change]
    append(own_log, Change("undo"))
    assert read_log(own_log) == [change, Change("undo")]
    path.write_text('{"kind": "rename"}\n' + path.read_text())
    with pytest.raises(ValueError, match=r"line 1 of .*classes.jsonl is damaged \(unknown change 'rename'\)"):
        read_log(own_log)


@pytest.fixture
def own_log(tmp_path):
    """The folder of a run that has nothing but its configuration."""
    import numpy as np

    from combemb.methods.itq import ITQ

    x = np.random.default_rng(0).normal(size=(40, 12))
    ITQ(bits=4).fit(x, np.arange(40) % 2, folder=tmp_path / "run")
    return tmp_path / "run"
