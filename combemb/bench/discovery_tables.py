"""The discovery tables of the paper, with its numbers, and its two figures."""

from combemb.bench.tables import FEATURES, Column, Row, Table, fields

PARTS = ("seen", "novel", "all")
COLUMNS = tuple(
    Column(part, f"test_{metric}_{part}", group=title)
    for metric, title in (("acc_joint", "ACC"), ("nmi", "NMI"), ("ari", "ARI"))
    for part in PARTS
)
EXTRAS = (
    *(Column(part, f"test_acc_paper_{part}", group="ACC, seen and novel matched apart") for part in PARTS[:2]),
    *(Column(part, f"head_test_acc_joint_{part}", group="ACC of the method's own head") for part in PARTS),
    *(Column(part, f"train_acc_joint_{part}", group="ACC of unlabelled training images") for part in PARTS),
    *(Column(part, f"labels_acc_joint_{part}", group="the same, k-means with labels") for part in PARTS),
    Column("seconds of a fit", "fit_seconds"),
)
METHODS = {
    "DTC": "dtc",
    "RankStats": "rankstats",
    "NCL": "ncl",
    "DualRank": "dualrank",
    "ORCA": "orca",
    "GCD": "gcd",
    "CombEmb (ours)": "combemb",
}
Percent = tuple[float, float, float]  # seen, novel, all
PUBLISHED: dict[str, dict[str, tuple[Percent, Percent, Percent]]] = {  # ACC, NMI and ARI
    "cifar10": {
        "DTC": ((77.44, 72.00, 75.81), (62.91, 65.82, 63.25), (61.98, 65.33, 56.89)),
        "RankStats": ((82.22, 88.23, 84.01), (72.03, 75.17, 73.65), (66.68, 79.54, 67.08)),
        "NCL": ((78.47, 85.23, 80.50), (69.09, 74.97, 66.18), (68.06, 78.35, 56.56)),
        "DualRank": ((83.89, 86.91, 84.79), (72.97, 74.37, 74.98), (67.61, 78.63, 68.02)),
        "ORCA": ((87.70, 92.83, 89.24), (74.34, 81.81, 78.21), (76.46, 88.13, 78.12)),
        "GCD": ((88.82, 88.23, 88.63), (76.28, 75.53, 77.99), (77.52, 81.19, 76.75)),
        "CombEmb (ours)": ((89.02, 92.96, 89.98), (77.97, 80.43, 79.83), (80.26, 85.63, 79.19)),
    },
    "cifar100": {
        "DTC": ((42.67, 27.44, 38.86), (54.71, 44.77, 50.04), (20.27, 23.84, 15.24)),
        "RankStats": ((47.33, 34.79, 42.49), (62.80, 50.56, 58.29), (30.93, 21.05, 22.63)),
        "NCL": ((53.13, 35.80, 48.80), (63.23, 54.24, 58.56), (38.93, 27.68, 30.06)),
        "DualRank": ((46.08, 36.47, 42.54), (61.59, 52.20, 57.57), (29.83, 24.09, 23.00)),
        "ORCA": ((64.85, 44.83, 56.77), (66.18, 58.89, 62.64), (46.22, 38.68, 38.06)),
        "GCD": ((66.04, 38.53, 55.59), (69.61, 57.67, 64.56), (49.99, 30.38, 38.85)),
        "CombEmb (ours)": ((69.19, 51.41, 62.11), (70.77, 63.81, 67.71), (52.22, 43.37, 43.37)),
    },
    "tiny_imagenet": {
        "DTC": ((16.76, 14.47, 16.19), (34.41, 32.70, 32.19), (7.23, 7.72, 5.72)),
        "RankStats": ((31.49, 19.75, 26.87), (54.76, 47.52, 51.14), (16.16, 9.86, 11.87)),
        "NCL": ((35.27, 18.90, 31.18), (55.08, 47.16, 51.10), (17.89, 10.01, 12.85)),
        "DualRank": ((29.76, 18.93, 26.70), (53.86, 48.03, 50.53), (14.88, 9.69, 11.08)),
        "ORCA": ((47.46, 22.55, 38.58), (60.26, 49.08, 55.23), (27.62, 13.37, 19.72)),
        "GCD": ((45.77, 20.59, 38.03), (61.58, 49.74, 56.54), (27.21, 11.45, 19.32)),
        "CombEmb (ours)": ((53.76, 27.41, 43.73), (63.91, 54.07, 59.01), (33.43, 17.70, 23.40)),
    },
}
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet"}
BITS = 48  # of methods with codes
NOTE = (
    "Clusters by k-means on the embeddings of test images, as in the paper, with the number of classes given. ACC has "
    "one matching for all items; seen and novel items are a part of it each. The paper seems to mix definitions; the "
    "other common one is in the second table."
)


def row(title: str, published: tuple[Percent, Percent, Percent]) -> Row:
    """Return the row of a method."""
    numbers = tuple(round(value / 100, 4) for metric in published for value in metric)
    method = METHODS[title]
    return Row(title, method, fields(bits=BITS) if method == "combemb" else (), numbers, method == "combemb")


def source(dataset: str) -> str:
    """Return where the numbers, and the maps if there are any, stand in the paper."""
    return "Table 8, Figure 2" if f"discovery-{dataset}" in MAPS else "Table 8"


MAPS = {  # the t-SNE maps of Figure 2: a table and the titles of its rows
    "discovery-cifar10": ("RankStats", "NCL", "ORCA", "GCD", "CombEmb (ours)"),
}

DISCOVERY_TABLES = tuple(
    Table(
        *(f"discovery-{dataset}", f"Discovery on {TITLES[dataset]}", source(dataset), dataset, "discovery", COLUMNS),
        tuple(row(title, numbers) for title, numbers in published.items()),
        EXTRAS,
        splits=("0",),
        seeds=(0, 1, 2),
        baselines=(Row("k-means on the features", FEATURES),),
        note=NOTE,
    )
    for dataset, published in PUBLISHED.items()
)

REGIONS = Table(
    *("regions", "Decision regions of one, two and three binary meta-class sets", "Figure 1", "plane", "regions"),
    tuple(Column(f"{n} set{'s' if n > 1 else ''}", "n_regions", n) for n in (1, 2, 3)),
    (
        Row(
            "CombEmb (ours)",
            "combemb",
            fields(n_meta_classes=2, similarity_weight=0.0, consistency_weight=0.0),
            is_ours=True,
        ),
    ),
    splits=("0",),
    note="The number of regions of the plane. Each meta-classifier is fitted by `CombEmb` with Eq. 4 alone.",
)
