"""R-EWC beside everything else Avalanche has: heads, task labels, replay, loggers, metrics, other strategies."""

import io

import pytest
import torch
import wandb
from avalanche.evaluation import metrics
from avalanche.logging import CSVLogger, InteractiveLogger, TensorboardLogger, TextLogger, WandBLogger
from avalanche.training import EWC, LwF, Naive, Replay
from avalanche.training.plugins import (
    AGEMPlugin,
    EvaluationPlugin,
    LRSchedulerPlugin,
    LwFPlugin,
    ReplayPlugin,
)
from torch import nn

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.losses import NewClassesBCE
from tests.toy import Growing, MultiHead, accuracies, blob_stream, settings


def picture_stream():
    """Like SplitMNIST: pictures of one channel, five experiences of two classes."""
    return blob_stream(5, classes=10, shape=(1, 16, 16), dtype=torch.float32)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        from avalanche.models import IncrementalClassifier

        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 5), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(True), nn.Flatten()
        )
        self.fc, self.head = nn.Linear(8 * 16, 16), IncrementalClassifier(16)

    def forward(self, x):
        return self.head(torch.relu(self.fc(self.features(x))))


def run(strategy, stream, **kwargs):
    for experience in stream.train_stream:
        strategy.train(experience, **kwargs)
    return accuracies(strategy, stream.test_stream)


@pytest.mark.parametrize("conv_basis", ["channel", "patch"])
@pytest.mark.parametrize("space", ["rotated", "original"])
def test_picture_stream(conv_basis, space):
    model = Pictures()
    strategy = REWC(
        ewc_lambda=10.0,
        conv_basis=conv_basis,
        space=space,
        layers="all",
        **settings(model, torch.optim.Adam(model.parameters(), 1e-3), criterion=NewClassesBCE()),
    )
    found = run(strategy, picture_stream())
    assert len(found) == 5
    rotated = [e.parameter for e in strategy.rewc.entries if e.treatment == "rotated"]
    assert len(rotated) == 4


@pytest.mark.parametrize("mode", [{}, {"mode": "separate"}, {"mode": "online", "decay_factor": 0.9}])
def test_multi_head_with_task_labels(mode):
    stream = blob_stream(3, task_labels=True, dtype=torch.float32)
    strategy = REWC(ewc_lambda=100.0, layers="all", **settings(MultiHead(), train_epochs=10), **mode)
    found = run(strategy, stream)
    assert min(found) > 0.8  # each head with its own two classes
    names = {e.parameter for e in strategy.rewc.entries}
    assert {f"heads.classifiers.{t}.classifier.weight" for t in range(3)} <= names


@pytest.mark.parametrize(
    "plugin",
    [
        lambda: ReplayPlugin(mem_size=30),
        lambda: LwFPlugin(alpha=1.0),
        lambda: AGEMPlugin(patterns_per_experience=10, sample_size=10),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_beside_other_plugins(plugin, first):
    stream = blob_stream(3, dtype=torch.float32)
    rewc = REWCPlugin(5.0, layers="all")
    plugins = [rewc, plugin()] if first else [plugin(), rewc]
    found = run(Naive(**settings(Growing(), train_epochs=6), plugins=plugins), stream)
    assert found[-1] > 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda **kwargs: LwF(alpha=1.0, temperature=2.0, **kwargs),
        lambda **kwargs: Replay(**kwargs),
    ],
)
def test_in_any_strategy(make):
    stream = blob_stream(3, dtype=torch.float32)
    strategy = make(**settings(Growing()), plugins=[REWCPlugin(1.0)])
    assert run(strategy, stream)[-1] > 0.3


def test_beside_another_regulariser_only_in_original_space():
    """Avalanche's EWC compares parameters by name with copies of them: rotated ones would be strangers to it."""
    stream = blob_stream(3, dtype=torch.float32)
    with pytest.raises(ValueError, match=r'EWCPlugin compares weights.*space="original"'):
        run(EWC(ewc_lambda=0.1, **settings(Growing()), plugins=[REWCPlugin(1.0)]), stream)
    strategy = EWC(ewc_lambda=0.1, **settings(Growing()), plugins=[REWCPlugin(1.0, space="original")])
    assert len(run(strategy, stream)) == 3
    with pytest.raises(ValueError, match="two R-EWC plug-ins"):
        run(REWC(ewc_lambda=1.0, **settings(Growing()), plugins=[REWCPlugin(1.0)]), stream)


@pytest.mark.parametrize("kind", ["epoch", "iteration"])
def test_periodic_evaluation(kind):
    stream = blob_stream(3, dtype=torch.float32)
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(Growing(), eval_every=1), peval_mode=kind)
    assert run(strategy, stream, eval_streams=[stream.test_stream])[-1] > 0.5


def test_learning_rate_schedule_sees_its_optimizer():
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = LRSchedulerPlugin(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), reset_lr=True)
    strategy = REWC(ewc_lambda=1.0, **settings(model, optimizer), plugins=[schedule])
    run(strategy, blob_stream(3, dtype=torch.float32))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 if schedule.reset_lr else 0.025)


def test_every_logger_and_metric(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    # Avalanche 0.6.0 looks for a class where wandb had it until 0.20
    monkeypatch.setattr(wandb, "viz", wandb.plot.custom_chart, raising=False)
    text = io.StringIO()
    evaluator = EvaluationPlugin(
        metrics.accuracy_metrics(minibatch=True, epoch=True, epoch_running=True, experience=True, stream=True),
        metrics.loss_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        metrics.forgetting_metrics(experience=True, stream=True),
        metrics.bwt_metrics(experience=True, stream=True),
        metrics.forward_transfer_metrics(experience=True, stream=True),
        metrics.timing_metrics(minibatch=True, epoch=True, experience=True, stream=True),
        metrics.confusion_matrix_metrics(num_classes=6, stream=True, save_image=False),
        metrics.class_accuracy_metrics(experience=True, stream=True),
        metrics.amca_metrics(),
        metrics.labels_repartition_metrics(on_train=True, on_eval=True, image_creator=None),
        metrics.mean_scores_metrics(on_train=True, on_eval=True, image_creator=None),
        metrics.topk_acc_metrics(top_k=2, experience=True, stream=True),
        metrics.MAC_metrics(minibatch=True),
        metrics.cpu_usage_metrics(experience=True),
        metrics.ram_usage_metrics(every=0.2, experience=True),
        metrics.disk_usage_metrics(paths_to_monitor=str(tmp_path), experience=True),
        loggers=[
            InteractiveLogger(),
            TextLogger(text),
            CSVLogger(str(tmp_path / "csv")),
            TensorboardLogger(str(tmp_path / "tensorboard")),
            # without an id of ours Avalanche asks wandb for a function that it no longer has
            WandBLogger(project_name="test", run_name="test", dir=str(tmp_path), params={"id": "test"}),
        ],
    )
    model = Growing()
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(model, evaluator=evaluator, eval_every=0))
    stream = blob_stream(3, dtype=torch.float32)
    macs = []

    class Look:
        def after_training_epoch(self, strategy, **kwargs):
            last = strategy.evaluator.get_last_metrics()
            macs.append(next(v for k, v in last.items() if k.startswith("MAC_MB")))

    strategy.plugins.append(Look())
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream])
        strategy.eval(stream.test_stream)
    assert "Top1_Acc_Stream" in text.getvalue()
    assert (tmp_path / "csv" / "eval_results.csv").read_text().count("\n") > 3
    assert any((tmp_path / "tensorboard").iterdir())
    # The metric goes by class names; a rotated layer keeps its own, so nothing is missed from experience 2 on.
    assert macs[0] > 0
    assert macs[-1] >= macs[0]


def test_workers_load_the_samples():
    stream = blob_stream(2, dtype=torch.float32)
    strategy = REWC(ewc_lambda=1.0, **settings(Growing()))
    assert run(strategy, stream, num_workers=1)[-1] > 0.5
