"""What concerns the machine: its peak speed and its memory allocator."""

import ctypes
import logging
import platform
import time

import torch

log = logging.getLogger(__name__)

# Dense tensor-core peaks in FLOP/s from the vendor's data sheets: 16-bit, then 32-bit with TF32 off.
GPU_PEAKS: dict[str, tuple[float, float]] = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "A10G": (70e12, 31.2e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
    "RTX 4090": (165e12, 82.6e12),
    "RTX 3090": (71e12, 35.6e12),
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_MODEL = 50_000_000


def keep_memory(num_parameters: int) -> None:
    """Tell glibc's allocator to keep freed memory instead of returning it to the kernel at every step.

    With its defaults large activations are unmapped when freed, and each step faults them in again, page by page: a
    large part of a small model's step. A large model's step is made of matrix products, and its largest tensors would
    leave gaps of gigabytes; there only blocks below 32 MiB are kept. Elsewhere than on glibc this does nothing.

    Args:
        num_parameters: of the model that is going to be trained.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30 if num_parameters < _LARGE_MODEL else 1 << 25)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The operations per second that the device can do at best, for the MFU.

    Args:
        device: where the model trains.
        precision: Lightning's flag.

    Returns:
        The data sheet's figure for known GPUs; on the CPU the speed of a 2048-cubed float32 product, measured now; None
        for other devices.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, (half, single) in GPU_PEAKS.items():
            if known in name:
                return single if precision.startswith(("32", "64")) else half
        log.info("no peak speed known for %s: mfu is not logged", name)
        return None
    if device.type != "cpu":
        return None
    a = torch.randn(2048, 2048)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times)
