"""Classes as people named them, from clusters that were really found."""

import numpy as np
import pyarrow as pa
import pytest

from combemb.collection import changes
from combemb.collection.class_log import Change
from combemb.collection.classes import Classes, applied
from combemb.collection.named import class_probabilities, confidence_in, named
from combemb.discovery.result import Discovery
from tests.discoveries import found_in


def classes_of(found: Discovery, *log: Change) -> Classes:
    columns = {"cluster": [str(name) for name in found.clusters], "is_novel": found.is_novel}
    columns |= {"id": [f"item-{row}" for row in range(len(found))], "confidence": found.confidence}
    return applied(pa.table(columns), log)


@pytest.fixture
def discovery():
    """Two seen classes, called by numbers, and three novel ones; and probabilities of the five."""
    z, found = found_in([7, 8], 3, per_class=8)
    return found, found.probabilities(z)


def test_without_changes_nothing_changes(discovery):
    found, probabilities = discovery
    classes = classes_of(found)
    shown, rows = named(found, classes, found.confidence)
    assert shown is found
    assert rows.tolist() == list(range(len(found)))
    np.testing.assert_array_equal(confidence_in(found, classes, probabilities), found.confidence)
    assert class_probabilities(found, classes, probabilities).names == ["7", "8", "novel-1", "novel-2", "novel-3"]


def test_merged_named_rejected_and_split_classes(discovery):
    found, _ = discovery
    probabilities = np.full((len(found), 5), 0.1, np.float32)
    probabilities[:, 3] = 0.6
    log = [changes.merge(classes_of(found), ["novel-2", "novel-3"])]
    log.append(changes.name(classes_of(found, *log), "novel-1", "hawk"))
    merged = classes_of(found, *log)
    first, second = (merged.ids[merged.rows("novel-2")[i]] for i in (0, 1))
    log.append(changes.split(merged, "novel-2", [[first]]))
    log.append(changes.reject(classes_of(found, *log), "novel-2", [second]))
    classes = classes_of(found, *log)
    confidence = confidence_in(found, classes, probabilities)
    shown, rows = named(found, classes, confidence)
    assert len(shown) == len(rows) == len(found) - 1
    assert second not in classes.ids[rows]
    assert shown.names.tolist() == [7, 8, "novel-2", "hawk", "novel-4"]
    assert shown.clusters.tolist() == [
        int(name) if name in {"7", "8"} else name for name in classes.names if name is not None
    ]
    own = dict(zip(classes.ids, confidence, strict=True))
    before = dict(zip(classes.ids, found.confidence, strict=True))
    for name in classes.ids[classes.rows("novel-2")]:
        assert own[name] == pytest.approx(0.7)  # the sum of two clusters
    for name in (first, *classes.ids[classes.rows("hawk")], *classes.ids[found.is_labelled]):
        assert own[name] == before[name]
    assert set(shown.neighbours) == {"novel-2", "hawk", "novel-4"}
    assert shown.n_novel_interval == found.n_novel_interval  # three as before


def test_an_item_belongs_to_the_class_that_is_likeliest_as_a_whole(discovery):
    found, _ = discovery
    classes = classes_of(found, changes.merge(classes_of(found), ["novel-2", "novel-3"]))
    probabilities = np.array([[0, 0, 0.4, 0.35, 0.25], [0.3, 0.3, 0.4, 0, 0], [0, 0, 0.1, 0.5, 0.5]], np.float32)
    by_class = class_probabilities(found, classes, probabilities)
    best, probability = by_class.assign()
    assert [by_class.names[k] for k in best] == ["novel-2", "7", "novel-2"]
    np.testing.assert_allclose(probability, [0.6, 0.3, 1 - 1e-6], atol=1e-7)
    assert (probability < 1).all()  # only labelled items are certain
