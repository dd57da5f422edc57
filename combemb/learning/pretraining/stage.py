"""What a first stage is, and its weights: trained once for the same data, backbone, recipe and seed."""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Protocol

from combemb.backbones.cached import PRETRAINING, WEIGHTS
from combemb.backbones.feature_cache import cache_root
from combemb.data.given import Given
from combemb.data.image_items import readable
from combemb.learning.input import ImageInput
from combemb.learning.run_folder import CURVES, LOG
from combemb.system.errors import Note
from combemb.system.files import write_tensors
from combemb.system.team import ALONE, Team, sole_writer

RUN = "training"  # in the folder of a stage
STAGE_FORMAT = 1  # increased when the same recipe gives other weights


class FirstStage(Protocol):
    """Training of a backbone on images, such as SimCLR on all of them or a classifier on the labelled ones."""

    @property
    def uses_labels(self) -> bool:
        """Whether its result depends on the labels."""

    @property
    def recipe(self) -> dict[str, Any]:
        """The name of the stage and everything that determines its result, as JSON."""

    def train(self, images: ImageInput, given: Given, folder: Path, progress: bool | None) -> None:
        """Train `images.backbone` in place on images that can all be read, with settings of the stage's own.

        Under torchrun all processes call it at once.

        `folder` is for what an interrupted training needs to continue; a run folder in it is called RUN. Of all that,
        only the log and the curves of this run stay after the training.
        """


def weights_after(
    stage: FirstStage, images: ImageInput, given: Given, progress: bool | None, team: Team = ALONE
) -> Path:
    """Return the file of a backbone's weights after a first stage: from the cache, or trained and stored there.

    All methods that use the same stage share the file; other processes wait until it is written.

    Parameters
    ----------
    stage : FirstStage
    images : ImageInput
        The reader of images, which has the backbone.
    given : Given
        The images to train on, with labels.
    progress : bool, optional
        None shows it on a terminal only.
    team : Team, optional
        Processes that all call this and train together.

    Returns
    -------
    Path
    """
    assert given.images is not None
    assert given.ids is not None
    images.decide_size(given.images)
    holds = {
        "format": STAGE_FORMAT,
        "images": given.images.key,
        "labels": given.labels.digest if stage.uses_labels else None,
        "backbone": [images.name, images.width, images.start_digest],
        "size": images.size,
        "seed": images.seed,
        "recipe": stage.recipe,
    }
    digest = hashlib.sha256(json.dumps(holds, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_root(None) / PRETRAINING / f"{stage.recipe['name']}-{digest}"
    path = folder / WEIGHTS
    with sole_writer(folder, team, lambda: None) as is_writer:
        is_trained = all(team.exchange(path.exists()))
        if not is_trained:
            rows, broken = readable(given.images, progress, team)
            if broken and team.rank == 0:
                row, reason = next(iter(broken.items()))
                what = f"{len(broken)} images that cannot be read, such as {given.ids[row]}: {reason}"
                warnings.warn(f"left out of the first stage: {what}", Note, stacklevel=2)
            stage.train(images, given.take(rows) if broken else given, folder, progress)
        with team.bound():  # all go on when the weights are written
            if is_writer:
                if not is_trained:
                    write_tensors(path, images.backbone.state_dict(), {"holds": json.dumps(holds)})
                _tidy(folder, path)
                os.utime(folder)  # the time of this use, by which the cache is pruned
    return path


def _tidy(folder: Path, weights: Path) -> None:
    """Remove what only an interrupted training needs, such as a second copy of the weights."""
    for name in (LOG, CURVES):
        if (folder / RUN / name).exists():
            (folder / RUN / name).replace(folder / name)
    for path in folder.glob("[!.]*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in {weights.name, LOG, CURVES}:
            path.unlink()
