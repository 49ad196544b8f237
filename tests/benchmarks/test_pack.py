"""Kept results: packed into one file and back, with nothing changed."""

import pytest

from benchmarks.execute import execute
from benchmarks.names import UserError
from benchmarks.pack import main
from benchmarks.store import ResultStore, read_folders
from tests.benchmarks.small import config


def test_there_and_back_again(tmp_path, capsys):
    runs = [config(seed=seed) for seed in (0, 1)]
    for run in runs:
        ResultStore(tmp_path / "a").write(execute(run))
    packed = tmp_path / "kept" / "small.jsonl"
    assert main([str(tmp_path / "a"), str(packed)]) == 0
    assert len(packed.read_text().splitlines()) == 2
    assert main([str(packed), str(tmp_path / "b")]) == 0
    assert "2 results" in capsys.readouterr().out
    before, after = ((ResultStore(tmp_path / name).results()) for name in "ab")
    assert before == after == read_folders([packed]) == read_folders([packed, tmp_path / "a"])
    assert all(ResultStore(tmp_path / "b").has(run) for run in runs), "a sweep would find them done"
    again = tmp_path / "again.jsonl"
    main([str(tmp_path / "b"), str(again)])
    assert again.read_bytes() == packed.read_bytes()


def test_what_is_no_place_of_results_is_refused(tmp_path):
    (tmp_path / "damaged.jsonl").write_text("{}\n")
    for source, text in (("missing", "neither a folder"), ("damaged.jsonl", "is not a result file")):
        with pytest.raises(UserError, match=text):
            main([str(tmp_path / source), str(tmp_path / "out.jsonl")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"ends with \.jsonl"):
        main([str(tmp_path / "empty"), str(tmp_path / "out.json")])
