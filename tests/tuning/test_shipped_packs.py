"""The packs that come with tvmfuse are whole, and their records fit today's kernels."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tvmfuse import targets
from tvmfuse._tvm import tvm
from tvmfuse.passes.schedule import by_record, machine_of
from tvmfuse.plan import Tuned
from tvmfuse.store import Record, Workload, jsonl
from tvmfuse.store.location import Location, locate, shipped_packs
from tvmfuse.store.packs import load_packs
from tvmfuse.tuning.history import VERSIONS

FOLDER = shipped_packs()
assert FOLDER is not None
PACKS = sorted(FOLDER.glob("*.jsonl"))
_SAMPLE, _NEEDED = 10, 0.5


def test_there_is_one_for_the_usual_cpu() -> None:
    assert "x86-64-v3" in {path.stem for path in PACKS}


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.stem)
def test_every_line_is_whole_and_says_where_it_was_measured(path: Path) -> None:
    header = jsonl.header(path)
    assert header["device_family"] == path.stem
    assert header["measured_on"]
    items = list(jsonl.read(path))
    assert [item for item in items if isinstance(item, str)] == []
    records = [item for item in items if isinstance(item, Record)]
    assert records
    assert {each.status for each in records} == {"ok"}


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.stem)
def test_the_records_fit_the_kernels_of_today(path: Path) -> None:
    items = list(jsonl.read(path))
    functions = {
        item.key: tvm.ir.load_json(item.module)["main"]
        for item in items
        if isinstance(item, Workload)
    }
    records = [item for item in items if isinstance(item, Record)]
    chosen = Random(0).sample(records, min(_SAMPLE, len(records)))
    machine = machine_of(targets.resolve(f"cpu:{path.stem}"))
    notes = []
    for record in chosen:
        assert record.family_version == VERSIONS.get(record.family, 0)
        tuned = Tuned(record.decisions or {}, record.trace)
        notes.append(by_record(functions[record.workload], machine, tuned).note)
    fitting = sum(not note for note in notes)
    assert fitting >= _NEEDED * len(chosen), f"run 'make pack': {notes}"


def test_a_project_without_packs_has_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "tuning_logs").mkdir()
    found = locate(start=tmp_path)
    assert found.all_packs == (tmp_path / "tuning_logs" / "packs", FOLDER)
    assert [pack.name for pack in load_packs(found.all_packs)] == [path.name for path in PACKS]
    assert Location("x.db", "", packs=FOLDER, shipped=FOLDER).all_packs == (FOLDER,)
