"""Arguments and options that several verbs share, and how their values are read and checked."""

import ast
import dataclasses
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

DATA = typer.Argument(
    metavar="DATA",
    help="Images: a folder with one sub-folder per class, or a manifest (.csv or .parquet with path, label). "
    "Or embeddings: .npy, .npz (x, labels, ids) or .parquet (embedding, label, id).",
)
Data = Annotated[Path, DATA]
DataOrUrl = Annotated[str, DATA]  # a Path would make one slash of the two in s3://
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a fitted run.")]
IMAGES = typer.Option(help="Images to use instead of the fitted data: a folder, a manifest, or .npy (N, H, W, 3).")
EMBEDDINGS = typer.Option(help="Embeddings to use instead: .npy, .npz or .parquet.")
Images = Annotated[Path | None, IMAGES]
Embeddings = Annotated[Path | None, EMBEDDINGS]
LabelFile = Annotated[
    Path | None,
    typer.Option(
        help="Labels, if not those in the data: .csv or .parquet with label and id or path; .npy; or text, one per "
        "line. Empty or -1 means unlabelled."
    ),
]
RunToWrite = Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder to write the run to.")]
MethodName = Annotated[str, typer.Option(help="One that `combemb settings` lists, or package.module:Class.")]
Bits = Annotated[int | None, typer.Option(help="Length of a code; usually 12 to 72.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all random numbers.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Another setting; `combemb settings` lists them. Repeatable."),
]
Published = Annotated[
    bool,
    typer.Option(
        "--published",
        help="Take the settings that the method was published with instead of ours; --set still changes single ones. "
        "Discovery methods then train on pixels for hundreds of epochs, which takes a GPU.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="local|ray",
        help="Work in blocks that are kept, in this process or on a Ray cluster; paths may be URLs of fsspec.",
    ),
]
BlockItems = Annotated[
    int | None,
    typer.Option(min=1, help="Items in a block, with --engine; by default 2,048 images or 32,768 embeddings."),
]
Shards = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Folder of the sharded index, with --engine; by default in the run folder."),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to use, such as 10.0.0.1:6379 or auto; by default RAY_ADDRESS, or this machine alone."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and unreadable images.")]


def chosen_data(images: Path | None, embeddings: Path | None) -> Path | None:
    """Return the path of --images or --embeddings, if there is one; ValueError if it holds the other kind of data."""
    from combemb.data import is_images

    if images is not None and embeddings is not None:
        raise ValueError("--images and --embeddings are mutually exclusive; choose one")
    path = images if embeddings is None else embeddings
    if path is not None and not path.exists():
        raise ValueError(f"cannot read {path}: there is no such file or folder")
    if images is not None and not is_images(images):
        raise ValueError(f"--images {path}: this is not image data; if it holds embeddings, use --embeddings")
    if embeddings is not None and is_images(embeddings):
        raise ValueError(f"--embeddings {path}: this is image data; use --images")
    return path


def check_writable(path: Path, *suffixes: str) -> None:
    """Raise ValueError if a file cannot be written there, before anything is computed."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"cannot write {path}: unknown suffix {path.suffix!r}; use {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}; create it first")


def chosen_method(
    name: str, bits: int | None, seed: int | None, settings: list[str] | None, published: bool = False
) -> Any:
    """Return the method that these options describe."""
    from combemb import methods

    cls: Any = methods.get(name)
    own = [f"{option}={value}" for option, value in (("bits", bits), ("seed", seed)) if value is not None]
    chosen = parse_settings(cls, [*(settings or []), *own])
    if not published:
        return cls(**chosen)
    if not hasattr(cls, "as_published"):
        having = [known for known in methods.names() if hasattr(methods.get(known), "as_published")]
        raise ValueError(f"--published: {cls.__name__} has no other settings; {', '.join(having)} have")
    lengths = {"bits": cls.bits} if hasattr(cls, "bits") else {}
    return cls.as_published(**{**lengths, **chosen})


def parse_settings(cls: type[Any], texts: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE texts as settings of a method, each of its field's type.

    >>> from combemb import CombEmb
    >>> parse_settings(CombEmb, ["temperature=0.05", "pair_rules=similar", "epochs=None"])
    {'temperature': 0.05, 'pair_rules': ('similar',), 'epochs': None}
    """
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    chosen = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: expected NAME=VALUE")
        if name not in names:
            raise ValueError(f"--set {text}: {cls.__name__} has no setting {name!r}; choose one of {', '.join(names)}")
        chosen[name] = _parse_value(name, value, hints[name])
    return chosen


def _parse_value(name: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if text == "None" and NoneType in kinds:
        return None
    if any(get_origin(kind) is tuple for kind in kinds):
        return tuple(part for part in text.split(",") if part)
    if str in kinds or any(get_origin(kind) is Literal for kind in kinds):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    value = float(value) if float in kinds and type(value) is int else value
    if type(value) not in kinds:
        expected = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        raise ValueError(f"--set {name}={text}: expected {expected}")
    return value


def read_label_file(path: Path | None) -> Any:
    """Return the labels in a file as `fit` takes them; None of no file."""
    from combemb.data import label_files

    return None if path is None else label_files.read_label_file(path)
