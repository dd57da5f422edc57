"""What came of a fit or of a whole run, read from the run folder, as lines for people and as JSON."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combemb.learning.hidden_check import HiddenCheck


def command(verb: str, run: Path, *arguments: str, labels: Path | None = None) -> str:
    """Return a command that a user may type next."""
    given = [] if labels is None else ["--labels", str(labels)]
    return shlex.join(["combemb", verb, str(run), *arguments, *given])


def lines_of_fit(folder: Path) -> list[str]:
    """Return what a fit learned from, what it left out and whether it is good."""
    from combemb.learning.run_folder import BROKEN, RunFolder
    from combemb.learning.verdict import verdict

    run = RunFolder(folder)
    config, diagnosis = run.config(), run.diagnosis()
    lines, what = [], "images" if config["images"] else "items"
    if "n_items" in diagnosis:  # in runs of this version
        n = len(config["classes"])
        classes = f"{n} class{'' if n == 1 else 'es'}"
        lines.append(f"{diagnosis['n_items']:,} {what}, {diagnosis['n_labelled']:,} of them labelled with {classes}")
        texts = {
            "broken": f"{{:,}} that cannot be read, listed in {folder / BROKEN}",
            "test": "{:,} of the test split",
            "unlabelled": f"{{:,}} without a label, which {config['method']} does not use",
        }
        left_out = [texts[name].format(n) for name, n in diagnosis["left_out"].items() if n]
        lines += [f"left out: {'; '.join(left_out)}"] if left_out else []
    if config.get("n_novel") is not None:  # of a method with a head
        lines += diagnosis["report"]
    check = _check_of(diagnosis)
    if check is None:
        return [*lines, f"not checked whether this is good: {_why_unchecked(config)}"]
    return [*lines, f"the fit is {verdict(check)}", str(check)]


def lines_of_run(folder: Path) -> list[str]:
    """Return what was found by all steps of a run, and what to do next."""
    from combemb import methods
    from combemb.learning.codes import CodeMethod
    from combemb.learning.run_folder import PAGE, RunFolder

    found, config = _found(folder), RunFolder(folder).config()
    (low, high), n = found["n_novel_interval"], found["n_novel"]
    what = "image" if config["images"] else "item"
    novel = (
        f"found {n or 'no'} novel class{'' if n == 1 else 'es'}{f', probably {low} to {high}' if low < high else ''}"
    )
    searches = (f"{command('search', folder)} {what.upper()}", f"finds {what}s like this one")
    follow = [
        *([(command("classes", folder, "name", "novel-1", "a name"), "names what was found")] if n else []),
        *([searches] if issubclass(methods.get(config["method"]), CodeMethod) else []),
        (f"{command('predict', folder)} NEW-{what.upper()}S", f"sorts new {what}s into these classes"),
    ]
    width = max(len(text) for text, _ in follow)
    return [
        *lines_of_fit(folder),
        f"{novel}: {found['n_in_novel']:,} {what}s belong to {'it' if n == 1 else 'them'}" if n else novel,
        f"the page that shows all classes: {folder / PAGE}",
        "next: open this page in a browser, and then",
        *(f"  {text:{width}}  {use}" for text, use in follow),
    ]


def as_json(folder: Path, steps: dict[str, str]) -> dict[str, Any]:
    """Return what was found by all steps of a run, for other programs."""
    from combemb.learning.run_folder import PAGE, RunFolder
    from combemb.learning.verdict import verdict

    run = RunFolder(folder)
    diagnosis = run.diagnosis()
    check = _check_of(diagnosis)
    return {
        "run": str(folder),
        "steps": steps,
        **{name: diagnosis.get(name) for name in ("n_items", "n_labelled", "left_out")},
        "n_seen": len(run.config()["classes"]),
        "grade": verdict(check).grade if check else None,
        "hidden_check": diagnosis.get("hidden_check"),
        **_found(folder),
        "page": str(folder / PAGE),
    }


def _check_of(diagnosis: dict[str, Any]) -> HiddenCheck | None:
    """Return the check on hidden classes; None if there was none."""
    from combemb.learning.hidden_check import HiddenCheck

    stored = diagnosis.get("hidden_check")
    return HiddenCheck.from_dict(stored) if stored else None


def _why_unchecked(config: dict[str, Any]) -> str:
    wanted = config["settings"].get("check")
    if wanted is None:
        return f"{config['method']} has no check on hidden classes"
    return "it needs three classes with two labels each, and one label per item" if wanted else "check=False"


def _found(folder: Path) -> dict[str, Any]:
    from combemb.discovery.result import Discovery
    from combemb.learning.run_folder import RunFolder

    found = Discovery.load(RunFolder(folder).discovery)
    interval = [int(bound) for bound in found.n_novel_interval]
    return {"n_novel": found.n_novel, "n_novel_interval": interval, "n_in_novel": int(found.is_novel.sum())}
