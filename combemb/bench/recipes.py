"""The settings that each method has in all tables, whatever the data: the best of its trials.

The trials are random searches on CIFAR-10 (600 images per class, 96 px), on split tune-0, which is never reported:
20 for each method, the first with its defaults. Those of methods with codes have 24 bits and are judged by the mean of
novel and seen mAP (benchmarks/results/methods.jsonl). Those of methods that discover classes are judged by `acc_joint`
(all) of unlabelled training images: the mean of that of k-means on `embed` and that of the method's own head, of
k-means alone if it has no head (benchmarks/results/discovery_methods.jsonl). A method that is not listed has its
defaults.

CombEmb has its defaults, which were chosen on the tuning splits of four data sets (docs/decisions/piles.md). The best
of its trials are better on CIFAR-10: 0.678 against 0.652 with codes, but with K = 2 for any number of classes, and
0.812 against 0.811 of the items in their class.
"""

from collections.abc import Mapping
from typing import Any

RETRIEVAL: Mapping[str, Mapping[str, Any]] = {
    "cnnh": {"class_weight": 1.0, "hidden": 2048, "learning_rate": 0.000552, "passes": 4},
    "gpq": {
        "class_weight": 0.0363,
        "entropy_weight": 0.262,
        "learning_rate": 0.00149,
        "sharpness": 20.9,
        "sub_vector": 12,
    },
    "itq": {"iterations": 64, "unit_length": True},
    "lopq": {"local_words": True, "n_components": 44, "n_words": 4, "unit_length": True},
    "ninh": {"epsilon": 0.1, "learning_rate": 0.000821, "margin": 3.6, "slice_size": 50},
    "opq": {"n_components": 200, "n_words": 4, "unit_length": True},
    "sdh": {"fit_weight": 0.00313, "kernel_ridge": 0.804, "kernel_width": 0.544, "n_anchors": 2000},
    "ssah": {
        "angle": 30.0,
        "consistent_weight": 0.368,
        "learning_rate": 0.00998,
        "occlusion": 0.1,
        "quantisation_weight": 0.115,
    },
    "ssdh": {
        "graph_weight": 0.0544,
        "learning_rate": 0.0015,
        "margin": 2.21,
        "pair_margin": 2.66,
        "pseudo_weight": 0.0582,
    },
    "ssgah": {
        "adversary_weight": 0.361,
        "learning_rate": 0.00902,
        "margin": 0.216,
        "quantisation_weight": 0.0094,
        "synthetic_weight": 0.366,
    },
}

DISCOVERY: Mapping[str, Mapping[str, Any]] = {  # the best trial of ORCA has its defaults
    "dtc": {
        "consistency_weight": 55.9,
        "learning_rate": 0.00988,
        "refresh_every": 1,
        "variant": "te",
        "width": 256,
    },
    "dualrank": {
        "consistency_weight": 1.05,
        "learning_rate": 0.000189,
        "mutual_weight": 0.296,
        "n_ranked": 1,
        "n_words": 2048,
    },
    "gcd": {
        "label_temperature": 0.292,
        "label_weight": 0.13,
        "learning_rate": 0.00298,
        "temperature": 0.921,
        "width": 1024,
    },
    "ncl": {
        "consistency_weight": 2.54,
        "label_weight": 0.407,
        "learning_rate": 0.00107,
        "positive_threshold": 0.6,
        "temperature": 0.0891,
    },
    "rankstats": {
        "consistency_weight": 2.8,
        "learning_rate": 0.00158,
        "n_ranked": 1,
        "start_steps": 1000,
        "width": 1024,
    },
}

TUNED = {"retrieval": RETRIEVAL, "discovery": DISCOVERY}
