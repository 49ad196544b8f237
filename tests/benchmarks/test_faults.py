"""The table of faults is made from what the tests counted."""

import pytest

from benchmarks.faults import main
from benchmarks.names import UserError
from tests.tally import report


def test_counts_become_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("REWC_FAULT_REPORT", str(tmp_path / "counts"))
    report("files cut off", 12)
    with pytest.raises(AssertionError, match="1 of 3 lost something"):
        report("runs killed", 3, 1)
    assert main([str(tmp_path / "counts"), str(tmp_path / "table.md")]) == 0
    assert (tmp_path / "table.md").read_text().endswith("| files cut off | 12 | 0 |  |\n| runs killed | 3 | 1 |  |\n")
    with pytest.raises(UserError, match="no counts"):
        main([str(tmp_path), str(tmp_path / "table.md")])
