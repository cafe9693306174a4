"""The comparison with another tool: rows that miss are seen, and the page says what the script says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.head_checks import CHECKS
from bench.head_to_head import PAGE, ROWS, Found, Row, look, main, page_of
from bench.rounds import SampleError

GOOD = Found(said="as promised", good=True)


def missing(check: str) -> Found:
    return Found(said="five times", good=check != "timeout")


def test_every_row_has_a_check_and_every_check_a_row() -> None:
    assert [row.check for row in ROWS] == list(CHECKS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.check)
def test_the_page_has_every_row_as_the_script_has_it_and_none_misses(row: Row) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"| {row.what} | {row.peer} | " in page
    assert f" | {row.target} |\n" in page
    assert f"- **{row.what}** (`{row.check}`). {row.how}\n" in page
    assert "MISSED" not in page


def test_when_all_rows_hold_the_page_is_written_and_the_exit_code_is_0(tmp_path: Path) -> None:
    page = tmp_path / "compare.md"
    assert main(["--page", str(page)], take=lambda _row: GOOD) == 0
    assert page.read_text(encoding="utf-8").count(" | as promised | ") == len(ROWS)


def test_a_row_that_misses_is_on_the_page_and_in_the_exit_code(tmp_path: Path) -> None:
    page = tmp_path / "compare.md"
    assert main(["--page", str(page)], take=lambda row: missing(row.check)) == 1
    assert page.read_text(encoding="utf-8").count("**MISSED**: five times") == 1


def test_one_row_alone_writes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "compare.md"
    assert main(["--only", "timeout", "--page", str(page)], take=lambda row: missing(row.check)) == 1
    assert main(["--only", "kill", "--page", str(page)], take=lambda row: missing(row.check)) == 0
    assert not page.exists()


def test_a_row_that_cannot_be_run_is_no_pass_and_leaves_the_page_alone(tmp_path: Path) -> None:
    def broken(row: Row) -> Found:
        if row.check == "kill":
            raise SampleError("kill failed")
        return GOOD

    page = tmp_path / "compare.md"
    assert main(["--page", str(page)], take=broken) == 2
    assert not page.exists()


def test_what_was_seen_is_what_the_page_shows() -> None:
    page = page_of([(row, GOOD) for row in ROWS])
    assert page.startswith("# Compared with a3s-code\n")
    assert "python -m bench.head_to_head" in page
    assert page.count("\n- **") == len(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.check in ("kill", "config_block")], ids=lambda row: row.check
)
def test_a_check_does_its_thing_for_real(row: Row) -> None:
    assert look(row).good


@pytest.mark.slow
def test_a_check_that_fails_says_why() -> None:
    with pytest.raises(SampleError, match="KeyError"):
        look(Row(check="nothing", what="", peer="", target="", how=""))
