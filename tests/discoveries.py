"""Items of seen and novel classes, far from each other, as `discover` finds them."""

import warnings
from collections.abc import Sequence

import numpy as np

from combemb.discovery.discovering import Unsure, discover
from combemb.discovery.result import Discovery


def found_in(seen: Sequence[object], n_novel: int, per_class: int = 6) -> tuple[np.ndarray, Discovery]:
    """Embeddings (N, 8) and what is in them: of each seen class every second item is labelled; novel ones come last.

    Novel class i has i items less than the first, but at least two.
    """
    rng = np.random.default_rng(0)
    sizes = [per_class] * len(seen) + [max(2, per_class - i) for i in range(n_novel)]
    targets = np.repeat(np.arange(len(sizes)), sizes)
    z = 20 * rng.normal(size=(len(sizes), 8))[targets] + 0.5 * rng.normal(size=(len(targets), 8))
    labels = np.array([*seen, *[None] * n_novel], dtype=object)[targets]
    labels[1::2] = None
    given = labels if not all(isinstance(name, int) for name in seen) else [-1 if x is None else x for x in labels]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unsure)  # one class, or two labels of each, are enough here
        return z.astype(np.float32), discover(z, given, n_novel, progress=False)
