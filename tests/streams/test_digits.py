"""scikit-learn's digits, whole, and every kind of strategy and metric on them."""

import pytest
import torch
from avalanche.evaluation.metrics import (
    accuracy_metrics,
    bwt_metrics,
    class_accuracy_metrics,
    confusion_matrix_metrics,
    forgetting_metrics,
    forward_transfer_metrics,
    loss_metrics,
)
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import EWC, Cumulative, ICaRL, JointTraining, LwF, Naive, Replay
from sklearn.datasets import load_digits
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.models import FeatureMLP
from avalanche_rewc.streams import SplitDigits
from tests.streams.train import learn


def tensors(benchmark, stream):
    data = benchmark.data[stream]
    return torch.cat([d.inputs for d in data]), torch.cat([d.targets for d in data])


def test_all_1797_digits_are_there_with_their_labels():
    benchmark = SplitDigits(5, validation=0.1)
    parts = [tensors(benchmark, stream) for stream in benchmark.streams]
    inputs, targets = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    assert inputs.shape == (1797, 1, 8, 8)
    assert inputs.dtype == torch.float32
    assert (inputs.min(), inputs.max()) == (0, 1)
    bundled = load_digits()
    ours = sorted((*x.flatten().mul(16).int().tolist(), y) for x, y in zip(inputs, targets.tolist(), strict=True))
    theirs = sorted((*x.astype(int).tolist(), int(y)) for x, y in zip(bundled.data, bundled.target, strict=True))
    assert ours == theirs


def test_the_test_digits_are_always_the_same():
    first, second = SplitDigits(2), SplitDigits(2, validation=0.2, validation_seed=3)
    assert torch.equal(tensors(first, "test")[0], tensors(second, "test")[0])
    assert len(tensors(first, "test")[0]) == 450


def test_training_end_to_end():
    benchmark = SplitDigits(2, validation=0.1)
    torch.manual_seed(0)
    first, last = learn(FeatureMLP(64, (64,)), benchmark.train_stream, benchmark.test_stream, epochs=8, lr=3e-3)
    assert first[0] > 0.9
    assert last[1] > 0.9
    assert last[0] > 0.5


STRATEGIES = [
    (Naive, {}),
    (LwF, {"alpha": 1.0, "temperature": 2.0}),
    (Replay, {"mem_size": 50}),
    (EWC, {"ewc_lambda": 1.0}),
    (Cumulative, {}),
    (JointTraining, {}),
    (REWC, {"ewc_lambda": 1.0, "samples_per_class": 5}),
]


@pytest.mark.parametrize(("strategy_class", "options"), STRATEGIES, ids=[s.__name__ for s, _ in STRATEGIES])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_avalanches_strategies_and_metrics_work_on_every_stream(strategy_class, options):
    benchmark = SplitDigits(5, seed=3, validation=0.1)
    model = FeatureMLP(64, (16,))
    evaluator = EvaluationPlugin(
        accuracy_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        loss_metrics(experience=True, stream=True),
        forgetting_metrics(experience=True, stream=True),
        bwt_metrics(experience=True, stream=True),
        forward_transfer_metrics(experience=True, stream=True),
        class_accuracy_metrics(stream=True),
        confusion_matrix_metrics(stream=True, save_image=True),
        loggers=[],
    )
    strategy = strategy_class(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=64,
        eval_mb_size=500,
        evaluator=evaluator,
        eval_every=1,
        **options,
    )
    if strategy_class is JointTraining:
        strategy.train(benchmark.train_stream)
    else:
        for experience in benchmark.train_stream:
            strategy.train(experience, eval_streams=[benchmark.valid_stream])
    for stream in (benchmark.valid_stream, benchmark.test_stream):
        results = strategy.eval(stream)
        assert 0 <= results[f"Top1_Acc_Stream/eval_phase/{stream.name}_stream/Task000"] <= 1
        assert f"StreamForgetting/eval_phase/{stream.name}_stream" in results
        assert f"ConfusionMatrix_Stream/eval_phase/{stream.name}_stream" in results


def test_an_incremental_head_grows_by_exactly_the_new_classes():
    benchmark = SplitDigits(5, seed=3)
    model = FeatureMLP(64, (16,))
    strategy = Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters()), criterion=nn.CrossEntropyLoss(), evaluator=None,
        train_mb_size=500,
    )  # fmt: skip
    widths = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        widths.append(model.head.classifier.out_features)
    assert widths == [2, 4, 6, 8, 10]


def test_icarl_finds_what_it_needs_on_the_benchmark():
    torch.manual_seed(0)
    benchmark = SplitDigits(5, seed=3)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    head = nn.Sequential(nn.Linear(16, 10), nn.Sigmoid())  # its loss takes probabilities
    strategy = ICaRL(
        feature_extractor=body,
        classifier=head,
        optimizer=torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2),
        memory_size=100,
        buffer_transform=None,
        fixed_memory=True,
        train_mb_size=32,
        train_epochs=4,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    results = strategy.eval(benchmark.test_stream)
    assert results["Top1_Acc_Stream/eval_phase/test_stream/Task000"] > 0.3
