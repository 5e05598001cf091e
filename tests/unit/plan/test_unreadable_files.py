"""Files that are not there, or are not text, are named with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.conftest import Refuse
from tests.unit.plan.refusals import built_in, of_program

from scalewise.plan.config.errors import StudyError
from scalewise.plan.study import check_spelling, load_study


def test_a_missing_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as refused:
        check_spelling(tmp_path / "none.yaml")

    (line,) = refused.value.lines
    assert line.startswith(f"{tmp_path}/none.yaml:1: ")


def test_a_missing_site_is_named_with_the_folder_and_the_option() -> None:
    with pytest.raises(StudyError) as refused:
        load_study({"experiments": {}}, [], "profiles/none.yaml")

    (line,) = refused.value.lines
    assert line.startswith("profiles/none.yaml: ")
    assert str(Path.cwd()) in line
    assert "--config site=PATH" in line


def test_a_byte_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(built_in("title: caf").encode().rstrip(b"\n") + b"\xe9\n    epochs: 3\n")
    with pytest.raises(StudyError) as refused:
        check_spelling(path)

    (line,) = refused.value.lines
    assert line.startswith(f"{path}:8: ")
    assert "0xe9" in line


@pytest.mark.parametrize(("link", "target"), [("loop.py", "loop.py"), ("gone.py", "moved.py")])
def test_a_link_that_leads_nowhere_is_not_recommended_for_itself(
    link: str,
    target: str,
    refuse: Refuse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(link).symlink_to(target)
    (line,) = refuse(of_program(f"program: {link}"))
    assert f" experiments.own.program is '{link}'" in line
    assert "Did you mean" not in line
