from __future__ import annotations

import json

from tvmfuse.report import machine


def test_a_machine_is_described_in_plain_data() -> None:
    found = machine.describe()
    assert json.loads(json.dumps(found)) == found
    assert found["processor"]
    assert found["cores"] >= 1
    assert found["memory_gib"] > 0
    assert found["load"] >= 0
