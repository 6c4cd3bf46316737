"""Turn TVM's CUDA C++ into machine code, by NVRTC or nvcc. Neither needs a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tvmfuse.errors import EnvironmentMismatchError, LoweringError, TargetError

_INVALID_OPTION = 5  # nvrtcResult; here always an architecture that NVRTC does not know

# TVM 0.27 begins its CUDA text with a choice of headers. The branch for NVRTC
# wants CCCL: a further package, and many times the compile time of the kernels,
# which use no more of it than these types.
_HEADER_CHOICE = re.compile(r"#ifdef __CUDACC_RTC__.*?#include <cuda\.h>\s*#endif", re.DOTALL)
_INTEGER_TYPES = """\
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
"""


@dataclass(frozen=True)
class Nvrtc:
    """NVIDIA's compiler as a library.

    Parameters
    ----------
    library : Path
        ``libnvrtc.so.13``.
    headers : Path
        Folder of ``cuda_fp16.h`` and ``mma.h``, which kernels in half precision include.
    """

    library: Path
    headers: Path

    def about(self) -> str:
        """Return name, version and path.

        Raises
        ------
        EnvironmentMismatchError
            The library cannot be loaded.
        """
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._load().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"NVRTC {major.value}.{minor.value}, {self.library}"

    def __call__(self, source: str, arch: str) -> bytes:
        """Compile CUDA C++ to machine code.

        Division and square root are rounded correctly and denormals kept: unlike
        TVM, we do not pass ``--use_fast_math``.

        Parameters
        ----------
        source : str
            CUDA C++ text, as TVM writes it.
        arch : str
            For example ``sm_80``.

        Returns
        -------
        bytes
            A cubin: an ELF file with the machine code of that architecture only.

        Raises
        ------
        EnvironmentMismatchError
            The library cannot be loaded.
        TargetError
            This NVRTC does not know the architecture.
        LoweringError
            It refuses the text.
        """
        nvrtc = self._load()
        text = _HEADER_CHOICE.sub(_INTEGER_TYPES, source, count=1)
        options = (
            f"--gpu-architecture={arch}",
            "--device-as-default-execution-space",
            "--device-int128",
            "--disable-warnings",
            f"--include-path={self.headers}",
        )
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        program = ctypes.c_void_p()
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None)
        try:
            result = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
            if result == _INVALID_OPTION:
                raise _unknown(arch, str(self.library))
            if result != 0:
                log = _fetch(nvrtc, program, "ProgramLog").decode()
                raise _refusal("NVRTC", arch, text, log)
            return _fetch(nvrtc, program, "CUBIN")
        finally:
            nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _load(self) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(str(self.library))
        except OSError as error:
            raise EnvironmentMismatchError(
                f"target: cannot load {self.library}: {error}; pip install 'tvmfuse[cuda]'"
            ) from error


@dataclass(frozen=True)
class Nvcc:
    """NVIDIA's compiler as a command; it needs a C++ compiler beside it."""

    command: str

    def about(self) -> str:
        """Return name, version and path."""
        said = subprocess.run(
            [self.command, "--version"], capture_output=True, text=True, check=False
        )
        version = re.search(r"release [\d.]+, V([\d.]+)", said.stdout)
        return f"nvcc {version[1] if version else 'of unknown version'}, {self.command}"

    def __call__(self, source: str, arch: str) -> bytes:
        """Compile CUDA C++ to machine code, as :class:`Nvrtc` does.

        Raises
        ------
        TargetError
            This nvcc does not know the architecture.
        LoweringError
            It refuses the text.
        """
        with tempfile.TemporaryDirectory(prefix="tvmfuse-") as folder:
            text, cubin = Path(folder, "k.cu"), Path(folder, "k.cubin")
            text.write_text(source)
            flags = ["-cubin", f"-arch={arch}", "-O3", "-w", "-o", str(cubin)]
            done = subprocess.run(
                [self.command, *flags, str(text)], capture_output=True, text=True, check=False
            )
            log = done.stdout + done.stderr
            if "Unsupported gpu architecture" in log:
                raise _unknown(arch, self.command)
            if done.returncode != 0:
                raise _refusal("nvcc", arch, source, log)
            return cubin.read_bytes()


def _fetch(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """Return the log or the machine code of a program."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: size.value]


def _unknown(arch: str, compiler: str) -> TargetError:
    return TargetError(
        f"target: {compiler} cannot compile for {arch}; "
        "install a version that knows it, or choose another architecture"
    )


def _refusal(compiler: str, arch: str, text: str, log: str) -> LoweringError:
    """Name the kernel and the first error of a compiler's log."""
    lines = [line for line in log.splitlines() if "error" in line or "fatal" in line]
    reason = (lines or log.splitlines() or ["it gives no reason"])[0].strip()
    kernel = "the kernels"
    if place := re.match(r".*k\.cu\((\d+)\): (.*)", reason):
        before = "\n".join(text.splitlines()[: int(place[1])])
        names = re.findall(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)", before)
        kernel, reason = f"kernel {names[-1]}" if names else kernel, place[2]
    return LoweringError(f"cuda: {compiler} cannot compile {kernel} for {arch}: {reason}")
