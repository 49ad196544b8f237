"""What people install."""

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import metadata, version
from pathlib import Path

import avalanche_rewc

ROOT = Path(__file__).resolve().parent.parent

WITHOUT_AVALANCHE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"avalanche", "torchvision", "matplotlib"}:
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Refuse())
import torch
from avalanche_rewc.core import ProtectedTraining, consolidate
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x = torch.randn(8, 3)
memory = consolidate(model, lambda: [((x,), None)])
training = ProtectedTraining(model, [memory], 10.0)
with torch.no_grad():
    model[0]._parameters["weight"] += 1
assert training.penalty() > 0
training.end()
assert "avalanche" not in sys.modules
"""


def test_the_core_works_without_avalanche():
    subprocess.run([sys.executable, "-c", WITHOUT_AVALANCHE], check=True, cwd=ROOT)


def test_the_core_imports_nothing_above_it():
    for path in (ROOT / "avalanche_rewc" / "core").glob("*.py"):
        for line in path.read_text().splitlines():
            if line.strip().startswith(("import ", "from ")):
                module = line.split()[1]
                assert not module.startswith("avalanche."), (path.name, line)
                inside = module.startswith("avalanche_rewc.core")
                assert inside or not module.startswith("avalanche_rewc"), (path.name, line)


def test_version_and_lazy_names():
    assert version("avalanche-rewc") == avalanche_rewc.__version__
    assert metadata("avalanche-rewc")["License"] == "MIT"
    assert set(dir(avalanche_rewc)) == {"REWC", "REWCPlugin", "__version__"}
    assert f"## [{avalanche_rewc.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_wheel_and_sdist_build(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in ("avalanche_rewc/py.typed", "avalanche_rewc/core/fisher.py", "avalanche_rewc/plugin.py"):
        assert needed in names
    assert not [n for n in names if n.startswith(("tests", "benchmarks"))]
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert any(n.endswith("/LICENSE") for n in archive.getnames())
