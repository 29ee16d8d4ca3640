"""Which processor kernels are compiled for: a fixed baseline, not the processor that happens to compile them.

`compiling` asks this module once, for the target of all kernels. Machine code for the baseline runs on every machine
that has the baseline's instructions, so kernels that one machine has compiled serve the others, and travel in a wheel.
Numba by itself compiles for the processor on which it runs, so two machines of one cluster could not share kernels.

| machine | baseline | where |
|---|---|---|
| x86-64 | ``x86-64-v3``: AVX2, BMI, FMA | every server since 2015 or so |
| 64-bit ARM | ``generic``: ARMv8-A | every one |

Kernels are compiled for the processor at hand, as Numba does it, where the baseline does not fit (an older or another
kind of processor), or on request: ``RIVERRUN_CPU=host``, or one of Numba's own settings of the processor
(``NUMBA_CPU_NAME``, ``NUMBA_CPU_FEATURES``, ``NUMBA_ENABLE_AVX``). Law:

- **Only our kernels.** Numba's settings are for the whole process. Kernels have a code generator of their own beside
  Numba's instead, so functions that users compile in the same process are compiled as if Riverrun were not there.

Cost: a second execution engine of LLVM, some milliseconds when the first kernel is declared. Kernels are a few percent
slower at most: they wait for memory more than they compute (``python -m bench kernels`` compares).
"""

from __future__ import annotations

import os
import platform
from functools import cached_property
from typing import Any

from llvmlite import binding
from numba.core import config, registry
from numba.core.codegen import JITCPUCodegen
from numba.core.cpu import CPUTargetOptions
from numba.core.descriptors import TargetDescriptor

X86_64_V3 = (
    "cx16 sahf popcnt sse3 sse4.1 sse4.2 ssse3 avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
).split()
BASELINES: dict[str, tuple[str, list[str]]] = {
    "x86_64": ("x86-64-v3", X86_64_V3),
    "amd64": ("x86-64-v3", X86_64_V3),
    "aarch64": ("generic", []),
    "arm64": ("generic", []),
}


class BaselineCodegen(JITCPUCodegen):  # type: ignore[misc]
    """Numba's code generator, for the named processor rather than the one at hand."""

    def __init__(self, processor: str) -> None:
        self._processor = processor
        super().__init__("riverrun.kernels")

    def _get_host_cpu_name(self) -> str:
        return self._processor

    def _get_host_cpu_features(self) -> str:
        return ""  # those that go with the name


class BaselineTarget(TargetDescriptor):  # type: ignore[misc]
    """Numba's target for processors, which shares Numba's types and functions but has a code generator of its own."""

    options = CPUTargetOptions

    def __init__(self, processor: str) -> None:
        super().__init__("cpu")
        self._processor = processor

    @property
    def typing_context(self) -> Any:
        return registry.cpu_target.typing_context

    @cached_property
    def target_context(self) -> Any:
        codegen = BaselineCodegen(self._processor)
        return registry.cpu_target.target_context.subtarget(_internal_codegen=codegen)


def baseline() -> str | None:
    """The processor that kernels are compiled for; None for the processor at hand."""
    if os.environ.get("RIVERRUN_CPU") == "host":
        return None
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None or not config.ENABLE_AVX:
        return None
    name, needed = BASELINES.get(platform.machine().lower(), ("", []))
    try:
        features = binding.get_host_cpu_features() if needed else {}
    except RuntimeError:  # LLVM cannot tell
        return None
    return name if name and all(features.get(each) for each in needed) else None


def target() -> Any:
    """The target of all kernels, in the form that Numba takes."""
    processor = baseline()
    return registry.cpu_target if processor is None else BaselineTarget(processor)
