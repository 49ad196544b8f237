"""The diagonal Fisher and the factors, against the slow oracle, for every kind of model."""

import gc
import sys

import pytest
import torch

from avalanche_rewc.core import BASES, consolidate, gradients
from avalanche_rewc.core import fisher as maths
from avalanche_rewc.core.bases import RandomBasis
from avalanche_rewc.core.capture import samples_within
from avalanche_rewc.core.signals import NEGLIGIBLE, draw_labels, exact_signals
from tests import oracle
from tests.cases import CASES

# Where there is no convolution, "patch" and "channel" are the same.
EVERY = [(n, "channel") for n in CASES] + [(n, "patch") for n, case in CASES.items() if "conv" in case.rotated]


def batches_of(x, labels=None, size=4):
    """Several batches, the last one smaller."""
    parts = range(0, len(x), size)
    return lambda: [((x[i : i + size],), None if labels is None else labels[i : i + size]) for i in parts]


def assert_close(ours, expected, case, parameter):
    atol = case.tolerance * float(expected.abs().max()) + 1e-15
    torch.testing.assert_close(ours, expected, rtol=case.tolerance, atol=atol, msg=lambda m: f"{parameter}: {m}")


def drawn(model, x, seed, size=4):
    """The labels `consolidate` draws, made again with the same generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return torch.cat([draw_labels(model(x[i : i + size]), generator) for i in range(0, len(x), size)])


@pytest.mark.parametrize("kind", ["sampled", "exact", "empirical"])
@pytest.mark.parametrize(("name", "conv_basis"), EVERY)
def test_rotated_diagonal_equals_the_oracle(name, conv_basis, kind):
    case = CASES[name]
    model, x = case.model(), case.inputs()
    labels = torch.arange(len(x)) % 3
    used = drawn(model, x, 5) if kind == "sampled" else labels

    memory = consolidate(
        model,
        batches_of(x, labels),
        layers="all" if case.rotated else "none",
        conv_basis=conv_basis,
        fisher=kind,
        generator=torch.Generator().manual_seed(5),
    )

    assert {n.removesuffix(".weight") for n in memory.rotations} == case.rotated
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, kind, used), memory.rotations)
    assert set(memory.importances) == {n for n, p in model.named_parameters() if p.requires_grad}
    for parameter, importance in memory.importances.items():
        assert_close(importance, expected[parameter], case, parameter)


@pytest.mark.parametrize("kind", ["sampled", "exact", "empirical"])
@pytest.mark.parametrize("name", CASES)
def test_unrotated_diagonal_equals_the_oracle(name, kind):
    case = CASES[name]
    model, x = case.model(), case.inputs()
    labels = torch.arange(len(x)) % 3
    used = drawn(model, x, 5) if kind == "sampled" else labels
    generator = torch.Generator().manual_seed(5)
    memory = consolidate(model, batches_of(x, labels), layers="none", fisher=kind, generator=generator)
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, kind, used))
    assert memory.rotations == {}
    for parameter, importance in memory.importances.items():
        assert_close(importance, expected[parameter], case, parameter)


@pytest.mark.parametrize("name", ["conv2d-groups", "tokens", "conv3d"])
def test_chunks_do_not_change_the_result(name, monkeypatch):
    case = CASES[name]
    model, x = case.model(), case.inputs()
    whole = consolidate(model, batches_of(x), layers="all", fisher="exact")
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 1)
    chunked = consolidate(model, batches_of(x), layers="all", fisher="exact")
    for parameter in whole.importances:
        torch.testing.assert_close(chunked.importances[parameter], whole.importances[parameter])


@pytest.mark.parametrize("conv_basis", ["channel", "patch"])
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("large", [1, maths.LARGE])
def test_rows_or_gradients_may_be_rotated(conv_basis, by_rows, large, monkeypatch):
    """Both ways around give the oracle's numbers; which one is taken is only a matter of cost."""
    monkeypatch.setattr(maths, "_rows_are_cheaper", lambda *_: by_rows)
    monkeypatch.setattr(maths, "LARGE", large)
    case = CASES["conv2d-groups"]
    model, x = case.model(), case.inputs()
    memory = consolidate(model, batches_of(x), layers="all", fisher="exact", conv_basis=conv_basis)
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
    assert_close(memory.importances["conv.weight"], expected["conv.weight"], case, "conv.weight")


@pytest.mark.parametrize("name", ["conv2d-groups", "tokens", "shared", "torch-attention"])
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("large", [1, maths.LARGE])
def test_squares_of_pairs_or_of_products(name, pairs, large, monkeypatch):
    """As above: a matter of cost."""
    monkeypatch.setattr(maths, "_pairs_are_cheaper", lambda *_: pairs)
    monkeypatch.setattr(maths, "LARGE", large)
    case = CASES[name]
    model, x = case.model(), case.inputs()
    memory = consolidate(model, batches_of(x), layers="all", fisher="exact")
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
    for parameter, importance in memory.importances.items():
        assert_close(importance, expected[parameter], case, parameter)
        assert (importance >= 0).all()


def test_pairs_where_they_are_cheaper():
    """With many signals and few positions; by a factor of hundreds in the last layers of a convolutional network."""
    assert maths._pairs_are_cheaper(100, 4, 2304)
    assert not maths._pairs_are_cheaper(1, 4, 2304)
    assert not maths._pairs_are_cheaper(100, 256, 27)
    g, x = torch.randn(20, 3, 4, 2, 5), torch.randn(3, 4, 2, 6)
    torch.testing.assert_close(maths._squares_of_pairs(g, x), maths._squares_of_products(g, x))
    x[:, 3], g[:] = -x[:, :3].sum(1), g[:, :, :1]  # at every position the same gradient, and inputs that add up to zero
    assert (maths._squares_of_pairs(g, x) >= 0).all(), "rounding errors around zero"


def test_all_signals_of_fewer_samples(monkeypatch):
    """Where not everything fits, samples are divided first: only then are many signals cheaper than one by one."""
    seen = []
    squared = maths.squared_gradients
    monkeypatch.setattr(
        maths, "squared_gradients", lambda m, c, g, r: seen.append(g[0].shape[:2]) or squared(m, c, g, r)
    )
    model, x = CASES["tokens"].model(), CASES["tokens"].inputs()
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 10_000)  # room for some samples and not for all
    consolidate(model, batches_of(x, size=7), layers="all", fisher="exact")
    assert {signals for signals, _ in seen} == {2}
    assert 1 < max(samples for _, samples in seen) < 7


def test_a_sample_s_signals_in_parts(monkeypatch):
    """What a single sample needs for all of its signals may be more than there is room for."""
    formed = []
    way = maths._squares_of_products

    def counted(g, x):
        formed.append(g.shape[0] * g.shape[1] * g.shape[-1] * x.shape[-1])
        return way(g, x)

    monkeypatch.setattr(maths, "_pairs_are_cheaper", lambda *_: False)
    monkeypatch.setattr(maths, "_squares_of_products", counted)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(100, 9))
    room = 4 * 40 * 50  # of the first layer's gradients for four signals
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 4 * room)
    consolidate(model, batches_of(torch.randn(3, 2, 40)), layers="none", fisher="exact")
    assert 0 < max(formed) <= room


@pytest.mark.parametrize("basis", [*BASES.values(), RandomBasis(3)])
def test_any_basis_gives_its_own_exact_diagonal(basis):
    case = CASES["mlp"]
    model, x = case.model(), case.inputs()
    memory = consolidate(model, batches_of(x), layers="all", fisher="exact", basis=basis)
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
    for parameter, importance in memory.importances.items():
        assert_close(importance, expected[parameter], case, parameter)


@pytest.mark.parametrize(("name", "conv_basis"), [pair for pair in EVERY if CASES[pair[0]].rotated])
def test_rotated_factors_are_diagonal(name, conv_basis):
    """The factors, made again in the rotated network's own coordinates, have nothing beside the diagonal."""
    case = CASES[name]
    model, x = case.model(), case.inputs(20)
    memory = consolidate(model, batches_of(x), layers="all", fisher="exact", conv_basis=conv_basis)
    for parameter, (input_factor, output_factor) in memory.factors.items():
        rotation = memory.rotations[parameter]
        for factor, basis in ((input_factor, rotation.input_basis), (output_factor, rotation.output_basis)):
            rotated = basis.mT @ factor @ basis
            beside = rotated - torch.diag_embed(rotated.diagonal(dim1=-2, dim2=-1))
            assert beside.square().sum() < 1e-8 * rotated.square().sum(), parameter
            assert (basis.mT @ basis - torch.eye(basis.shape[-1])).abs().max() < 1e-10


def test_the_factors_are_what_the_method_says():
    """Channel: positions of the unpadded input. Patch: patches of the padded one. Output: all output positions."""
    model, x = CASES["conv2d-groups"].model(), CASES["conv2d-groups"].inputs()
    conv = model.conv
    outputs = []
    handle = conv.register_forward_hook(lambda m, a, y: outputs.append(y.retain_grad() or y) or y.clone())
    logits = model(x)
    handle.remove()
    y = outputs[0]
    labels = torch.arange(len(x)) % 3
    logits.log_softmax(-1)[torch.arange(len(x)), labels].sum().backward()

    expected_output = torch.zeros(2, 3, 3).double()
    expected_channel = torch.zeros(2, 2, 2).double()
    expected_patch = torch.zeros(2, 18, 18).double()
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    for b in range(len(x)):
        for i in range(5):
            for j in range(5):
                for g in range(2):
                    out = y.grad[b, 3 * g : 3 * g + 3, i, j]
                    inp = x[b, 2 * g : 2 * g + 2, i, j]
                    patch = padded[b, 2 * g : 2 * g + 2, i : i + 3, j : j + 3].reshape(-1)
                    expected_output[g] += torch.outer(out, out) / len(x)
                    expected_channel[g] += torch.outer(inp, inp) / len(x)
                    expected_patch[g] += torch.outer(patch, patch) / len(x)
    for conv_basis, expected_input in (("channel", expected_channel), ("patch", expected_patch)):
        memory = consolidate(model, batches_of(x, labels), layers="all", fisher="empirical", conv_basis=conv_basis)
        input_factor, output_factor = memory.factors["conv.weight"]
        torch.testing.assert_close(input_factor, expected_input)
        torch.testing.assert_close(output_factor, expected_output)


@pytest.mark.parametrize(("size", "rows"), [(8, 9), (9, 9), (70, 9), (9, 8)])
@pytest.mark.parametrize("groups", [1, 2])
def test_factors_are_the_same_whole_or_half_computed(size, rows, groups, monkeypatch):
    """Narrow ones, and those of few rows, are computed whole, of others strips from the diagonal on."""
    monkeypatch.setattr(maths, "STRIP", 4)
    monkeypatch.setattr(maths, "FEW_ROWS", 9)
    whole = torch.randn(rows, groups, size, 3, dtype=torch.float64).permute(0, 3, 1, 2)  # (B, P, g, c), as of pictures
    batches = [whole[:, :1], whole[:, 1:]] if rows < 9 else [whole, whole[:, :1]]
    expected = sum(torch.einsum("bpgi,bpgj->gij", x, x) for x in batches)
    torch.testing.assert_close(maths.sum_of_outer_products(batches), expected)


@pytest.mark.parametrize("huge_first", [True, False])
def test_products_of_two_precisions_are_added_in_the_wider_one(huge_first):
    few, huge = torch.randn(5, 1, 1, 3), 1e20 * torch.randn(5, 1, 1, 3)
    batches = [huge, few] if huge_first else [few, huge]
    expected = sum(torch.einsum("bpgi,bpgj->gij", x, x) for x in (few.double(), huge.double()))
    torch.testing.assert_close(maths.sum_of_outer_products(batches), expected)


def test_a_block_s_gradients_are_not_copied(monkeypatch):
    """All signals and samples of a block lie in memory as the product made them."""
    products, summed = [], []
    make, add_up = maths._products, maths._squares_summed
    monkeypatch.setattr(maths, "_products", lambda g, x: products.append(make(g, x)) or products[-1])
    monkeypatch.setattr(maths, "_squares_summed", lambda rows, **ours: summed.append(rows) or add_up(rows, **ours))
    maths._squares_of_products(torch.randn(4, 3, 7, 1, 5), torch.randn(3, 7, 1, 6))
    assert products[0].data_ptr() == summed[0].data_ptr()


def test_an_estimation_inside_autocast_is_in_float32():
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 5, 3), torch.nn.Flatten(), torch.nn.Linear(20, 4))
    batches = batches_of(torch.randn(6, 2, 4, 4))
    expected = consolidate(model, batches, layers="all", fisher="exact")
    with torch.autocast("cpu", dtype=torch.float16):
        found = consolidate(model, batches, layers="all", fisher="exact")
    for name, importance in expected.importances.items():
        assert torch.equal(found.importances[name], importance)


def test_masked_outputs_take_no_part():
    """Units an incremental head has masked with −1000 have no probability and add nothing, also to the exact Fisher."""
    model, x = CASES["mlp"].model(), CASES["mlp"].inputs()

    class Masked(torch.nn.Module):
        def __init__(self, inner, masked):
            super().__init__()
            self.inner, self.masked = inner, masked

        def forward(self, x):
            return self.inner(x).masked_fill(torch.tensor([False, False, False, self.masked]), -1000.0)

    cut = CASES["mlp"].model()
    cut[4] = torch.nn.Linear(7, 3).double()
    with torch.no_grad():
        cut[4].weight.copy_(model[4].weight[:3])
        cut[4].bias.copy_(model[4].bias[:3])
    masked = consolidate(Masked(model, True), batches_of(x), layers="none", fisher="exact")
    small = consolidate(cut, batches_of(x), layers="none", fisher="exact")
    torch.testing.assert_close(masked.importances["inner.0.weight"], small.importances["0.weight"])
    assert masked.importances["inner.4.weight"][3].abs().max() == 0
    assert masked.importances["inner.4.weight"][:3].abs().max() > 0


def test_state_is_left_as_it_was():
    """Modes, requires_grad, gradients and the global generators survive an estimation."""
    model, x = CASES["norms"].model(), CASES["norms"].inputs()
    model.train()
    model.batch.eval()
    model.conv.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    modes = [m.training for m in model.modules()]
    statistics = model.batch.running_mean.clone()
    state = torch.get_rng_state()
    consolidate(model, batches_of(x), layers=["head"], fisher="sampled")
    assert [m.training for m in model.modules()] == modes
    assert not model.conv.weight.requires_grad
    assert model.head.bias.requires_grad
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert model.conv.weight.grad is None
    assert torch.equal(model.batch.running_mean, statistics)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("name", ["mlp", "conv2d-groups", "tokens"])
@pytest.mark.parametrize("fisher", ["sampled", "exact"])
def test_budgets_of_memory_do_not_change_the_result(name, fisher, monkeypatch):
    """Parts of batches, and a second look at what could not be kept, give the same; labels are drawn per part."""
    case = CASES[name]
    model, x = case.model(), case.inputs()
    module = sys.modules[consolidate.__module__]

    def estimated():
        return consolidate(model, batches_of(x, size=1), fisher=fisher, generator=torch.Generator().manual_seed(0))

    expected = estimated()
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    again = estimated()
    for parameter, importance in expected.importances.items():
        torch.testing.assert_close(again.importances[parameter], importance, rtol=0, atol=0)
    monkeypatch.setattr(module, "ACTIVATION_BYTES", 1)
    whole = consolidate(model, batches_of(x, size=len(x)), fisher=fisher, generator=torch.Generator().manual_seed(0))
    for parameter, importance in expected.importances.items():
        assert_close(whole.importances[parameter], importance, case, parameter)


def test_no_part_of_a_batch_lives_beside_the_next(monkeypatch):
    """Else memory would be needed for two of them."""
    alive = []
    module = sys.modules[consolidate.__module__]
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    monkeypatch.setattr(module, "ACTIVATION_BYTES", 1)

    def count(*_):
        alive.append(sum(type(o) is torch.Tensor and o.shape == (1, 2, 37) for o in gc.get_objects()))

    model = torch.nn.Sequential(torch.nn.Linear(5, 37), torch.nn.Linear(37, 37), torch.nn.Linear(37, 3))
    model.register_forward_pre_hook(count)
    model = torch.nn.Sequential(model, torch.nn.Flatten(), torch.nn.Linear(6, 3))  # two tokens of a sample
    gc.collect()
    consolidate(model, batches_of(torch.randn(6, 2, 5), size=6))
    assert len(alive) > 2 * 6
    assert max(alive) == 0


def test_what_is_kept_for_the_second_look_is_counted(monkeypatch):
    """Samples that no watched layer sees are not kept at all; those that gradients have to come from, counted."""
    module = sys.modules[consolidate.__module__]
    kept = []
    original = module._Estimation._pass

    def passed(self, **options):
        yield from original(self, **options)
        kept.append(self._kept)

    monkeypatch.setattr(module._Estimation, "_pass", passed)
    x = torch.randn(4, 3, 30, 30)
    frozen = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    frozen.requires_grad_(False)
    model = torch.nn.Sequential(frozen, torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    consolidate(model, batches_of(x))
    assert kept[0] is not None
    assert all(seen.args == () for seen in kept[0])

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = model, torch.nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.inner(x) * self.scale  # no layer: its gradient takes the whole model

    monkeypatch.setattr(module, "KEPT_BYTES", 4 * x.numel() - 1)
    kept.clear()
    consolidate(Scaled(), batches_of(x))
    assert kept[0] is None


def test_gradients_of_many_outputs_are_divided(monkeypatch):
    """By what a layer puts out, not by what it takes in: a first convolution makes many channels of few."""
    seen = []
    squared = maths.squared_gradients
    monkeypatch.setattr(maths, "squared_gradients", lambda m, c, g, r: seen.append(g[0].numel()) or squared(m, c, g, r))
    wide = torch.nn.Sequential(torch.nn.Conv2d(1, 50, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    model = torch.nn.Sequential(wide, torch.nn.Linear(50, 8))
    each = 50 * 6 * 6  # of a sample's gradient for one signal
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 4 * 3 * each)
    consolidate(model, batches_of(torch.randn(5, 1, 6, 6), size=5), fisher="exact")
    assert 0 < max(seen) <= 3 * each


def test_as_many_samples_at_once_as_fit():
    model = torch.nn.Sequential(torch.nn.Linear(10, 1000), torch.nn.Sigmoid(), torch.nn.Linear(1000, 3))
    x = torch.randn(64, 10)
    each = 4 * (10 + 1000)  # the first layer keeps its input, the sigmoid its output, which the last layer keeps, too
    assert samples_within(7 * each + 1, model, (x, "passed on")[:1]) == 7
    assert samples_within(1, model, (x,)) == 1, "one at least"


def test_classes_without_probability_cost_no_signal():
    """What is left out of the exact Fisher is at most the share of the trace that is said."""
    g = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(30, 50, generator=g, dtype=torch.float64)
    p = logits.softmax(-1)
    whole = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)  # Σ_c p_c (e_c − p)(e_c − p)ᵀ
    signals = exact_signals(logits)
    found = torch.einsum("sbi,sbj->bij", signals, signals)
    assert len(signals) < 50
    left_out = (whole - found).diagonal(dim1=1, dim2=2)
    assert (left_out >= -1e-12).all()
    assert left_out.sum() <= NEGLIGIBLE * whole.diagonal(dim1=1, dim2=2).sum()
    uniform = exact_signals(torch.zeros(2, 5))
    assert len(uniform) == 4, "nothing is negligible"


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_one_signal_less_than_classes_is_the_whole_fisher(classes, scale, monkeypatch):
    monkeypatch.setattr(sys.modules[exact_signals.__module__], "NEGLIGIBLE", 0.0)
    g = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(6, classes, generator=g, dtype=torch.float64)
    p = logits.softmax(-1)
    signals = exact_signals(logits)
    assert len(signals) == max(1, classes - 1)
    whole = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    torch.testing.assert_close(torch.einsum("sbi,sbj->bij", signals, signals), whole)
