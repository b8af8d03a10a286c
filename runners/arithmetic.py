"""How a run computes: its device, threads and precision, the memory it keeps, and the order of images in memory."""

import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from analysis.plugins import SettingError
from runners.datasets import Data
from runners.spec import RunSpec


def pick_device(name: str) -> torch.device:
    """The torch device of a spec's ``device``.

    Raises:
        SettingError: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise SettingError(f"device = {name!r}: not available here; accepted: 'auto', 'cpu', 'cuda:N'") from None
    return device


@contextmanager
def arithmetic(spec: RunSpec) -> Iterator[None]:
    """Deterministic arithmetic with the spec's threads and precision; all is put back afterwards, the random state too.

    Raises:
        SettingError: a precision that the device does not have.
    """
    if spec.precision == "tf32" and pick_device(spec.device).type != "cuda":
        raise SettingError(
            "precision = 'tf32': only CUDA devices have it, and this run is on another; accepted: 'float32'"
        )
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(spec.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.random.fork_rng(), products_in(spec.precision), _memory_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Products of float32 numbers on a CUDA device in "float32" or "tf32"; what was set is put back."""
    # Named for each operation, because torch's defaults differ: TF32 for convolutions, not for matrices.
    backends: Any = torch.backends
    operations = (backends.cuda.matmul, backends.cudnn.conv)
    found = [operation.fp32_precision for operation in operations]
    for operation in operations:
        operation.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        for operation, value in zip(operations, found, strict=True):
            operation.fp32_precision = value


@contextmanager
def _memory_kept() -> Iterator[None]:
    """Freed memory stays with the process, for the next step to take.

    The C library of Linux gives arrays of megabytes back to the system, which then clears their pages for the next
    step to have them again: up to a seventh of a step of CalMO. Elsewhere nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    # Numbers from malloc.h; the limits put back are the highest that glibc sets by itself.
    trim_threshold, mmap_threshold, mebibyte = -1, -3, 2**20
    libc.mallopt(mmap_threshold, 1024 * mebibyte)
    libc.mallopt(trim_threshold, 2047 * mebibyte)
    try:
        yield
    finally:
        libc.mallopt(mmap_threshold, 32 * mebibyte)
        libc.mallopt(trim_threshold, 64 * mebibyte)
        gc.collect()
        libc.malloc_trim(0)


def arranged(model: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """A convolutional network and its images with channels last in memory, which convolutions are faster in.

    Shapes stay [n, C, H, W], and values up to the rounding of sums in another order. Other networks, which flatten
    their images, keep them as they are.

    Args:
        model: changed in place.
        data: what it will see.
    """
    if not any(isinstance(module, _ConvNd) for module in model.modules()):
        return model, data
    splits = {name: replace(split, x=_channels_last(split.x)) for name, split in data.splits.items()}
    return model.to(memory_format=torch.channels_last), replace(data, splits=splits)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
