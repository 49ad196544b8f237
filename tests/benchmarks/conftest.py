import pytest

from tests.benchmarks.small import end_all


@pytest.fixture(autouse=True)
def _nothing_keeps_running():
    yield
    end_all()
