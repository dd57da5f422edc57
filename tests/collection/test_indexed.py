"""The collection of a run from Python: what is stored, what is found again, and what is noticed."""

import json
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.collection.indexed import Collection, Entry, Hit
from combemb.methods.itq import ITQ
from combemb.search.index import CodeIndex

X = np.random.default_rng(0).normal(size=(60, 16))
LABELS = np.where(np.arange(60) % 3 == 0, "", np.array(["ant", "bee"])[np.arange(60) % 2])
IDS = [f"item-{i}" for i in range(60)]
FILES = ("index.safetensors", "entries.parquet")


@pytest.fixture
def items(tmp_path: Path) -> Path:
    np.savez(tmp_path / "items.npz", x=X, labels=LABELS, ids=IDS)
    return tmp_path / "items.npz"


@pytest.fixture
def run(items: Path, tmp_path: Path) -> Path:
    """A run that was fitted on the items, without an index."""
    ITQ(bits=16).fit(items, folder=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def indexed(run: Path) -> Path:
    Collection.build(run)
    return run


def test_what_was_fitted_on_is_found_with_ids_and_labels(indexed: Path):
    collection = Collection.open(indexed)
    codes = collection.model.encode(X)
    assert (len(collection), collection.n_labelled) == (60, 40)
    assert collection.n_codes == len({tuple(code) for code in codes.tolist()})
    for i, found in enumerate(collection.search(X, k=60)):
        assert found.query == Entry(str(i))
        scores = (16 - 2 * (codes != codes[i]).sum(dim=1)).tolist()
        order = sorted(range(60), key=lambda j: -scores[j])
        assert found.hits == [Hit(id=IDS[j], label=str(LABELS[j]) or None, score=scores[j]) for j in order]


def test_items_without_ids_are_numbered_on(run: Path):
    collection = Collection.build(run, X)
    collection.add(-X, labels=np.arange(60) % 4 - 1)
    collection.save()
    table = Collection.open(run).entries.to_pydict()
    assert table["id"] == [str(i) for i in range(120)]
    assert table["label"] == [None] * 60 + [None, "0", "1", "2"] * 15


def test_several_labels_without_names_go_by_their_columns(run: Path):
    labels = np.array([[1, 0, 1], [0, 1, 0], [-1, -1, -1]])
    assert Collection.build(run, X[:3], labels=labels).entries["label"].to_pylist() == ["0|2", "1", None]


def test_ids_that_are_there_twice_are_refused(run: Path, tmp_path: Path):
    np.savez(tmp_path / "x.npz", x=X[:16], ids=[f"item-{i % 15}" for i in range(16)])
    with pytest.raises(ValueError, match="1 ids occur more than once, such as 'item-0'"):
        Collection.build(run, tmp_path / "x.npz")
    assert not [name for name in FILES if (run / name).exists()]


def test_what_is_refused_is_not_added(indexed: Path, items: Path):
    collection = Collection.open(indexed)
    for source, labels, message in (
        (items, None, "60 of 60 items are in the index already, such as item-0"),
        (X[:, :8], None, "x has 8 features"),
        (X[:3], ["ant", "bee"], "there are 2 labels for 3 items"),
    ):
        with pytest.raises(ValueError, match=message):
            collection.add(source, labels=labels)
    assert len(collection) == len(collection.entries) == 60
    assert len(collection.search(X[:1], k=100)[0].hits) == 60


def test_removed_entries_are_gone_and_the_others_found_as_before(indexed: Path):
    collection = Collection.open(indexed)
    gone = {f"item-{i}" for i in (0, 7, 8, 59)}
    expected = [[hit for hit in found.hits if hit.id not in gone] for found in collection.search(X, k=60)]
    collection.remove(sorted(gone))
    collection.save()
    assert not hasattr(collection, "index")  # its ids are rows of the entries: a change of it alone would mix them up
    for it in (collection, Collection.open(indexed)):
        assert it.entries["id"].to_pylist() == [name for name in IDS if name not in gone]
        assert [found.hits for found in it.search(X, k=60)] == expected


def test_all_entries_can_be_removed_and_added_again(indexed: Path, items: Path):
    collection = Collection.open(indexed)
    before = collection.entries
    collection.remove(IDS)
    collection.save()
    empty = Collection.open(indexed)
    assert (len(empty), empty.search(X[:1])[0].hits) == (0, [])
    empty.add(items)
    assert empty.entries == before


def test_an_id_that_is_unknown_removes_nothing(indexed: Path):
    collection = Collection.open(indexed)
    with pytest.raises(
        ValueError, match="1 of 2 ids are not in the index, such as 'nobody'; give ids as in the column"
    ):
        collection.remove(["item-0", "nobody"])
    with pytest.raises(ValueError, match="ids is the one string 'item-0'; give a list of ids"):
        collection.remove("item-0")
    assert len(collection) == 60


def test_numbers_of_entries_are_not_used_twice_after_a_removal(run: Path):
    collection = Collection.build(run, X)
    collection.remove(["3", "4"])
    assert collection.add(X[:2], skip_known=True) == 0
    assert collection.entries["id"].to_pylist() == [str(i) for i in range(62) if i not in (3, 4)]


def test_items_that_are_there_already_are_skipped_if_asked(indexed: Path, tmp_path: Path):
    np.savez(tmp_path / "more.npz", x=-X[:4], labels=["new"] * 4, ids=["item-1", "a", "item-2", "b"])
    collection = Collection.open(indexed)
    before = collection.entries.to_pylist()
    assert collection.add(tmp_path / "more.npz", skip_known=True) == 2
    more = [{"id": name, "path": None, "label": "new"} for name in "ab"]
    assert collection.entries.to_pylist() == [*before, *more]
    codes = collection.model.encode(-X[[1, 3]])
    assert collection.search(-X[[1]], k=62)[0].hits[0].score == 16
    assert [hit.score for hit in collection.search(-X[[1]], k=62)[0].hits if hit.id == "b"] == [
        16 - 2 * int((codes[0] != codes[1]).sum())
    ]


def test_a_model_saved_from_python_remembers_its_data(items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(items.parent)
    ITQ(bits=8).fit(items.name).save(tmp_path / "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["path"] == str(items)
    methods.load(tmp_path / "run").save(tmp_path / "again")
    assert Collection.build(tmp_path / "again").entries["id"].to_pylist() == IDS


def test_a_fit_on_an_array_forgets_the_path_of_an_earlier_one(items: Path, tmp_path: Path):
    ITQ(bits=8).fit(items).fit(X, folder=tmp_path / "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["path"] is None


def test_an_index_of_another_model_is_refused_even_with_an_equal_codebook(indexed: Path, items: Path):
    stale = {name: (indexed / name).read_bytes() for name in FILES}
    ITQ(bits=16, seed=1).fit(items, folder=indexed, overwrite=True)
    for name, content in stale.items():
        (indexed / name).write_bytes(content)
    CodeIndex.load(indexed / "index.safetensors", codebook=methods.load(indexed).codebook)  # sees no difference
    with pytest.raises(ValueError, match="was made before the model was fitted again; index again: combemb index "):
        Collection.open(indexed)


def test_fitting_again_removes_the_index_even_of_the_same_model(indexed: Path, items: Path):
    ITQ(bits=16).fit(items, folder=indexed, overwrite=True)  # its labels may be others
    with pytest.raises(ValueError, match="has no index yet; make one: combemb index "):
        Collection.open(indexed)


def test_a_collection_that_another_one_has_changed_is_not_written(indexed: Path, items: Path):
    first, second = Collection.open(indexed), Collection.open(indexed)
    first.remove(first.entries["id"][:1].to_pylist())
    first.save()
    first.save()
    second.remove(second.entries["id"][:2].to_pylist())
    with pytest.raises(ValueError, match="was changed since this collection was opened; open it and add again"):
        second.save()
    assert len(Collection.open(indexed)) == 59
    ITQ(bits=16, seed=1).fit(items, folder=indexed, overwrite=True)
    with pytest.raises(ValueError, match="was fitted again since this collection was opened"):
        first.save()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "empty", "other"])
def test_damaged_files_are_noticed(indexed: Path, name: str, damage: str):
    path = indexed / name
    whole = path.read_bytes()
    middle = len(whole) // 2 if name == "index.safetensors" else 60
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.unlink()
    if damage != "gone":
        path.write_bytes({"cut": whole[:-100], "changed": changed, "empty": b"", "other": b"{}" * 200}[damage])
    with pytest.raises(ValueError, match=f"cannot read {path}: .*combemb index {indexed} --overwrite"):
        Collection.open(indexed)
    Collection.build(indexed, overwrite=True)
    assert len(Collection.open(indexed)) == 60


def test_every_change_of_a_byte_of_the_entries_is_noticed_or_harmless(indexed: Path):
    path = indexed / "entries.parquet"
    whole = path.read_bytes()
    expected = Collection.open(indexed).entries
    for i in range(0, len(whole), 7):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        assert entries_or_error(indexed) in (expected, "index again")


def entries_or_error(run: Path) -> object:
    try:
        return Collection.open(run).entries
    except ValueError as error:
        return "index again" if "index again" in str(error) else error


def test_files_that_do_not_belong_together_are_noticed(indexed: Path):
    old = (indexed / "index.safetensors").read_bytes()
    Collection.build(indexed, -X, overwrite=True)
    (indexed / "index.safetensors").write_bytes(old)  # as a kill between the two files would leave them
    with pytest.raises(ValueError, match="do not belong together; index again"):
        Collection.open(indexed)


def test_an_index_that_cannot_be_written_leaves_the_old_one(indexed: Path):
    index = (indexed / "index.safetensors").read_bytes()
    collection = Collection(indexed)
    collection.add(np.eye(16))
    (indexed / "entries.parquet").unlink()
    (indexed / "entries.parquet/in the way").mkdir(parents=True)
    names = sorted(indexed.iterdir())
    with pytest.raises(OSError, match="directory"):
        collection.save()
    assert (indexed / "index.safetensors").read_bytes() == index
    assert sorted(indexed.iterdir()) == names
