"""What the page says about a run besides its items: settings, curves, meta-classes, numbers to judge it by."""

import dataclasses
from typing import Any

import numpy as np

from combemb import methods
from combemb.explorer.server import messages, uploads
from combemb.explorer.server.served import Served
from combemb.explorer.server.snapshot import Snapshot
from combemb.learning.curves import panels_of
from combemb.learning.hidden_check import HiddenCheck
from combemb.learning.verdict import verdict

LIMITS = {"upload_bytes": uploads.MAX_BYTES, "upload_pixels": uploads.MAX_PIXELS}


def run(served: Served) -> messages.Run:
    """Return a run as the page shows it."""
    config, diagnosis = served.config, served.folder.diagnosis()
    cls = methods.get(config["method"])
    shown = served.snapshot() if served.discovery_state() == "ready" else None
    found = None if shown is None else shown.items.found
    codebook = served.model().codebook if served.folder.is_complete() else None
    paths = [] if shown is None else [path for path in shown.items.paths if path is not None]
    check = diagnosis.get("hidden_check")
    judged = verdict(HiddenCheck.from_dict(check)) if check else None
    return messages.Run(
        name=served.path.name,
        state=None if shown is None else shown.state,
        method=config["method"],
        paper=str(getattr(cls, "paper", "")),
        combemb=str(config.get("combemb", "")),
        data=config["path"],
        n_items=None if shown is None else len(shown),
        n_labelled=None if shown is None else int(shown.classes.is_labelled.sum()),
        has_pictures=len(paths) > 0,
        n_seen=len(config["classes"]),
        n_novel=None if found is None else found.n_novel,
        n_novel_interval=None if found is None else (int(found.n_novel_interval[0]), int(found.n_novel_interval[1])),
        bits=None if codebook is None else int(codebook.bits),
        codebook=None if codebook is None else repr(codebook),
        discovery=served.discovery_state(),
        index=served.index_state(),
        map=served.map_state(),
        classes=[str(name) for name in config["classes"]],
        settings=_settings(cls, config["settings"]),
        verdict=None if judged is None else messages.Verdict(grade=judged.grade, text=str(judged)),
        metrics=_metrics(shown, diagnosis),
        meta_classes=_meta_classes(served),
        notes=[*(shown.classes.notes if shown else []), *_notes_on_pictures(served, paths)],
        limits=LIMITS,
    )


def _settings(cls: type, chosen: dict[str, Any]) -> list[messages.Setting]:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    described = []
    for name, value in chosen.items():
        default = fields[name].default if name in fields else None
        about = fields[name].metadata.get("about", "") if name in fields else ""
        plain = list(default) if isinstance(default, tuple) else default
        described.append(messages.Setting(name=name, value=value, default=plain, about=about))
    return described


def _metrics(shown: Snapshot | None, diagnosis: dict[str, Any]) -> list[messages.Metric]:
    """Return numbers that need no truth besides the labels that there are."""
    metrics = []

    def add(name: str, value: float | None, about: str, *, is_share: bool = True) -> None:
        if value is not None and np.isfinite(value):
            text = f"{value:.0%}" if is_share else f"{value:,.4g}"
            metrics.append(messages.Metric(name=name, value=float(value), text=text, about=about))

    if shown is not None:
        found, labelled = shown.items.found, shown.classes.is_labelled
        if labelled.any():
            right = float((found.nearest[labelled] == found.assignment[labelled]).mean())
            add("labelled items in their own class", right, "if their labels were not known")
        if (~labelled).any():
            add("unlabelled items in novel classes", float(found.is_novel[~labelled].mean()), "as discovered")
            mean = float(shown.items.confidence[~labelled].mean())
            add("mean confidence", mean, "of unlabelled items, calibrated on hidden labels")
    check = diagnosis.get("hidden_check") or {}
    titles = {"codes": "codes", "z": "embeddings", "plain": "plain features"}
    for key, title in titles.items():
        about = "mean average precision of classes whose labels were hidden"
        add(f"hidden classes, {title}", check.get(key), about, is_share=False)
    if diagnosis.get("n_codes") and diagnosis.get("n_coded"):
        share = diagnosis["n_codes"] / diagnosis["n_coded"]
        add("distinct codes per item", share, "1 if no two items share a code", is_share=False)
    return metrics


def _meta_classes(served: Served) -> messages.MetaClasses | None:
    """Return which classes share a meta-class in which set, for methods that have such sets."""
    if not served.folder.is_complete():
        return None
    model = served.model()
    table = getattr(getattr(model, "network_", None), "meta_classes", None)
    if table is None or table.ndim != 2 or table.shape[1] != len(model.classes_):
        return None
    values = table.cpu().numpy().astype(int)
    names = [str(name) for name in model.classes_]
    return messages.MetaClasses(n_words=int(values.max()) + 1, classes=names, table=values.tolist())


def _notes_on_pictures(served: Served, paths: list[str]) -> list[str]:
    """Say how many pictures are outside the folders that may be shown; links are followed for some of them only."""
    some = paths[:: max(1, len(paths) // 1_000)]
    outside = [path for path in some if not served.pictures.may_show(path)]
    if not outside:
        return []
    share = len(outside) / len(some)
    return [f"{share:.0%} of the images are outside the folder of the data; show them with --image-root"]


def curves(served: Served) -> messages.Curves:
    """Return the numbers of all epochs."""
    log = served.folder.log()
    if not log:
        return messages.Curves(epochs=[], panels=[], code_use=None)
    panels = []
    for panel in panels_of(log, served.model().panels):
        lines = [messages.Line(name=name, values=[_number(epoch.get(name)) for epoch in log]) for name in panel.names]
        lines = [line for line in lines if any(value is not None for value in line.values)]
        if lines:
            panels.append(messages.Panel(title=panel.title, is_share=panel.is_share, is_log=panel.is_log, lines=lines))
    use = next((epoch["code_use"] for epoch in reversed(log) if epoch.get("code_use")), None)
    return messages.Curves(epochs=[int(epoch["epoch"]) for epoch in log], panels=panels, code_use=use)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None
