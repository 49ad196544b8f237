"""A real Ray cluster of two nodes loses one of them."""

import pytest

from benchmarks.backends.on_ray import run_on_ray
from benchmarks.grid import parse_sweep, tomllib
from benchmarks.machine import Machine
from benchmarks.names import UserError
from tests.benchmarks.small import start, stored, undisturbed, wait_for
from tests.benchmarks.test_sweep import FILE

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made, made.add_node(num_cpus=1)
    made.shutdown()


def test_a_lost_node_costs_its_current_run_only(cluster, tmp_path):
    made, second = cluster
    file, out = tmp_path / "small.toml", tmp_path / "results"
    file.write_text(FILE)
    runs = parse_sweep("small", tomllib.loads(FILE)).runs
    process = start("benchmarks.sweep", file, "--out", out, "--backend", "ray", RAY_ADDRESS=made.address)
    wait_for(lambda: out.exists() and len(stored(out)) >= 2)
    before = len(stored(out))
    made.remove_node(second, allow_graceful=False)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert before < len(runs), "the node was lost too late to matter"
    assert f"{len(runs)} runs done" in output
    assert stored(out) == undisturbed(runs)


def test_an_address_where_nobody_answers_is_named(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1"):
        next(run_on_ray(iter([]), Machine(), 1))
