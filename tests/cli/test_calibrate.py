from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_peaks_are_measured_and_doctor_knows_them(cli: Cli) -> None:
    found = cli("calibrate", "--json").json
    assert list(found) == ["schema", "command", "target", "peaks"]
    assert found["peaks"]["source"] == "measured"
    assert found["peaks"]["gflops"] > 0
    (peaks,) = (
        check for check in cli("doctor", "--json").json["checks"] if check["name"] == "peaks"
    )
    assert peaks["state"] == "ok"


def test_a_device_that_is_not_here_cannot_be_measured(cli: Cli) -> None:
    answer = cli("calibrate", "--target", "cuda:sm_80")
    assert answer.code == 2
    assert "needs a CPU target that runs on this machine, but got 'cuda:sm_80'" in answer.error
