"""Export: labels and manifests as tables, images in a folder per class."""

import zipfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pyarrow import csv

from combemb.collection.exported import label_table, manifest_table
from combemb.collection.folders import places_in_folders, write_folders
from combemb.explorer.server import bodies, messages
from combemb.explorer.server.current import Current
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.served import Served

MEDIA = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet", "zip": "application/zip"}
TABLE: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA[kind]: {} for kind in ("csv", "parquet")}, "description": "A table."}
}
ZIP: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA["zip"]: {}}, "description": "Folders of images."}}
Suffix = Literal["csv", "parquet"]


class Download(Response):
    """A file; its type is set for each."""

    media_type = "application/octet-stream"


def routes(current: Current) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/export", tags=["export"])

    @router.get("/labels.{suffix}", response_class=Download, responses=TABLE)
    def labels(suffix: Suffix) -> Response:
        """Return id and label of every item, as `combemb fit --labels` takes them."""
        return _table(label_table(current.served.snapshot().classes), "labels", suffix)

    @router.get("/manifest.{suffix}", response_class=Download, responses=TABLE)
    def manifest(suffix: Suffix) -> Response:
        """Return path and label of every image, a manifest that `combemb fit` takes."""
        _files(current.served)
        return _table(manifest_table(current.served.snapshot().classes), "manifest", suffix)

    @router.get("/images.zip", response_class=Download, responses=ZIP)
    def images() -> StreamingResponse:
        """Return the images in a folder per class."""
        files, classes = _files(current.served)
        headers = _attachment("images.zip")
        return StreamingResponse(zipped(files, classes), media_type=MEDIA["zip"], headers=headers)

    @router.post("/folders")
    def folders(asked: bodies.Folders) -> messages.Sorted:
        """Make a folder beside the run with a folder per class, with links to the images or copies of them."""
        files, classes = _files(current.served)
        run = current.served.path
        names = (run.with_name(f"{run.name}-sorted-{number}") for number in count(1))
        folder = next(path for path in names if not path.exists())
        write_folders(folder, files, classes, copy=asked.copy_, progress=False)
        return messages.Sorted(folder=str(folder), n=len(files))

    return router


def _table(table: pa.Table, name: str, suffix: Suffix) -> Response:
    sink = pa.BufferOutputStream()
    (csv.write_csv if suffix == "csv" else pq.write_table)(table, sink)
    content = sink.getvalue().to_pybytes()
    return Response(content, media_type=MEDIA[suffix], headers=_attachment(f"{name}.{suffix}"))


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _files(served: Served) -> tuple[list[Path], list[str]]:
    """Return the image files that may be shown and exist, with their classes; refuse if items are no image files."""
    shown = served.snapshot()
    if shown.items.paths != shown.items.ids.tolist():
        raise Refused(409, "unavailable", "these items are not image files", "export their labels instead")
    neither = shown.items.found.neither
    named = zip(shown.items.ids.tolist(), shown.classes.names.tolist(), strict=True)
    kept = [(Path(path), neither if name is None else name) for path, name in named if served.pictures.may_show(path)]
    kept = [(path, name) for path, name in kept if path.is_file()]
    if not kept:
        raise Refused(409, "unavailable", "no image can be read any more", "say where they are: combemb relocate")
    return [path for path, _ in kept], [name for _, name in kept]


def zipped(files: list[Path], classes: list[str]) -> Iterator[bytes]:
    """Yield a ZIP file part by part; images are compressed already, so they are stored as they are."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:  # some are from 1970
        for file, (folder, name) in zip(files, places_in_folders(files, classes), strict=True):
            archive.write(file, f"{folder}/{name}")
            yield sink.taken()
    yield sink.taken()


class _Sink:
    """What `ZipFile` writes to when it cannot go back."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes, /) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
