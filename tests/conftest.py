import signal

import hypothesis
import pytest
import torch

from tests.tally import SOAK

# The ordinary run tries the same examples every time; the soak, behind REWC_SOAK=1, new ones and many more of them.
hypothesis.settings.register_profile("ordinary", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=500)
hypothesis.settings.load_profile("soak" if SOAK else "ordinary")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell, and so would be our children
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
