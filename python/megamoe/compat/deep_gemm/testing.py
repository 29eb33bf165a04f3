"""`deep_gemm.testing`, as far as Mega MoE programs use it."""

from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor


def calc_diff(x: Tensor, y: Tensor) -> float:
    """1 - 2<x, y> / (<x, x> + <y, y>) in FP64: 0 for equal tensors (two all-zero ones too), 1 for orthogonal ones."""
    a, b = x.double(), y.double()
    size = float((a * a + b * b).sum())
    return 0.0 if size == 0 else 1.0 - 2.0 * float((a * b).sum()) / size


def get_arch_major() -> int:
    """The current GPU's major compute capability: 9 for Hopper."""
    return int(torch.cuda.get_device_capability()[0])


def bench(fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """Seconds of one call of `fn`: the mean over num_tests calls in a row, by CUDA events, after the warm-ups."""
    del high_precision
    for _ in range(num_warmups):
        fn()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(num_tests):
        fn()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / num_tests


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: Union[str, tuple[str, ...]],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: Optional[str] = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Optional[Callable[[], Any]] = None,
) -> Union[float, tuple[float, ...]]:
    """Mean seconds of GPU kernels over num_tests calls, by torch's profiler, with a cold L2 where `flush_l2`.

    A name counts the kernels that contain it. Names of DeepGEMM's Mega MoE kernels count this project's kernel instead:
    it is one launch, so its whole time stands under every such name.
    """
    del suppress_kineto_output, with_multiple_kernels
    fn()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_tests):
            if flush_l2:
                torch.empty(1 << 26, dtype=torch.int32, device="cuda").zero_()
            if barrier is not None:
                barrier()
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    times = []
    for name in names:
        wanted = "moe_layer" if "mega_moe" in name else name
        total_us = sum(float(row.device_time_total) for row in profiler.key_averages() if wanted in row.key)
        times.append(total_us / 1e6 / num_tests)
    return times[0] if isinstance(kernel_names, str) else tuple(times)
