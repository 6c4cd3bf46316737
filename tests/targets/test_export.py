import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmfuse._tvm import cuda_offline, relax, tvm, tvm_ffi
from tvmfuse.errors import EnvironmentMismatchError, LoweringError
from tvmfuse.kernels import dlight
from tvmfuse.targets import Target, cuda_toolkit, resolve
from tvmfuse.targets.export import compile_context, export


@pytest.fixture
def compiled(request: pytest.FixtureRequest) -> tuple[tvm.runtime.Executable, Target]:
    target = resolve(request.param)
    try:
        context = compile_context(target)
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    with context:
        return _compile(target), target


def for_target(spec: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("compiled", [spec], indirect=True)


@for_target("cuda:sm_80")
def test_cuda_library_holds_machine_code_for_the_architecture(
    compiled: tuple[tvm.runtime.Executable, Target], tmp_path: Path
) -> None:
    library, source = export(*compiled, tmp_path)
    assert (library.name, source.name) == ("lib.so", "kernels.cu")
    assert "__global__ void" in source.read_text()
    (cubin,) = _cubins(library.read_bytes())
    assert struct.unpack_from("<48xI", cubin)[0] >> 8 & 0xFF == 80
    assert b".text.relu_kernel" in cubin
    assert b"__global__" not in library.read_bytes()


@for_target("cuda:sm_80")
def test_cuda_library_loads_without_a_device(
    compiled: tuple[tvm.runtime.Executable, Target], tmp_path: Path
) -> None:
    library, _ = export(*compiled, tmp_path)
    assert tvm.runtime.load_module(str(library)).implements_function("main", query_imports=True)


@for_target("metal:m1")
def test_metal_library_is_an_archive_of_macos_objects_with_its_source(
    compiled: tuple[tvm.runtime.Executable, Target], tmp_path: Path
) -> None:
    library, source = export(*compiled, tmp_path)
    assert (library.name, source.name) == ("lib.tar", "kernels.metal")
    assert "kernel void relu_kernel" in source.read_text()
    with tarfile.open(library) as archive:
        heads = [archive.extractfile(member).read(4) for member in archive.getmembers()]
    assert heads == [b"\xcf\xfa\xed\xfe"] * len(heads)  # 64-bit Mach-O
    assert len(heads) == 2  # the host's code, and the device's packed in another


@for_target("cpu")
def test_cpu_library_is_all_that_a_cpu_needs(
    compiled: tuple[tvm.runtime.Executable, Target], tmp_path: Path
) -> None:
    (library,) = export(*compiled, tmp_path)
    assert library.name == "lib.so"
    assert list(tmp_path.iterdir()) == [library]


@for_target("cpu:apple-m1")
def test_cpu_of_another_system_gets_an_archive_of_objects(
    compiled: tuple[tvm.runtime.Executable, Target], tmp_path: Path
) -> None:
    if compiled[1].runs_here:
        pytest.skip("this machine is a Mac with Apple silicon")
    assert [path.name for path in export(*compiled, tmp_path)] == ["lib.tar"]


@for_target("cpu")
@pytest.mark.parametrize("cxx", [None, "/no/such/c++", "false"])
def test_missing_or_broken_cxx_compiler_is_one_line(
    compiled: tuple[tvm.runtime.Executable, Target],
    cxx: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    if cxx is None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CXX", cxx)
    with pytest.raises(EnvironmentMismatchError, match=r"set CXX to") as caught:
        export(*compiled, tmp_path)
    assert "\n" not in str(caught.value)


def test_what_a_device_lacks_is_one_line_that_names_it() -> None:
    target = resolve("metal:m1")
    with (
        pytest.raises(LoweringError, match=r"metal:m1: .*float64") as caught,
        compile_context(target),
    ):
        _compile(target, dtype="float64")
    assert "\n" not in str(caught.value)


@pytest.fixture
def cudart() -> Iterator[Path]:
    path = cuda_toolkit.find_library("libcudart.so.13")
    if path is None:
        pytest.skip("no libcudart.so.13: pip install 'tvmfuse[cuda]'")
    return path


def test_our_error_comes_out_of_tvm_as_it_is(cudart: Path) -> None:
    def refuse(source: str) -> bytes:
        assert "relu_kernel" in source
        raise LoweringError("cuda: no")

    with (
        cuda_offline.compiling_with(refuse, cudart=cudart),
        pytest.raises(LoweringError, match=r"^cuda: no$"),
    ):
        _compile(resolve("cuda:sm_80"))


def test_context_gives_tvm_its_own_compiler_back(cudart: Path) -> None:
    name = "tvm_callback_cuda_compile"
    before = tvm_ffi.get_global_func(name)
    with cuda_offline.compiling_with(lambda _: b"", cudart=cudart):
        assert not tvm_ffi.get_global_func(name).same_as(before)
    assert tvm_ffi.get_global_func(name).same_as(before)


@for_target("cuda:sm_80")
def test_nothing_is_printed(
    compiled: tuple[tvm.runtime.Executable, Target],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with compile_context(compiled[1]):
        export(_compile(compiled[1]), compiled[1], tmp_path)
    assert capfd.readouterr() == ("", "")


def _compile(target: Target, *, dtype: str = "float32") -> tvm.runtime.Executable:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 100), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(y)
    with target.tvm() as tvm_target:
        mod = relax.transform.LegalizeOps()(builder.get())
        if target.rules == "dlight":
            mod, _ = dlight.schedule(mod, target)
        return tvm.compile(mod, tvm_target)


def _cubins(library: bytes) -> Iterator[bytes]:
    """Yield the machine code of NVIDIA GPUs (ELF, machine 190) within a library."""
    start = library.find(b"\x7fELF", 4)
    while start >= 0:
        if struct.unpack_from("<H", library, start + 18)[0] == 190:
            (size,) = struct.unpack_from("<Q", library, start - 8)  # TVM writes it before
            yield library[start : start + size]
        start = library.find(b"\x7fELF", start + 4)
