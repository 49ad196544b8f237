"""`nn.MultiheadAttention` in closed form, and the forms of it that go the general way: the oracle's numbers for all."""

import pytest
import torch
from torch import nn

from avalanche_rewc.core import consolidate, gradients
from avalanche_rewc.core.plan import make_plan
from tests import oracle

WIDTH, TOKENS = 4, 3
PROJECTIONS = frozenset({"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"})
NONE: frozenset[str] = frozenset()


class Attending(nn.Module):
    """Self-attention over tokens (B, 3, 4); subclasses say what is different."""

    batch_first = True
    options = ()
    closed = PROJECTIONS

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(
            WIDTH, 2, dropout=0.1, batch_first=self.batch_first, **dict(self.options)
        )
        self.head = nn.Linear(WIDTH, 3)
        for name, bias in self.attention.named_parameters():
            if "bias" in name:
                nn.init.normal_(bias)  # zero at first, which would hide a mistake
        self.prepare()
        self.double().eval()

    def prepare(self):
        pass

    def attend(self, x):
        return self.attention(x, x, x, need_weights=False)[0]

    def forward(self, x):
        return self.head(torch.tanh(self.attend(torch.tanh(self.before(x)))).mean(1))


class WithWeights(Attending):
    """The default, which takes another path through torch and answers with what was looked at."""

    def attend(self, x):
        return self.attention(x, x, x)[0]


class SequenceFirst(Attending):
    batch_first = False

    def attend(self, x):
        return super().attend(x.transpose(0, 1)).transpose(0, 1)


class Cross(Attending):
    """Other tokens than its own, of another number; given by name and out of order."""

    def attend(self, x):
        seen = torch.cat([x.flip(1), x.square()], 1)
        return self.attention(value=seen.sin(), key=seen, query=x)[0]


class CrossSequenceFirst(Attending):
    batch_first = False

    def attend(self, x):
        x = x.transpose(0, 1)
        seen = torch.cat([x.flip(0), x.square()], 0)
        return self.attention(x, seen, seen.sin(), need_weights=False)[0].transpose(0, 1)


class OtherWidths(Attending):
    options = (("kdim", 5), ("vdim", 2))
    closed = PROJECTIONS - {"in_proj_weight"} | {"q_proj_weight", "k_proj_weight", "v_proj_weight"}

    def attend(self, x):
        return self.attention(x, torch.cat([x, x[..., :1].square()], -1), x[..., 1:3])[0]


class WithoutBias(Attending):
    options = (("bias", False),)
    closed = frozenset({"in_proj_weight", "out_proj.weight"})


class Padded(Attending):
    """Tokens that are not looked at, other ones in each sample."""

    def attend(self, x):
        return self.attention(x, x, x, key_padding_mask=x[..., 0] < x[..., 0].amin(1, keepdim=True) + 1e-9)[0]


class PaddedSequenceFirst(Attending):
    batch_first = False

    def attend(self, x):
        padding = x[..., 0] == x[..., 0].amax(1, keepdim=True)
        x = x.transpose(0, 1)
        return self.attention(x, x, x, padding.double() * -2.0, need_weights=False)[0].transpose(0, 1)


class Masked(Attending):
    """Scores of pairs of tokens, the same for all samples, and padding beside them."""

    def attend(self, x):
        mask = torch.eye(TOKENS, dtype=torch.bool).roll(1, 0)
        return self.attention(x, x, x, attn_mask=mask, key_padding_mask=x[..., 0] == x[..., 0].amax(1, keepdim=True))[0]


class MaskedByHead(Attending):
    """Scores of their own for every sample and head."""

    def attend(self, x):
        mask = torch.stack([x @ x.mT, -x @ x.mT], 1).flatten(0, 1).detach()
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Causal(Attending):
    def attend(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=x.dtype)
        return self.attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


class SeesNothing(Attending):
    """Tokens that may look at none, in every sample: torch's fused attention gives zeros and not NaN."""

    def attend(self, x):
        mask = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
        mask[1] = True
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Twice(Attending):
    """The second time with fewer tokens."""

    def attend(self, x):
        return super().attend(torch.tanh(super().attend(x))[:, 1:])


class FrozenInput(Attending):
    closed = PROJECTIONS - {"in_proj_weight", "in_proj_bias"}

    def prepare(self):
        self.attention.in_proj_weight.requires_grad_(False)
        self.attention.in_proj_bias.requires_grad_(False)


class Tied(Attending):
    """The weight of the output projection is that of another layer, too."""

    closed = PROJECTIONS - {"out_proj.weight"}

    def prepare(self):
        self.before.weight = self.attention.out_proj.weight


class CalledToo(Attending):
    """The output projection is also called as a layer."""

    closed = PROJECTIONS - {"out_proj.weight", "out_proj.bias"}

    def attend(self, x):
        return super().attend(self.attention.out_proj(x))


class LooksCount(Attending):
    """What was looked at has a part in the logits, and what comes back from there is not in the output's gradient."""

    closed = frozenset({"out_proj.weight", "out_proj.bias"})

    def attend(self, x):
        y, looks = self.attention(x, x, x)
        return y + looks @ x


class MoreKeys(Attending):
    options = (("add_bias_kv", True),)
    closed = NONE


class ZeroKey(Attending):
    options = (("add_zero_attn", True),)
    closed = NONE


class Unbatched(Attending):
    closed = NONE

    def attend(self, x):
        return torch.stack([super(Unbatched, self).attend(one) for one in x])


class Folded(Attending):
    """Windows in the batch dimension."""

    closed = NONE

    def attend(self, x):
        windows = torch.cat([x, x.square()], 1).reshape(2 * len(x), TOKENS, WIDTH)
        return super().attend(windows).reshape(len(x), 2 * TOKENS, WIDTH)


class OwnArguments(Attending):
    closed = NONE

    class Own(nn.MultiheadAttention):
        def forward(self, tokens):
            return super().forward(tokens, tokens, tokens)

    def prepare(self):
        self.attention.__class__ = self.Own

    def attend(self, x):
        return self.attention(tokens=x)[0]


class OwnScale(Attending):
    """A subclass that computes something else."""

    closed = NONE

    class Own(nn.MultiheadAttention):
        def forward(self, query, key, value, **options):
            return 2 * super().forward(query, key, value, **options)[0], None

    def prepare(self):
        self.attention.__class__ = self.Own


KINDS = [
    *(WithWeights, SequenceFirst, Cross, CrossSequenceFirst, OtherWidths, WithoutBias, Padded, PaddedSequenceFirst),
    *(
        Attending,
        Masked,
        MaskedByHead,
        Causal,
        Twice,
        FrozenInput,
        Tied,
        CalledToo,
        LooksCount,
        MoreKeys,
        ZeroKey,
    ),
    *(Unbatched, Folded, OwnArguments, OwnScale),
]


def tokens(samples=5):
    return torch.randn(samples, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def assert_oracle(model, x, memory):
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
    assert set(memory.importances) == set(expected)
    for name, importance in memory.importances.items():
        atol = 1e-9 * float(expected[name].max()) + 1e-15
        torch.testing.assert_close(importance, expected[name], rtol=1e-6, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.filterwarnings("ignore:per-sample gradients of")
@pytest.mark.parametrize("kind", KINDS)
def test_attention(kind):
    model, x = kind(), tokens()
    plan = make_plan(model, (x,), "all")
    assert {name.removeprefix("attention.") for name in plan.closed if "attention" in name} == kind.closed
    assert "attention.out_proj" not in plan.rotated
    memory = consolidate(model, lambda: [((x[:3],), None), ((x[3:],), None)], layers="all", fisher="exact")
    assert_oracle(model, x, memory)


def test_tokens_that_see_nothing():
    """One sample at a time by autograd: the oracle's `torch.func` gives NaN here, which torch itself does not."""
    model, x = SeesNothing(), tokens()
    memory = consolidate(model, lambda: [((x,), None)], layers="none", fisher="exact")
    expected = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for one in x:
        scores = model(one[None]).log_softmax(-1)[0]
        for score in scores:
            found = torch.autograd.grad(score, list(model.parameters()), retain_graph=True)
            for total, gradient in zip(expected.values(), found, strict=True):
                total += score.detach().exp() * gradient.square() / len(x)
    for name, importance in memory.importances.items():
        torch.testing.assert_close(importance, expected[name])


@pytest.mark.parametrize("kind", [Attending, Twice, MaskedByHead, PaddedSequenceFirst])
@pytest.mark.parametrize("budget", [1, 4000])
def test_attention_in_parts(kind, budget, monkeypatch):
    """One sample and signal at a time, or several."""
    monkeypatch.setattr(gradients, "CHUNK_BYTES", budget)
    model, x = kind(), tokens()
    assert_oracle(model, x, consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact"))


class Token(nn.Module):
    """A class token and position embedding; subclasses use them in other ways."""

    copied = frozenset({"token", "position"})

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 4, WIDTH))
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.double().eval()

    def tokens(self, x):
        return torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1) + self.position

    def forward(self, x):
        x = self.tokens(x)
        return self.head((x * (x @ x.mT).softmax(-1).sum(-1, keepdim=True).sin()).mean(1))


class Repeated(Token):
    copied = frozenset({"position"})

    def tokens(self, x):
        return torch.cat([self.token.repeat(len(x), 1, 1), self.embed(x)], 1) + self.position


class FirstOnly(Token):
    copied = frozenset({"token"})

    def tokens(self, x):
        return torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1) + self.position[0]


class TokensFirst(Token):
    """Copies of the token would be as many tokens; the position embedding is only turned around."""

    copied = frozenset({"position"})

    def tokens(self, x):
        x = torch.cat([self.token.expand(-1, len(x), -1), self.embed(x).transpose(0, 1)])
        return (x + self.position.transpose(0, 1)).transpose(0, 1)


class Weighed(Token):
    """A token that also sets a scale for all samples."""

    copied = frozenset({"position"})

    def tokens(self, x):
        return super().tokens(x) * self.token.square().sum()


class Counted(Token):
    """Copies would change the logits, though no gradient."""

    copied = frozenset({"position"})

    def forward(self, x):
        return super().forward(x) + len(self.token)


class Aside(Token):
    """A token without a part in the logits."""

    copied = frozenset({"position"})

    def tokens(self, x):
        return self.embed(torch.cat([x[:, :1], x], 1)) + self.position


@pytest.mark.filterwarnings("ignore:per-sample gradients of")
@pytest.mark.parametrize("kind", [Token, Repeated, FirstOnly, TokensFirst, Weighed, Counted, Aside])
@pytest.mark.parametrize("budget", [gradients.CHUNK_BYTES, 1])
def test_copies_for_every_sample(kind, budget, monkeypatch):
    monkeypatch.setattr(gradients, "CHUNK_BYTES", budget)
    model, x = kind(), tokens()
    plan = make_plan(model, (x,), "all")
    assert set(plan.copied) == kind.copied
    assert set(plan.general) == {"token", "position"} - kind.copied
    assert_oracle(model, x, consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact"))
    assert make_plan(model, (x[:1],), "all").copied == [], "one sample proves nothing"
