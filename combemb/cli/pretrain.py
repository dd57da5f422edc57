"""`combemb pretrain`: train a backbone on images before a method uses it."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combemb.cli.console import notes_shown, running, say
from combemb.cli.options import Data, LabelFile, Quiet, Seed, check_writable, parse_settings, read_label_file

if TYPE_CHECKING:
    from combemb.learning.input import ImageInput
    from combemb.learning.pretraining.training import BackboneTraining

BACKBONE = "resnet18"  # unlike the default of a fit, it has no weights of its own
NEXT_METHOD = "orca"


def pretrain(
    data: Data,
    method: Annotated[str, typer.Option(help="`simclr`, on all images, or `supervised`, on the labelled ones.")],
    labels: LabelFile = None,
    seed: Seed = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting, such as backbone, backbone_width, image_size, epochs or batch_size; `combemb settings "
            "simclr` lists them. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also copy the weights to this .safetensors.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train a backbone on images, by default a `resnet18` from random weights, as the first stage of a method.

    The weights are stored in the cache by data, backbone and recipe. Stopped at any moment, the same command continues
    from the last checkpoint; called again, it finds the weights. So does a method whose first stage has the same
    recipe; any other method takes the file as `backbone_weights`. SimCLR uses labels only to check the features.

    Example: `combemb pretrain photos/ --method simclr --set backbone_width=32 --set epochs=100`
    """
    from combemb.data.given import read_given
    from combemb.learning.pretraining import weights_after
    from combemb.learning.pretraining.training import TrainedStage
    from combemb.system.errors import require

    with running(quiet, "stopped; the same command continues from the last checkpoint"):
        require(os.environ.get("WORLD_SIZE", "1") == "1", "combemb pretrain works in one process, without torchrun")
        training = _chosen_training(method, seed, settings)
        if out is not None:
            check_writable(out, ".safetensors")
        with notes_shown():
            given = read_given(data, read_label_file(labels)).training_part()
            if given.images is None:
                raise ValueError(
                    f"{data} holds embeddings, but a backbone is trained on images: give a folder, a manifest or .npy "
                    "(N, H, W, 3) of uint8; `combemb fit` learns from embeddings without a backbone"
                )
            training.check_labels(given.labels)
            images = training.image_input()
            weights = weights_after(TrainedStage(training), images, given, not quiet)
        if out is not None:
            _copy(weights, out)
        for line in _outcome(weights, out):
            say(line)
        say(f"next: {_next(data, labels, images, out or weights)}")


def _chosen_training(name: str, seed: int | None, settings: list[str] | None) -> BackboneTraining:
    """Return the first stage that the options describe, with valid settings."""
    from combemb.learning.head import STAGES
    from combemb.system.errors import require
    from combemb.system.machine import is_available

    require(name in STAGES, f"there is no first stage {name!r}; choose one of {', '.join(STAGES)}")
    own = [] if seed is None else [f"seed={seed}"]
    chosen: dict[str, Any] = {"backbone": BACKBONE, **parse_settings(STAGES[name], [*(settings or []), *own])}
    training = STAGES[name](**chosen)
    training.check_settings()
    require(is_available(training.device), f"device={training.device!r} is not available on this machine; use auto")
    return training


def _outcome(weights: Path, out: Path | None) -> list[str]:
    """Return where the weights are and how the training went."""
    from combemb.learning.run_folder import CURVES, RunFolder

    copied = "" if out is None else f", copied to {out}"
    lines, log = [f"weights of the backbone: {weights}{copied}"], RunFolder(weights.parent).log()
    if log:
        checks = [record["neighbours_right"] for record in log if record.get("neighbours_right") is not None]
        check = (
            f"the nearest neighbours put {checks[-1]:.1%} of the labelled images into their class"
            if checks
            else "features not checked, since that takes one label per image and two classes"
        )
        lines.append(f"loss after {len(log)} epochs: {log[-1]['loss']:.4f}; {check}")
    curves = weights.with_name(CURVES)
    return [*lines, *([f"curves of the training: {curves}"] if curves.exists() else [])]


def _next(data: Path, labels: Path | None, images: ImageInput, weights: Path) -> str:
    """Return a command that uses the weights; RUN is to be replaced."""
    of_file = [] if labels is None else ["--labels", str(labels)]
    settings = {
        "backbone": images.name,
        "backbone_width": images.width,
        "image_size": images.size,
        "backbone_weights": weights,
        "finetune": "last",
        "backbone_rate": 1,  # as after a first stage of the method's own; weights of a file count as pretrained
    }
    chosen = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return shlex.join(["combemb", "fit", str(data), *of_file, "--out", "RUN", "--method", NEXT_METHOD, *chosen])


def _copy(weights: Path, out: Path) -> None:
    from combemb.system.files import write_atomically

    write_atomically(out, lambda temporary: shutil.copyfile(weights, temporary), weights.stat().st_size)
