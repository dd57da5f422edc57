"""Defaults that are values of a paper or a release, and those of reconstructions that docs/comparisons.md reports.

SSDH and NINH have such a test among their own.
"""

import pytest

from combemb import methods

PUBLISHED = {
    "itq": {"iterations": 50},
    "opq": {"iterations": 50},  # as in FAISS
    "lopq": {"local_words": True},
    "sdh": {"class_ridge": 1.0, "fit_weight": 1e-5, "kernel_ridge": 1e-2, "iterations": 5, "sweeps": 10}
    | {"n_anchors": 1_000, "kernel_width": None},
    "cnnh": {"passes": 10, "class_weight": 0.0},  # CNNH, not CNNH+
    "gpq": {"sub_vector": 12, "sharpness": 20.0, "class_scale": 4.0, "class_weight": 0.1, "entropy_weight": 0.1}
    | {"learning_rate": 2e-4},
}
OURS = {
    "ssgah": {"margin": 0.25, "adversary_margin": 0.125, "synthetic_weight": 0.5, "adversary_weight": 0.1}
    | {"quantisation_weight": 0.01, "alone_share": 0.2, "learning_rate": 0.01, "player_rate": 2e-4, "n_noise": 16},
    "ssah": {"adversary": True, "consistent_weight": 1.0, "quantisation_weight": 0.1, "excess": 1.0}
    | {"occlusion": 0.3, "angle": 30.0, "pace_share": 0.7, "learning_rate": 0.01, "player_rate": 1e-4},
}
BINARY = ("itq", "sdh", "cnnh", "ninh", "ssdh", "ssgah", "ssah")


@pytest.mark.parametrize(("name", "values"), (PUBLISHED | OURS).items())
def test_defaults_have_the_stated_values(name, values):
    method = methods.get(name)()
    assert {setting: getattr(method, setting) for setting in values} == values


@pytest.mark.parametrize("name", BINARY)
def test_binary_methods_compare_signs_by_default(name):
    assert methods.get(name)().asymmetric is False
