"""Names to suggest for novel classes."""

import numpy as np
import pyarrow as pa

from combemb.collection import changes
from combemb.collection.classes import applied
from combemb.collection.suggested import class_centres, suggestions
from tests.discoveries import found_in


def test_near_seen_classes_come_first_then_names_that_people_gave():
    _, found = found_in(["ant", "bee", "cat", "dog"], 3, per_class=8)
    columns = {"cluster": [str(name) for name in found.clusters], "is_novel": found.is_novel}
    columns |= {"id": [f"item-{row}" for row in range(len(found))], "confidence": found.confidence}
    table = pa.table(columns)
    log = [changes.name(applied(table, []), "novel-1", "owl")]
    log.append(changes.undo(applied(table, log)))
    log.append(changes.name(applied(table, log), "novel-2", "wasp"))
    classes = applied(table, log)
    centres = class_centres(found, classes)
    for name, centre in centres.items():
        own = found.centres[found.assignment[classes.rows(name)]]
        np.testing.assert_allclose(centre, own.mean(axis=0), rtol=1e-5)
    suggested = suggestions(found, classes, log)
    assert suggested.keys() == {"novel-1", "wasp", "novel-3"}
    for name in ("novel-1", "novel-3"):
        away = {seen: np.linalg.norm(centres[name] - centres[seen]) for seen in ("ant", "bee", "cat", "dog")}
        told = [(about.name, about.reason) for about in suggested[name]]
        assert told[:3] == [(seen, "nearest seen class") for seen in sorted(away, key=away.__getitem__)[:3]]
        assert told[3:] == [("wasp", "given before"), ("owl", "given before")], "what was undone comes last"
    assert ("owl", "given before") in [(about.name, about.reason) for about in suggested["wasp"]]
    assert "wasp" not in [about.name for about in suggested["wasp"]]


def test_without_seen_classes_or_names_nothing_is_suggested():
    _, found = found_in(["ant"], 1)
    columns = {"cluster": ["novel-1"] * len(found), "is_novel": np.ones(len(found), bool)}
    columns |= {"id": [f"item-{row}" for row in range(len(found))], "confidence": found.confidence * 0.5}
    assert suggestions(found, applied(pa.table(columns), []), []) == {"novel-1": []}
