"""The README shows what the kept result files say."""

import ast
import re

import pytest

from benchmarks import readme
from benchmarks.findings import kept
from benchmarks.names import UserError


def test_the_table_is_up_to_date():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.filled(text) == text, "run `make readme`"
    assert readme.main(["--check"]) == 0
    assert readme.FIGURE.is_file()
    assert readme.FIGURE.relative_to(readme.ROOT).as_posix() in text


def test_examples_are_python_and_import_what_there_is():
    text = readme.README.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 5
    for example in examples:
        imports = [line for line in ast.parse(example).body if isinstance(line, ast.Import | ast.ImportFrom)]
        assert imports, example
        exec("\n".join(map(ast.unparse, imports)), {})


def test_a_block_that_is_missing_is_told():
    text = readme.README.read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"no block <!-- made by python -m benchmarks\.readme: paper -->"):
        readme.filled(text.replace("readme: paper", "readme: papers"))


def test_the_table_s_averages_are_the_results_own():
    """Made again by hand: mean over seeds of the average accuracy on test data."""
    results = kept("compare")
    text = readme.README.read_text(encoding="utf-8")
    (digits,) = (block[0] for block in readme.BLOCK.finditer(text) if block[2] == "digits")
    for method in ("naive", "ewc", "rewc-none-exact", "rewc-exact", "lwf", "joint"):
        mine = [r for r in results if r["config"]["method"] == method]
        held_out = {}
        for r in mine:
            held_out.setdefault(r["config"]["strength"], []).append(r["validation"]["average_accuracy"])
        chosen = max(held_out, key=lambda strength: sum(held_out[strength]))
        assert all(len(scores) == 5 for scores in held_out.values())
        mean = 100 * sum(r["average_accuracy"] for r in mine if r["config"]["strength"] == chosen) / 5
        (row,) = re.findall(rf"^\| {method} \|.*$", digits, re.MULTILINE)
        assert f"| {mean:.1f} ±" in row
