import subprocess
import sys

import pytest

from tvmfuse._tvm import cxx
from tvmfuse.errors import EnvironmentMismatchError

PROBE = "from tvm.support import cc; cc.create_shared('lib.so', ['lib.o'])"


def test_tvm_still_trips_over_a_missing_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert "TypeError" in done.stderr


def test_missing_compiler_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CXX", "CC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentMismatchError, match=r"install one, or set CXX") as caught:
        cxx.compiler()
    assert "\n" not in str(caught.value)
