"""Colours of classes: muted for seen ones, strong for novel ones."""

import colorsys

import numpy as np

from combemb.discovery.clusters import Clusters

HUE_STEP = 0.618034  # golden section of the colour circle: neighbouring clusters differ


def colours(found: Clusters) -> np.ndarray:
    """Return a colour for each cluster, (K,) as #rrggbb: muted for seen classes, strong for novel ones."""
    muted = [colour(i, is_novel=False) for i in range(found.n_seen)]
    return np.array(muted + [colour(i, is_novel=True) for i in range(found.n_novel)])


def colour(i: int, *, is_novel: bool) -> str:
    """Return the colour of the i-th seen or novel class, as #rrggbb."""
    muted, strong = (i * HUE_STEP % 1, 0.68, 0.25), ((0.02 + i * HUE_STEP) % 1, (0.42, 0.55)[i % 2], 0.85)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(*(strong if is_novel else muted)))
