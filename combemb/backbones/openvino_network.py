"""Frozen networks by OpenVINO (an optional extra), which is faster than torch on CPUs."""

import importlib
import importlib.util
import logging
import os
import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from combemb.system.machine import is_limited_by_torchrun, n_cores

SWITCH = "COMBEMB_OPENVINO"  # an environment variable; 0 turns it off
TOLERANCE = 1e-4  # largest difference from torch's features, relative to the largest of them
SMALL_NETWORK = 32 * 2**20  # bytes of weights that are read quickly enough for each image
TELEMETRY = "openvino_telemetry"

log = logging.getLogger(__name__)


class OpenVinoNetwork:
    """A network compiled for images of one size; use `converted`, which also checks it.

    Every core computes images of its own, one or a few at a time: small arrays stay in the core's cache, and no core
    waits for a slower one, as the threads of torch do beside another program. An image's features therefore do not
    depend on the other images of a batch, unless weights are so large that a few images must share reading them.
    """

    def __init__(self, network: nn.Module, size: int):
        openvino = _imported()
        n_bytes = sum(parameter.nbytes for parameter in network.parameters())
        self.shape = (1 if n_bytes <= SMALL_NETWORK else 8, 3, size, size)
        model = self._model(network)
        model.reshape(list(self.shape))
        n = _n_threads()
        # Without the hint OpenVINO computes in bfloat16 on some CPUs.
        how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": n, "NUM_STREAMS": n}
        self._queue = openvino.AsyncInferQueue(openvino.Core().compile_model(model, "CPU", how), n)
        self._queue.set_callback(self._keep)
        self._found: dict[int, np.ndarray] = {}
        self.name = f"openvino {openvino.__version__.split('-')[0]}"

    def _model(self, network: nn.Module) -> Any:
        """Return a model of a network. This is the part of `openvino.convert_model` that is for torch."""
        frontend = importlib.import_module("openvino.frontend")
        decoder = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's tracer warns that the size of the images is fixed
            traced = decoder.TorchScriptPythonDecoder(network, example_input=(torch.zeros(self.shape),))
            reader = frontend.FrontEndManager().load_by_framework("pytorch")
            return reader.convert(reader.load(traced))

    def _keep(self, request: Any, start: int) -> None:
        self._found[start] = request.get_output_tensor(0).data.copy()

    def __call__(self, pixels: Tensor) -> Tensor:
        """Compute features (B, F) of pixels (B, 3, size, size) in 0..255."""
        images, n = pixels.float().contiguous().numpy(), self.shape[0]
        for start in range(0, len(images), n):
            part = images[start : start + n]
            whole = part if len(part) == n else np.concatenate([part, np.zeros((n - len(part), *part.shape[1:]), "f4")])
            self._queue.start_async({0: whole}, start)
        self._queue.wait_all()
        found = np.concatenate([self._found[start] for start in sorted(self._found)])
        self._found.clear()
        return torch.from_numpy(found[: len(images)])


def is_wanted() -> bool:
    """Return whether OpenVINO is installed and not turned off."""
    return os.environ.get(SWITCH, "") != "0" and importlib.util.find_spec("openvino") is not None


def converted(network: nn.Module, size: int) -> OpenVinoNetwork | None:
    """Return a frozen network compiled by OpenVINO; None, with a line in the log, if it cannot be used.

    Its features of a random picture must be those of torch.

    Parameters
    ----------
    network : nn.Module
        From pixels (B, 3, size, size) in 0..255 to features (B, F), in evaluation mode on the CPU.
    size : int
        Side of the images in pixels.

    Returns
    -------
    OpenVinoNetwork or None
    """
    try:
        fast = OpenVinoNetwork(network, size)
        picture = torch.randint(256, (2, 3, size, size), generator=torch.Generator().manual_seed(0)).float()
        with torch.no_grad():
            expected = network(picture)
        difference = float((fast(picture) - expected).abs().max() / expected.abs().max())
        if not difference <= TOLERANCE:  # NaN is no number of features either
            raise ValueError(f"its features differ by {difference:.1e}")
    except Exception as error:  # foreign code raises anything for a network that it does not know
        log.debug("OpenVINO cannot run this network, torch does: %s", (str(error) or repr(error)).splitlines()[0])
        return None
    return fast


def _imported() -> Any:
    """Import OpenVINO without its telemetry, which would report the import and every conversion to its makers."""
    was_there = TELEMETRY in sys.modules
    if not was_there:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment] # an import of it now fails
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("openvino")
    finally:
        if not was_there:
            del sys.modules[TELEMETRY]


def _n_threads() -> int:
    limit = "" if is_limited_by_torchrun() else os.environ.get("OMP_NUM_THREADS", "")
    return min(n_cores(), int(limit)) if limit.isdigit() and int(limit) > 0 else n_cores()
