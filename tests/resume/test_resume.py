"""Everything a strategy consists of comes back; what would not is refused by name."""

import random
import shutil
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import amca_metrics
from avalanche.training import AGEM, DER, Cumulative, Naive, Replay
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.resume import Resumable
from tests.resume.experiment import STRATEGIES, build, digests, draws, experiment
from tests.small_disk import read_only_folder
from tests.tally import report
from tests.toy import Growing, Tensors, blob_stream, blobs, settings


@pytest.mark.parametrize(
    "options",
    [
        *({"name": name} for name in STRATEGIES),
        {"name": "rewc", "optimizer": "adam"},
        {"name": "lwf", "multi_head": True},
        {"name": "rewc-online", "multi_head": True},
        {"name": "rewc", "eval_every": 1},
        {"name": "rewc", "wrapper": "DataParallel"},
        {"name": "rewc-separate", "wrapper": "compile"},
        *({"name": "rewc", "optimizer": name} for name in ("AdamW", "Adagrad", "RMSprop", "groups")),
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_stopped_and_started_again(options, tmp_path):
    """Weights, memories, optimizer, teachers, schedules, metrics, generators: bit for bit."""
    options = {"train_epochs": 1, **options}
    want = experiment(tmp_path / "undisturbed", **options)["numbers"]
    assert experiment(tmp_path / "stopped", stop=1, **options)["trained"] == [0]
    assert experiment(tmp_path / "stopped", stop=2, **options)["trained"] == [1, 2]
    found = experiment(tmp_path / "stopped", **options)
    assert found["trained"] == [3]
    assert found["numbers"] == want
    again = experiment(tmp_path / "stopped", **options)
    assert again == {"numbers": want, "trained": []}


class Counting(Growing):
    """A model with Python state, which torch's own way takes into the state_dict."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_extra_state_of_modules_comes_back(tmp_path):
    for calls in (0, 15):
        model = Counting()
        strategy = Naive(**settings(model, train_epochs=3))
        run = Resumable(strategy, blob_stream(dtype=torch.float32).train_stream[:1], tmp_path)
        assert model.calls == calls
        for experience in run:
            strategy.train(experience)


def test_frozen_parts_stay_frozen(tmp_path):
    def run(stop=None):
        benchmark, strategy = build()
        resumable = Resumable(strategy, benchmark.train_stream, tmp_path)
        for experience in resumable:
            if resumable.finished == stop:
                break
            strategy.train(experience)
            strategy.model.conv.requires_grad_(False)
        return strategy.model.conv.weight

    run(stop=1)
    assert not run(stop=1).requires_grad


class Another(SupervisedPlugin):
    pass


class Softer(Growing):
    def __init__(self, **options):
        super().__init__(**options)
        self.body[1] = nn.Softplus()


class Precise(Growing):
    def __init__(self, **options):
        super().__init__(**options)
        self.body[0].double()


class Frozen(Growing):
    def __init__(self, **options):
        super().__init__(**options)
        self.conv.weight.requires_grad_(False)


def other_stream(per_class=20, lean=0, permuted=False):
    data = blobs(per_class=per_class, dtype=torch.float32)
    data.x = data.x.flip(1) if permuted else data.x
    for index in [i for i, label in enumerate(data.targets) if label == 0][:lean]:
        data.targets[index] = 1
    return nc_benchmark(data, blobs(), n_experiences=3, task_labels=False, fixed_class_order=list(range(6)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ewc_lambda": 31}, "REWCPlugin: options: ewc_lambda is 31 here and 30 in it"),
        ({"mode": "separate"}, "options: mode is 'separate' here and 'last' in it"),
        ({"layers": ["body.0"]}, r"options: layers is \['body.0'\] here and 'all_but_last' in it"),
        ({"train_epochs": 7}, "train_epochs is 7 here and 2 in it"),
        ({"lr": 0.1}, "optimizer: lr is 0.1 here and 0.05 in it"),
        ({"optimizer": torch.optim.Adam}, "optimizer: class is 'Adam' here and 'SGD' in it"),
        ({"hidden": 9}, r"model: body.0.weight is '\(9, 15\) float32' here and '\(8, 15\) float32' in it"),
        ({"model": Softer}, r"modules: body.1 is 'Softplus\(beta=1.0, threshold=20.0\)' here and 'Tanh\(\)' in it"),
        ({"model": Precise}, r"model: body.0.weight is '\(8, 15\) float64' here and '\(8, 15\) float32' in it"),
        ({"model": Frozen}, r"conv.weight is '\(3, 1, 3\) float32, frozen' here and '\(3, 1, 3\) float32' in it"),
        ({"group_lr": 0.5}, r"optimizer: groups\[0\]: lr is 0.5 here and 0.05 in it"),
        ({"seed": 1}, "the seed of torch is 1 here and 0 in it"),
        ({"plugins": [Another()]}, "plug-ins: 1 Another is not in it"),
        ({"criterion": nn.MSELoss()}, "criterion: class is 'MSELoss' here and 'CrossEntropyLoss' in it"),
        ({"criterion": nn.CrossEntropyLoss(label_smoothing=0.1)}, "criterion: label_smoothing is 0.1 here and 0.0 in"),
        ({"evaluator": EvaluationPlugin(loggers=[])}, r"metrics is \[\] here and \['Top1_Acc_Exp'\] in it"),
        ({"strategy": Naive}, "strategy is 'Naive' here and 'REWC' in it"),
        ({"stream": blob_stream(2)}, r"stream: experience 0: classes is \[0, 1, 2\] here and \[0, 1\] in it"),
        ({"stream": other_stream(per_class=7)}, "stream: experience 0: samples is 14 here and 40 in it"),
        ({"stream": other_stream(lean=5)}, "stream: experience 0: hash of its labels is"),
        ({"stream": other_stream(permuted=True)}, "stream: experience 0: some of its samples have other values"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_another_experiment_is_refused(change, message, stored, tmp_path):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=message) as refused:
        make(tmp_path, **change)
    assert "experience-0003.checkpoint is of another experiment" in str(refused.value)
    assert "Use another folder" in str(refused.value)
    assert make(tmp_path)[1].finished == 3, "the checkpoint was changed"


def make(
    folder,
    lr=0.05,
    group_lr=None,
    optimizer=torch.optim.SGD,
    hidden=8,
    model=Growing,
    strategy=REWC,
    stream=None,
    seed=0,
    **options,
):
    torch.manual_seed(seed)
    model = model(hidden=hidden)
    options = {"ewc_lambda": 30, **options} if strategy is REWC else options
    groups = [{"params": list(model.parameters()), "lr": group_lr or lr}]
    made = strategy(**settings(model, optimizer(groups, lr=lr), **options))
    return made, Resumable(made, (stream or blob_stream(dtype=torch.float32)).train_stream, folder)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Checkpoints of an experiment that has ended."""
    folder = tmp_path_factory.mktemp("stored")
    strategy, run = make(folder)
    for experience in run:
        strategy.train(experience)
    return folder


def test_an_experience_counts_when_the_loop_goes_on(tmp_path):
    for _ in range(2):
        strategy, run = make(tmp_path)
        assert run.finished == 0
        for experience in run:
            strategy.train(experience)
            break


class Odd(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.handle = open("/dev/null")  # noqa: SIM115


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda **o: Naive(**o, plugins=[ReplayPlugin(mem_size=10)]), "ReplayPlugin"),
        (lambda **o: Replay(**o), "strategy Replay"),
        (lambda **o: AGEM(**o, patterns_per_exp=5), "strategy AGEM"),
        (lambda **o: DER(**o), "strategy DER"),
        (lambda **o: Cumulative(**o), "strategy Cumulative"),
        (lambda **o: Naive(**o, plugins=[Odd()]), r"Odd.handle is a _io.TextIOWrapper.*give it state_dict\(\)"),
        (lambda **o: Naive(**{**o, "evaluator": EvaluationPlugin(amca_metrics(), loggers=[])}), "AMCA"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_training(make, message, tmp_path):
    model = Growing()
    with pytest.raises(ValueError, match=message):
        Resumable(make(**settings(model)), blob_stream().train_stream, tmp_path)


def test_a_plugin_may_have_its_own_way(tmp_path):
    class Counter(SupervisedPlugin):
        def __init__(self):
            super().__init__()
            self.count, self.handle = 0, object()

        def after_training_exp(self, strategy, **kwargs):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    for k in range(3):
        counter = Counter()
        strategy = Naive(**settings(Growing(), plugins=[counter]))
        run = Resumable(strategy, blob_stream(dtype=torch.float32).train_stream, tmp_path)
        assert counter.count == k
        for experience in run:
            if run.finished > k:
                break
            strategy.train(experience)


def test_a_trained_strategy_is_refused(tmp_path):
    benchmark, strategy = build("naive")
    strategy.train(benchmark.train_stream[0])
    with pytest.raises(ValueError, match="trained already"):
        Resumable(strategy, benchmark.train_stream, tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    benchmark, strategy = build("naive")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        Resumable(strategy, benchmark.train_stream, tmp_path / "file" / "checkpoints")


def test_a_read_only_folder_is_refused_at_once():
    benchmark, strategy = build("naive")
    with read_only_folder() as folder:
        for place in (folder, folder / "checkpoints"):
            with pytest.raises(PermissionError, match=str(folder)):
                Resumable(strategy, benchmark.train_stream, place)
        left = len(list(folder.iterdir()))
    report("runs in a read-only folder", 2, left)


@pytest.mark.parametrize("package", ["avalanche-rewc", "torch", "avalanche-lib", "numpy"])
def test_other_versions_are_refused_unless_asked_for(package, stored, tmp_path, monkeypatch):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    if package == "avalanche-rewc":
        monkeypatch.setattr("avalanche_rewc.resume.resumable.__version__", "99")
    else:
        monkeypatch.setattr(
            "avalanche_rewc.resume.resumable.version", lambda name: "99" if name == package else version(name)
        )
    with pytest.raises(ValueError, match=rf"other versions: {package} is '99' here and .*other_versions=True"):
        make(tmp_path)
    strategy, _ = make(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match=f"{package} is '99' here"):
        assert Resumable(strategy, blob_stream(dtype=torch.float32).train_stream, tmp_path, other_versions=True)


class Holding(SupervisedPlugin):
    def __init__(self, value):
        super().__init__()
        self.value = value


@pytest.mark.parametrize("value", [float("nan"), [torch.ones(3)], {"a": (torch.ones(2), [float("nan")])}], ids=str)
def test_values_that_are_not_equal_to_themselves(value, tmp_path):
    """They are compared all the same, and nothing differs."""
    for finished in (0, 1):
        strategy = Naive(**settings(Growing(), plugins=[Holding(value)]))
        run = Resumable(strategy, blob_stream(dtype=torch.float32).train_stream[:1], tmp_path)
        assert run.finished == finished
        for experience in run:
            strategy.train(experience)


def test_what_turns_out_not_to_be_data_costs_the_checkpoint_only(tmp_path):
    class Late(Holding):
        def after_training_exp(self, strategy, **kwargs):
            self.value = object()

    strategy = Naive(**settings(Growing(), plugins=[Late(None)]))
    run = Resumable(strategy, blob_stream(dtype=torch.float32).train_stream[:2], tmp_path)
    for_one = r"no checkpoint after experience \d: plug-in \S*Late.value is a builtins.object"
    with pytest.warns(RuntimeWarning, match=for_one):
        assert [strategy.train(experience) for experience in run] == [{}, {}]
    assert run.finished == 2


def test_looking_at_samples_draws_nothing(tmp_path):
    """A transform of the user's own draws from every generator, in evaluation too."""

    class Noisy(Tensors):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + sum(draws()), y

    data = blobs(dtype=torch.float32)
    data = Noisy(data.x, data.targets)
    benchmark = nc_benchmark(data, data, n_experiences=3, task_labels=False, fixed_class_order=list(range(6)))
    found = []
    for folder in ("a", "b"):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        Resumable(Naive(**settings(Growing())), benchmark.train_stream, tmp_path / folder)
        found.append(draws())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert found == [draws()] * 2


@pytest.mark.parametrize("name", ["rewc", "naive"])
def test_avalanche_s_own_checkpoints_work_too_once_torch_can_be_pickled(name, tmp_path, monkeypatch):
    """Current torch hides the modules of its optimizers, so that Avalanche can pickle no strategy. Put back, it can,
    and R-EWC is no obstacle."""
    monkeypatch.setattr(torch.optim, "sgd", sys.modules["torch.optim.sgd"], raising=False)
    benchmark, undisturbed = build(name, train_epochs=1)
    undisturbed.train(benchmark.train_stream[0])
    save_checkpoint(undisturbed, tmp_path / "strategy.pkl")
    undisturbed.train(benchmark.train_stream[1])
    resumed, finished = maybe_load_checkpoint(build(name, train_epochs=1)[1], tmp_path / "strategy.pkl")
    assert finished == 1
    resumed.train(benchmark.train_stream[1])
    assert digests(resumed.model.state_dict()) == digests(undisturbed.model.state_dict())
