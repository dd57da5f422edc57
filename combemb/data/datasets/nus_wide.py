"""NUS-WIDE: photographs with several of 81 concepts each, of which the most frequent are the classes."""

from pathlib import Path

import numpy as np

from combemb.data.datasets.dataset import Dataset, divided, first_with, positions, read_fields
from combemb.data.images import Images
from combemb.system.errors import reading, require

# One line of Labels_lake_Train.txt, as published, is this number; AllLabels/ is intact and therefore preferred.
PUBLISHED_SLIP = -1130179
EXPECTED = (
    "NUS-WIDE: expected Concepts81.txt (or ConceptsList/Concepts81.txt), Flickr/, and either ImageList/Imagelist.txt "
    "and Groundtruth/AllLabels/, or ImageList/{Train,Test}Imagelist.txt and Groundtruth/TrainTestLabels/"
)


def nus_wide(path: Path, n_concepts: int = 21, test_per_concept: int | None = None, seed: int = 0) -> Dataset:
    """Read the images that have at least one of the `n_concepts` most frequent concepts.

    Concepts are counted over all images of the lists, ties are ordered by name. Targets are (N, n_concepts) of 0/1 in
    the order of Concepts81.txt. Test images are those of TestImagelist.txt. Without that list, or if `test_per_concept`
    is given, they are drawn as in papers on hashing: so many (default 100) of each concept, none twice.
    """
    concepts_file = first_with("Concepts81.txt", path, path / "ConceptsList")
    if concepts_file is None or not (path / "Flickr").is_dir():
        raise ValueError(f"{path} is not {EXPECTED}")
    concepts = [concept for (concept,) in read_fields(concepts_file / "Concepts81.txt", 1, "\t")]
    n = len(concepts)
    require(n >= n_concepts, f"n_concepts={n_concepts}, but {concepts_file} lists {n} concepts; use fewer")
    names, table, is_test = _labelled(path, concepts)

    by_frequency = np.lexsort((np.array(concepts), -table.sum(axis=0, dtype=np.int64)))
    chosen = np.sort(by_frequency[:n_concepts])
    kept = np.flatnonzero(table[:, chosen].any(axis=1))
    targets = table[np.ix_(kept, chosen)]
    if is_test is None or test_per_concept is not None:
        is_test = _drawn(targets, 100 if test_per_concept is None else test_per_concept, seed)
    else:
        is_test = is_test[kept]
    ids = np.array(names)[kept]
    images = Images(files=[path / "Flickr" / name for name in ids.tolist()], ids=ids)
    return divided("nus_wide", images, targets, is_test, np.array(concepts)[chosen])


def _labelled(path: Path, concepts: list[str]) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Return names, table (N, C), and which are test images, None if the lists do not say."""
    lists, whole, parts = path / "ImageList", path / "Groundtruth/AllLabels", path / "Groundtruth/TrainTestLabels"
    in_train, in_test = lists / "TrainImagelist.txt", lists / "TestImagelist.txt"
    if whole.is_dir() and (lists / "Imagelist.txt").exists():
        names = _names(lists / "Imagelist.txt")
        table = _table([whole / f"Labels_{concept}.txt" for concept in concepts], len(names))
        if not in_train.exists() or not in_test.exists():
            return names, table, None
        train, test = _names(in_train), _names(in_test)
        table = table[positions(train + test, names, lists)]
    else:
        require(parts.is_dir() and in_train.exists(), f"{path} is not {EXPECTED}")
        train, test = _names(in_train), _names(in_test)
        files = [[parts / f"Labels_{concept}_{part}.txt" for concept in concepts] for part in ("Train", "Test")]
        table = np.concatenate([_table(files[0], len(train)), _table(files[1], len(test))])
    return train + test, table, np.arange(len(table)) >= len(train)


def _names(path: Path) -> list[str]:
    """Read paths below Flickr/, which are published with backslashes."""
    return [name.replace("\\", "/") for (name,) in read_fields(path, 1, "\t")]


def _table(files: list[Path], n_images: int) -> np.ndarray:
    """Read (N, C) uint8, a column from each file."""
    table = np.zeros((n_images, len(files)), dtype=np.uint8)
    for column, file in enumerate(files):
        with reading(file, OSError, ValueError):
            values = np.array(file.read_text().split(), dtype=np.int64)
        values[values == PUBLISHED_SLIP] = 0
        fits = values.shape == (n_images,) and bool(np.isin(values, (0, 1)).all())
        require(fits, f"{file} holds {len(values)} numbers; expected {n_images} of 0 or 1, one for each image")
        table[:, column] = values
    return table


def _drawn(targets: np.ndarray, per_concept: int, seed: int) -> np.ndarray:
    """Draw so many images of each concept, none twice: (N,) bool."""
    rng, is_drawn = np.random.default_rng(seed), np.zeros(len(targets), dtype=bool)
    for column in targets.T:
        rows = np.flatnonzero((column > 0) & ~is_drawn)
        n = len(rows)
        require(n >= per_concept, f"a concept has {n} images left to draw {per_concept} from; set test_per_concept")
        is_drawn[rng.permutation(rows)[:per_concept]] = True
    return is_drawn
