"""Promises about images: arrays, folders, run folders, broken images, labels."""

from typing import Any

import numpy as np
import torch

from combemb.learning.codes import CodeMethod
from combemb.learning.deep import DeepMethod
from combemb.testing.promise import (
    expect,
    expect_refused_fit,
    expect_same,
    expect_same_discovery,
    expect_same_fits,
    only_for,
    refused,
    written,
)
from combemb.testing.trial import SEEN, Trial


def images_embedded(trial: Trial) -> None:
    """Images become finite embeddings and codes, the same from a folder, an array and after `load`."""
    pictures, model = trial.pictures, trial.image_model()
    expect(model.classes_.tolist() == list(SEEN), f"classes_ is {model.classes_}, the folders are {SEEN}")
    of_array = trial.small_for_images().fit(pictures.pixels, pictures.labels)
    N, z = len(pictures.pixels), model.embed(trial.photos)
    expect_same(of_array.embed(pictures.pixels), z, "embeddings of fits on an array and a folder")
    expect(len(z) == N and z.dtype == torch.float32, f"embeddings of {N} images are {z.dtype} {tuple(z.shape)}")
    expect(z.isfinite().all(), "embeddings are not finite")
    expect(len(z.unique(dim=0)) > N // 2, "most images have the same embedding")
    expect_same(model.embed(pictures.pixels), z, "embeddings of the same images from an array and from a folder")
    # Cached features are stored in float16, those of a few images are not.
    torch.testing.assert_close(model.embed(pictures.pixels[:3]), z[:3], rtol=1e-2, atol=1e-2)
    if isinstance(model, CodeMethod):
        codes = model.encode(trial.photos)
        expect(model.codebook.bits == model.bits, f"the codebook has {model.codebook.bits} bits, not {model.bits}")
        expect(codes.shape == (N, len(model.codebook.sizes)), f"codes have shape {tuple(codes.shape)}")
        expect_same(codes, model.codebook.encode(z), "codes of images and of their embeddings")
    for place in (trial.image_run[1], trial.saved(model)):
        loaded = trial.cls.load(place)
        expect(loaded.get_params() == model.get_params(), "the settings differ after load")
        expect_same_fits(loaded, model, trial.photos, "the fitted and the loaded method")
        expect("broken.csv" not in written(place), "a run folder lists broken images, but there are none")


def unusable_images(trial: Trial) -> None:
    """Arrays that are not images, or a wrong number of labels, are refused before anything is written."""
    x, labels = trial.pictures.pixels, trial.pictures.labels
    for given, word in ((x.astype(float), "uint8"), (x.transpose(0, 3, 1, 2), "H, W, 3"), (x[:-1], str(len(x)))):
        what = f"images {given.dtype} {given.shape}"
        expect_refused_fit(trial, trial.small_for_images(), given, labels, what, word)


def broken_images(trial: Trial) -> None:
    """Labels stay with their images if some are broken; `read` names these, calls with a row per item refuse them."""
    model, pictures = trial.image_model(), trial.pictures
    whole = [row for row, name in enumerate(pictures.ids) if name not in pictures.broken]
    shuffled = np.random.default_rng(1).permutation(pictures.labels)
    found = model.discover(trial.damaged, shuffled, 2)
    data = model.read(trial.damaged)
    again = model.discover(data, shuffled[whole], 2)
    expected = shuffled[whole]
    known = np.array([label is not None for label in expected])
    expect(len(found) == len(whole), f"{len(found)} items are discovered, {len(whole)} can be read")
    expect_same(found.is_labelled, known, "labelled images")
    expect_same(found.clusters[known], expected[known], "classes of labelled images")
    expect(data.labels.texts() == pictures.labels[whole].tolist(), "labels stored with images are shifted")
    expect(set(data.broken) == set(pictures.broken), f"broken images are {list(data.broken)}, not {pictures.broken}")
    expect_same_discovery(again, found, "discoveries of a folder and of `read`")
    shapes = {model.predict(data).shape, model.novelty(data).shape}
    expect(shapes == {(len(whole),)}, f"predictions of {len(whole)} images have shapes {shapes}")
    for use in (model.embed, model.predict, model.novelty):
        with refused(f"{use.__name__} of broken images", "2 images cannot be read, such as", "`read`"):
            use(trial.damaged)
    N = len(pictures.ids)
    for n in (N - 2, N - 1, N + 1):
        with refused(f"discover with {n} labels of {N} images", f"{n} labels for {N}"):
            model.discover(trial.damaged, [*pictures.labels, None][:n], 2)


def image_labels(trial: Trial) -> None:
    """Labels stored with images are used, except those of a test split; several labels per image are refused."""
    model, pictures, path = trial.image_model(), trial.pictures, trial.new_path(".csv")
    found = model.discover(trial.damaged, n_novel=2)
    expect_same_discovery(model.discover(trial.damaged, pictures.labels, 2), found, "discoveries with labels given")
    whole = model.discover(trial.photos, n_novel=2)
    expect(whole.names.tolist() == [*SEEN, "novel-1", "novel-2"], f"the classes are {whole.names}")
    expect_same_discovery(model.discover(pictures.pixels, pictures.labels, 2), whole, "discoveries of an array")
    expect_same(model.predict(pictures.pixels[:5]), model.predict(trial.photos)[:5], "predictions for an array")
    is_test = np.arange(len(pictures.ids)) % 3 == 0
    split = np.where(is_test, "test", "train")
    shown = np.where(is_test, pictures.targets, pictures.labels)
    data = model.read(pictures.write_manifest(path, trial.photos, shown, split=split))
    hidden = [None if test else label for test, label in zip(is_test, pictures.labels, strict=True)]
    expect(data.labels.texts() == hidden, "`read` shows labels of a test split")
    for given in (path, data):
        names = model.discover(given, n_novel=2).names[:-2].tolist()
        expect(names == list(SEEN), f"the seen classes are {names}")
    several = [label and f"{label}|{'red' if i % 2 else 'round'}" for i, label in enumerate(pictures.labels)]
    with refused("discover with several labels per image", "one label per item"):
        model.discover(pictures.write_manifest(path, trial.photos, several))


@only_for(DeepMethod)
def last_stage_trained(trial: Trial) -> None:
    """With `finetune="last"` the last stage of the backbone is trained, stored and restored."""
    folder = trial.new_path()
    model: Any = trial.small_for_images(finetune="last", learning_rate=0.1).fit(trial.photos, folder=folder)
    before = model.image_input_.backbone.stages["layer4"].state_dict()
    now = model.tower_.backbone.stage.state_dict()
    expect(any(not torch.equal(now[name], before[name]) for name in now), "none of its parameters has changed")
    expect_same_fits(trial.cls.load(folder), model, trial.photos, "the fitted and the loaded method")
