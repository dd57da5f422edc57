"""A fit from what a user gives to a fitted method and its run folder; `Method.fit` calls it."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from combemb.data.embeddings import check_finite
from combemb.data.first_look import look_at
from combemb.data.given import Given, Loaded, read_given
from combemb.data.items import ArrayItems, Items
from combemb.data.labels import require_labelled
from combemb.learning import saving
from combemb.learning.curves import draw_curves
from combemb.learning.hidden_check import HiddenCheck, hidden_check
from combemb.learning.input import load_items
from combemb.learning.interface import Interface
from combemb.learning.pretraining import weights_after
from combemb.learning.replacing import publish, said_about
from combemb.learning.run_folder import CURVES, RunFolder
from combemb.search.metrics import code_use
from combemb.system import processes
from combemb.system.errors import require
from combemb.system.machine import is_available, resolved
from combemb.system.team import Team

MAX_DIAGNOSED_ITEMS = 20_000  # codes of at most so many items are counted at the end of a fit


def fit(
    method: Interface,
    x: Any,
    labels: Any,
    *,
    folder: str | Path | None,
    overwrite: bool,
    resume: bool,
    progress: bool | None,
) -> None:
    """Fit a method, as the only writer of its run folder. `Method.fit` describes the parameters."""
    progress = progress if processes.is_first() else False
    if folder is None:
        _fit(method, x, labels, None, resume=False, progress=progress)
        return
    run = RunFolder(folder)
    run.check_free(overwrite, resume)
    with run.written() if processes.is_first() else nullcontext():
        run.settle()
        run.check_free(overwrite, resume)  # another writer may just have finished
        _fit(method, x, labels, run.to_fill(overwrite, resume), resume=resume, progress=progress)


def _fit(method: Interface, x: Any, labels: Any, run: RunFolder | None, *, resume: bool, progress: bool | None) -> None:
    """Fit a method: check, read, check again, learn, store."""
    for name in [name for name in vars(method) if name.endswith("_")]:
        delattr(method, name)  # not fitted until the data have been checked
    stored = run.config() if run and resume and run.has_config() else None
    method.check_settings()
    if run and stored:
        saving.require_same_settings(method, run.folder, stored)
        run.require_unchanged_config()
    require(is_available(method.device), f"device={method.device!r} is not available on this machine; use auto")
    everything = read_given(x, labels)
    given = everything.training_part()
    method.path_ = None if given.path is None else str(given.path)
    with processes.process_group(resolved(method.device)):
        data = training_data(method, given, progress)
        identity = {**data.items.fingerprint(), "key": data.key, "labels": given.labels.digest}
        config = saving.config_of(method, data.labels.classes, identity)
        if run and stored:
            saving.require_same_data(run.folder, stored, config)
        if run and stored and run.is_complete():
            method.classes_, method.broken_, method.log_ = data.labels.classes, data.broken, run.log()
            method.check_ = _stored_check(run)
            saving.restore(method, run, stored)
            processes.wait_for_all()
            if processes.is_first():  # the fit was killed just before this
                publish(run, keeps_classes=said_about(run, given, identity))
            return
        if stored and stored["n_novel"] is not None:
            method.n_novel_ = stored["n_novel"]
        method.broken_ = data.broken
        method.check_ = _checked(method, data, run if stored else None, progress)
        check = {"hidden_check": method.check_.as_dict()} if method.check_ else {}
        counts = _counts(data, everything, given)
        method._begin(data, progress)
        processes.wait_for_all()
        if run and processes.is_first():
            if not stored:
                run.start({**config, "n_novel": getattr(method, "n_novel_", None)})
            run.write_diagnosis(check)  # so that a resumed fit need not check again
            run.write_broken(data.broken)
        processes.wait_for_all()
        method.classes_ = data.labels.classes
        method._fit(data, run, progress)
        if run and processes.is_first():
            _store(method, run, data, {**counts, **check})
            publish(run, keeps_classes=said_about(run, given, identity))
        processes.wait_for_all()  # all find the run complete, and gloo's threads have released their tensors


def _store(method: Interface, run: RunFolder, data: Loaded, known: dict[str, Any]) -> None:
    """Write diagnosis, curves and weights of a fit; `known` is what the diagnosis has besides the last epoch."""
    log = getattr(method, "log_", [])
    last = {**method.facts(), **(log[-1] if log else {}), **_use_of_codes(method, data.items)}
    run.write_diagnosis({**known, **last, "report": method.report()})
    if log:
        draw_curves(log, run.folder / CURVES, method.panels)
    images = method.image_input_
    run.write_weights(method.state(), images.own_weights if images else None)


def learned_part(method: Interface, given: Given) -> Given:
    """Return the items that a method learns from: without unlabelled ones if it ignores them."""
    if method.uses_unlabelled or given.labels.is_labelled.all():
        return given
    return given.take(np.flatnonzero(given.labels.is_labelled))


def training_data(method: Interface, given: Given, progress: bool | None) -> Loaded:
    """Return the items to learn from; whatever can be checked before images are read is checked first."""
    everything = given
    if not method.uses_unlabelled:
        require_labelled(given.labels)
    given = learned_part(method, given)
    method.check_labels(given.labels)  # before a backbone is loaded
    if processes.is_first():
        look_at(everything)
    images = method.image_input_ = None if given.images is None else method.image_input()
    n_features = images.backbone.n_features if images else int(np.shape(given.x)[-1])  # type: ignore[arg-type]
    method.check_features(len(given), n_features)
    team = Team.of_all()
    if images:
        for stage in method.first_stages():
            images.start_from(weights_after(stage, images, everything, progress, team))
    data = load_items(given, images, method.n_views, progress, team)
    if data.broken:
        method.check_labels(data.labels)
        method.check_features(len(data.labels), n_features)
    if images:
        images.known_digest = images.digest
    if isinstance(data.items, ArrayItems):
        check_finite(data.items.x, progress=progress)
    return data


def _checked(
    method: Interface, data: Loaded, interrupted: RunFolder | None, progress: bool | None
) -> HiddenCheck | None:
    """Return the check on hidden classes, if one is asked for; that of an interrupted run is not made again."""
    if not getattr(method, "check", False):
        return None
    if interrupted and (stored := _stored_check(interrupted)):
        return stored
    return hidden_check(method, data, progress)


def _stored_check(run: RunFolder) -> HiddenCheck | None:
    stored = run.diagnosis().get("hidden_check")
    return HiddenCheck.from_dict(stored) if stored else None


def _counts(data: Loaded, everything: Given, given: Given) -> dict[str, Any]:
    """Return how many items were learned from, and how many of those given were left out, for diagnosis.json."""
    ignored = {"test": len(everything) - len(given), "unlabelled": len(given) - len(data.given)}
    return {
        "n_items": len(data.labels),
        "n_labelled": int(data.labels.is_labelled.sum()),
        "several_labels": data.labels.is_multi,
        "left_out": {**ignored, "broken": len(data.broken)},
    }


def _use_of_codes(method: Interface, items: Items) -> dict[str, Any]:
    if (codebook := method.codebook) is None:
        return {}
    some = torch.arange(0, len(items), -(-len(items) // MAX_DIAGNOSED_ITEMS))
    with torch.no_grad():
        z = torch.cat([method._embed(items.take(rows)).cpu() for rows in some.split(items.n_rows)])
    return code_use(codebook.encode(z), codebook.sizes)
