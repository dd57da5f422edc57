"""What the jobs of a run do: commands of the command line, and what is to be read when they are done."""

import re
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from combemb.collection.compared import compared
from combemb.collection.discovered import is_discovered
from combemb.collection.exported import label_table, write_exported
from combemb.explorer.server import bodies, messages
from combemb.explorer.server.jobs import Job, Jobs
from combemb.explorer.server.problems import Refused, unavailable
from combemb.explorer.server.served import Served

DRAWING = "combemb.explorer.missing_map"  # imports openTSNE, which the server does not need


def start(jobs: Jobs, served: Served, asked: bodies.AnyJob) -> Job:
    """Start a job."""
    match asked:
        case bodies.Fit():
            return fit_again(jobs, served, asked.settings)
        case bodies.Discover():
            return discover(jobs, served, asked.n_novel)
        case bodies.Index():
            if served.index_state() == "impossible":
                raise Refused(400, "refused", f"{served.config['method']} has no codes, so there is nothing to index")
            return jobs.start("index", "index the items", ["combemb", "index", str(served.path), "--overwrite"])
        case bodies.Map():
            return draw_map(jobs, served)


def draw_map(jobs: Jobs, served: Served) -> Job:
    """Draw the map of the discovery."""
    served.snapshot()
    return jobs.start("map", "draw the map", [DRAWING, str(served.path)])


def prepare(jobs: Jobs, served: Served) -> None:
    """Read what the first requests need, and draw a missing map; what is wrong is said when somebody asks for it."""
    with suppress(Refused, ValueError, OSError):
        draw_missing_map(jobs, served)
        served.collection()


def draw_missing_map(jobs: Jobs, served: Served) -> None:
    """Draw the map if there is a discovery without one, and nothing else is going on."""
    if served.discovery_state() == "ready" and served.map_state() == "missing" and jobs.running() is None:
        draw_map(jobs, served)


def discover(jobs: Jobs, served: Served, n_novel: int | None) -> Job:
    """Discover again, with the labels of the discovery that there is: those of the data may not be those of the fit."""
    command = ["combemb", "discover", str(served.path)]
    command += [] if n_novel is None else ["--n-novel", str(n_novel)]
    always = _nothing
    jobs.require_none()
    if served.discovery_state() == "ready":
        classes = served.snapshot().classes
        labels = [name if known else None for name, known in zip(classes.names, classes.is_labelled, strict=True)]
        folder = tempfile.TemporaryDirectory(prefix="combemb-")
        file = Path(folder.name) / "labels.parquet"
        write_exported(pa.table({"id": classes.table["id"], "label": pa.array(labels, pa.string())}), file)
        command, always = [*command, "--labels", str(file)], folder.cleanup
    return jobs.start("discover", "discover classes", command, always=always)


def _nothing() -> None:
    pass


def fit_again(jobs: Jobs, served: Served, settings: dict[str, bodies.SettingValue]) -> Job:
    """Fit, index and discover in a new run folder beside this one, with the labels that follow from the names."""
    shown, config, run = served.snapshot(), served.config, served.path
    if config["path"] is None or not Path(config["path"]).exists():
        where = "were not read from a path" if config["path"] is None else f"are no longer at {config['path']}"
        raise Refused(409, "unavailable", f"the data of {run.name} {where}", "fit again with combemb run")
    jobs.require_none()
    new, labels = free_run(run), label_table(shown.classes)
    n_labels = len(labels) - labels["label"].null_count
    if n_labels == 0:
        raise Refused(400, "refused", "no item has a label yet; name a class first")
    file = new.with_name(f"{new.name}-labels.csv")
    write_exported(labels, file)
    chosen = {**config["settings"], **settings}
    options = [part for setting in as_options(chosen) for part in ("--set", setting)]
    command = ["combemb", "run", config["path"], "--out", str(new), "--labels", str(file)]
    command += ["--method", config["method"], *options]

    def done() -> messages.Result:
        return messages.Result(run=new.name, compared=comparison(run, new))

    return jobs.start("fit", f"fit again with {n_labels:,} labels", command, done)


def free_run(run: Path) -> Path:
    """Return a folder beside a run for the next one: photos-2 after photos, photos-3 after photos-2."""
    stem = re.sub(r"-\d+$", "", run.name)
    candidates = (run.with_name(f"{stem}-{number}") for number in count(2))
    return next(path for path in candidates if not path.exists())


def comparison(before: Path, after: Path) -> messages.Compared:
    """Return what changed from one run to another."""
    for run in (before, after):
        if not is_discovered(run):
            raise unavailable(run, "discover", "discovery")
    found = compared(before, after)
    return messages.Compared(
        before=before.name,
        after=after.name,
        counts=[messages.Count(name=name, before=was, after=now) for name, (was, now) in found.counts.items()],
        classes_added=found.added,
        classes_removed=found.removed,
        n_common=found.n_common,
        n_moved=sum(n for *_, n in found.moves),
        moves=[messages.Moved.model_validate({"from": was, "to": now, "n": n}) for was, now, n in found.moves[:100]],
    )


def as_options(settings: dict[str, Any]) -> list[str]:
    """Return settings as `--set` takes them."""
    texts = {name: ",".join(map(str, x)) if isinstance(x, list) else str(x) for name, x in settings.items()}
    return [f"{name}={text}" for name, text in texts.items()]
