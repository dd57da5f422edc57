"""Tables of the results of piles.py, and in how many cells each target is met."""

import statistics
from collections.abc import Callable
from typing import Any

from scipy.stats import spearmanr

Record = dict[str, Any]
Verdict = bool | None  # None where a number is missing or the target says nothing

COLUMNS = (
    *(
        "dataset",
        "split",
        "codes",
        "z",
        "raw",
        "white",
        "w.all",
        "codes/b",
        "z/b",
        "seen",
        "white",
        "w.all",
        "found of",
    ),
    *("right", "linear", "called", "acc", "km", "sskm", "auroc", "soft", "near", "exp", "error", "fit"),
)
MARKDOWN_COLUMNS = (
    *(
        "pile",
        "items",
        "codes, novel",
        "z, novel",
        "raw",
        "whitened",
        "whitened, all dimensions",
        "codes / better floats",
    ),
    *(
        "z / better floats",
        "codes, seen",
        "whitened",
        "whitened, all dimensions",
        "novel classes found",
        "seen put right",
    ),
    *("linear", "called novel", "`acc_joint`", "k-means", "k-means with labels", "AUROC", "softmax", "nearest"),
    *("expected", "error of that"),
)
LEGEND = """novel mAP of codes, z, raw float features, features whitened within the labelled classes (white: 256 main
components, w.all: all dimensions), codes and z over the better of raw and white (b)
seen mAP of codes and both whitened floats; novel classes found, with the interval, of the true number
unlabelled seen items put right, by a linear classifier; novel items called novel
acc_joint of unlabelled items, of k-means and semi-supervised k-means on raw features with the true number of classes
AUROC of novelty, of the largest softmax probability, of the distance to the nearest labelled item
novel mAP of codes that the model expects, and how far off it is; seconds of the fit"""
ESTIMATES = ("expected", "estimate", "codes")  # the first of these entries of a check is what it expects of new classes
MANY_CLASSES = ("cifar100", "tiny_imagenet", "cub200")


def best(cell: Record, whitened: str = "whitened") -> float | None:
    """Return the better novel mAP of raw and whitened float features."""
    values = [cell.get("novel_raw"), cell.get(f"novel_{whitened}")]
    return None if None in values else max(values)


def expected(cell: Record) -> float | None:
    """Return the novel mAP that the model expects, from the classes that it hid from itself."""
    check = cell.get("check") or {}
    return next((check[key] for key in ESTIMATES if check.get(key) is not None), None)


def ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def place(record: Record) -> tuple[str, ...]:
    return tuple(str(record["cell"][name]) for name in ("dataset", "kind", "split", "seed"))


def merged(records: list[Record]) -> dict[tuple[str, ...], Record]:
    """Return the parts of each cell as one record, by data set, kind, split, seed and settings; the last run counts."""
    others: dict[tuple[str, ...], Record] = {}
    cells: dict[tuple[str, ...], Record] = {}
    for record in records:
        if record["cell"]["part"] == "others":
            others[place(record)] = record
        else:
            key = (*place(record), " ".join(record["cell"]["set"]))
            cells[key] = cells.get(key, {}) | record
    measured = {key[:4] for key in cells}
    alone = {(*key, ""): record for key, record in others.items() if key not in measured}
    return {key: others.get(key[:4], {}) | cell for key, cell in {**cells, **alone}.items()}


def text(value: float | None, digits: int = 3) -> str:
    """Return a share as .543, which keeps lines short."""
    return "-" if value is None else f"{value:.{digits}f}".replace("0.", ".", 1 if abs(value) < 1 else 0)


def row(cell: Record) -> list[str]:
    """Return the entries of a line of a table, as in COLUMNS."""
    get = cell.get
    top, estimate, codes = best(cell), expected(cell), get("novel_codes")
    count = f"{get('found')} ({get('low')} to {get('high')}) of {get('n_novel')}" if "found" in cell else "-"
    accuracies = [(get(key) or {}).get("all") for key in ("acc", "acc_kmeans", "acc_ss_kmeans")]
    error = None if estimate is None or codes is None else estimate - codes
    values = [codes, *map(get, ("novel_z", "novel_raw", "novel_whitened", "novel_whitened_all"))]
    values += [ratio(codes, top), ratio(get("novel_z"), top)]
    values += [*map(get, ("seen_codes", "seen_whitened", "seen_whitened_all"))]
    after = [*map(get, ("seen_right", "seen_right_linear", "called_novel")), *accuracies]
    after += [*map(get, ("auroc", "auroc_softmax", "auroc_nearest")), estimate, error]
    where = [cell["cell"]["dataset"], cell["cell"]["split"]]
    return [*where, *map(text, values), count, *map(text, after), text(get("fit_seconds"), 0)]


def table(rows: list[list[str]]) -> str:
    """Return lines with aligned columns, the first two to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            entry.ljust(width) if i < 2 else entry.rjust(width) for i, (entry, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(entries, widths, strict=True)) for entries in rows)
    )


def at_least(a: float | None, b: float | None, factor: float = 1.0, slack: float = 0.0) -> Verdict:
    return None if a is None or b is None else a >= factor * b - slack


def above(a: float | None, *others: float | None) -> Verdict:
    return None if a is None or None in others else all(a > b for b in others if b is not None)


def count_is_right(cell: Record) -> Verdict:
    """Return whether the total number of classes is as near as the kind of pile asks for."""
    kind, total = cell["cell"]["kind"], cell["n_seen"] + cell["n_novel"]
    if "found" not in cell or kind == "two_labels":
        return None
    if kind == "no_novel":
        return bool(cell["found"] <= 1)
    allowed = max(1, 0.05 * total) if kind == "balanced" else max(2, 0.15 * total)
    return bool(abs(cell["found"] - cell["n_novel"]) <= allowed)


def covers(cell: Record) -> Verdict:
    return cell["low"] <= cell["n_novel"] <= cell["high"] if "found" in cell else None


def accuracy(cell: Record, name: str) -> float | None:
    return (cell.get(name) or {}).get("all")


def only(condition: bool, verdict: Verdict) -> Verdict:
    return verdict if condition else None


def targets() -> dict[str, Callable[[Record, Record], Verdict]]:
    """Return the targets by name; each takes a cell and the same cell of earlier code, which may be empty."""

    def balanced(cell: Record) -> bool:
        return bool(cell["cell"]["kind"] == "balanced")

    def many(cell: Record) -> bool:
        return balanced(cell) and cell["cell"]["dataset"] in MANY_CLASSES

    def is_cub(cell: Record) -> bool:
        return balanced(cell) and cell["cell"]["dataset"] == "cub200"

    return {
        "novel mAP, codes at least 0.97 of the better floats": lambda c, _: at_least(
            c.get("novel_codes"), best(c), 0.97
        ),
        "the same, whitened in all dimensions": lambda c, _: at_least(
            c.get("novel_codes"), best(c, "whitened_all"), 0.97
        ),
        "novel mAP, z at least the better floats": lambda c, _: at_least(c.get("novel_z"), best(c)),
        "z: the same, whitened in all dimensions": lambda c, _: at_least(c.get("novel_z"), best(c, "whitened_all")),
        "balanced, split 0: codes at most 0.005 below earlier ones": lambda c, b: only(
            balanced(c), at_least(c.get("novel_codes"), b.get("novel_codes"), slack=0.005)
        ),
        "balanced, many classes, split 0: codes 10 % above earlier ones": lambda c, b: only(
            many(c), at_least(c.get("novel_codes"), b.get("novel_codes"), 1.1)
        ),
        "balanced cub200: codes above 0.25": lambda c, _: only(is_cub(c), above(c.get("novel_codes"), 0.25)),
        "balanced: seen mAP, codes at least whitened floats": lambda c, _: only(
            balanced(c), at_least(c.get("seen_codes"), c.get("seen_whitened"))
        ),
        "balanced: the same, whitened in all dimensions": lambda c, _: only(
            balanced(c), at_least(c.get("seen_codes"), c.get("seen_whitened_all"))
        ),
        "balanced: codes 1.2 times whitened floats (aim)": lambda c, _: only(
            balanced(c), at_least(c.get("seen_codes"), c.get("seen_whitened"), 1.2)
        ),
        "seen items right, at least linear - 0.05": lambda c, _: at_least(
            c.get("seen_right"), c.get("seen_right_linear"), slack=0.05
        ),
        "balanced, split 0: as many novel items called novel as earlier": lambda c, b: at_least(
            c.get("called_novel"), b.get("called_novel")
        ),
        "balanced: 70 % of novel items called novel": lambda c, _: only(
            balanced(c), at_least(c.get("called_novel"), 0.7)
        ),
        "acc_joint above both k-means": lambda c, _: above(
            *(accuracy(c, name) for name in ("acc", "acc_kmeans", "acc_ss_kmeans"))
        ),
        "number of classes near enough": lambda c, _: count_is_right(c),
        "interval covers the number (80 % of cells)": lambda c, _: covers(c),
        "AUROC above softmax": lambda c, _: above(c.get("auroc"), c.get("auroc_softmax")),
        "AUROC above nearest labelled item": lambda c, _: above(c.get("auroc"), c.get("auroc_nearest")),
        "balanced, split 0: fit at most 2 times as long as earlier (CPU)": lambda c, b: at_least(
            b.get("fit_cpu_seconds"), c.get("fit_cpu_seconds"), 0.5
        ),
    }


def name_of(cell: Record) -> str:
    return " ".join(cell["cell"][key] for key in ("dataset", "kind", "split"))


def summary(cells: list[tuple[Record, Record]]) -> list[str]:
    """Return a line for each target, with the cells that miss it, and how well the models know themselves."""
    lines = []
    for title, is_met in targets().items():
        verdicts = [(cell, verdict) for cell, old in cells if (verdict := is_met(cell, old)) is not None]
        missed = ", ".join(name_of(cell) for cell, verdict in verdicts if not verdict)
        n_met = sum(verdict for _, verdict in verdicts)
        counted = f"{n_met:3} of {len(verdicts):2}" if verdicts else "  no cells"
        lines.append(f"{title:54} {counted}{'   not ' if missed else ''}{missed}")
    for name in ("codes", "z"):
        ratios = [r for cell, _ in cells if (r := ratio(cell.get(f"novel_{name}"), best(cell))) is not None]
        if ratios:
            lines.append(f"{f'mean of {name} / better floats (above 1)':54} {statistics.mean(ratios):.3f}")
    return lines + self_knowledge(cells)


def self_knowledge(cells: list[tuple[Record, Record]]) -> list[str]:
    """Return how well the novel mAP that models expect agrees with the true one, in all cells and by data set."""
    pairs: dict[str, list[tuple[float, float]]] = {"all": []}
    for cell, _ in cells:
        if (e := expected(cell)) is not None and (codes := cell.get("novel_codes")) is not None:
            for name in ("all", cell["cell"]["dataset"]):
                pairs.setdefault(name, []).append((e, codes))
    lines = []
    for name, known in pairs.items():
        if len(known) > 2:
            rank = spearmanr(*zip(*known, strict=True)).statistic
            error = statistics.mean(abs(e - codes) for e, codes in known)
            wanted = (" (at least 0.8)", " (at most 0.08)") if name == "all" else ("", "")
            where = f"expected and true novel mAP, {'all data' if name == 'all' else name}, {len(known)} cells"
            lines.append(f"{where:54}  Spearman {rank:.2f}{wanted[0]}, mean absolute error {error:.3f}{wanted[1]}")
    return lines


def markdown(records: list[Record], before: list[Record], split: str) -> None:
    """Print the table of one split and the targets over all reported splits, as docs/reproduce.md has them."""
    earlier = {key[:4]: cell for key, cell in merged(before).items() if key[4] == ""}
    cells = [
        (cell, earlier.get(key[:4], {}))
        for key, cell in sorted(merged(records).items())
        if not key[2].startswith("tune") and key[4] == "" and "bits" in cell["cell"]
    ]
    print("| " + " | ".join(MARKDOWN_COLUMNS) + " |\n|" + "---|" * len(MARKDOWN_COLUMNS))
    for cell, _ in cells:
        if cell["cell"]["split"] == split:
            entries = [f"{cell['cell']['dataset']}, {cell['cell']['kind']}", f"{cell['n_items']:,}", *row(cell)[2:-1]]
            print("| " + " | ".join("" if entry == "-" else entry for entry in entries) + " |")
    print("\n| target | cells that meet it | not met |\n|---|---|---|")
    for text in summary(cells):
        title, _, rest = text.partition("  ") if "  " in text else text.rpartition(" ")
        counted, _, missed = rest.strip().partition("   not ")
        print(f"| {title.strip()} | {counted.strip()} | {missed} |")


def line(record: Record) -> str:
    """Return one line about a record that was just measured."""
    cell = record["cell"]
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
    values = ", ".join(
        f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in numbers.items()
    )
    return f"{name_of(record)} {cell['part']}: {values}"


def report(records: list[Record], before: list[Record]) -> None:
    """Print a table for each kind of pile and a summary, for each setting, tuning splits apart.

    Records of others that are missing are taken from `before`, the results of earlier code.
    """
    earlier = {key[:4]: cell for key, cell in merged(before).items() if key[4] == ""}
    measured = {place(record) for record in records}
    borrowed = [r for r in before if r["cell"]["part"] == "others" and place(r) in measured]
    groups: dict[tuple[bool, str, str], list[tuple[Record, Record]]] = {}
    for key, cell in sorted(merged([*borrowed, *records]).items()):
        group = (key[2].startswith("tune"), key[3], key[4])
        groups.setdefault(group, []).append((cell, earlier.get(key[:4], {})))
    print(LEGEND)
    for (is_tuning, seed, settings), cells in sorted(groups.items()):
        print(f"\n=== {'tuning splits' if is_tuning else 'splits'}, seed {seed}, {settings or 'defaults'}")
        for kind in dict.fromkeys(cell["cell"]["kind"] for cell, _ in cells):
            print(f"\n{kind}")
            print(table([list(COLUMNS), *(row(cell) for cell, _ in cells if cell["cell"]["kind"] == kind)]))
        print()
        print("\n".join(summary(cells)))
