"""From labelled data to an Avalanche benchmark of equal groups of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from avalanche.benchmarks import ClassificationScenario, ClassificationStream
from avalanche.benchmarks.utils import DataAttribute, TaskAwareSupervisedClassificationDataset, TransformGroups
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from torch import Tensor
from torch.utils.data import Dataset

from avalanche_rewc.streams.dataset import LabelledData
from avalanche_rewc.streams.order import equal_groups, hold_out, order_classes

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Source:
    """A data set before it is cut: training and test data, and the names of its classes by original label."""

    name: str
    train: LabelledData
    test: LabelledData
    class_names: Sequence[str]
    train_transform: Transform | None = None
    eval_transform: Transform | None = None


class SplitBenchmark(ClassificationScenario):  # type: ignore[misc]
    """An Avalanche benchmark whose experiences bring equal groups of classes.

    `train_stream`, `test_stream` and, if samples were held out, `valid_stream` go in step: experience k of each has the
    same classes. Classes are renumbered in the order in which they come, so with C classes in T experiences experience
    k has the classes k·C/T … (k+1)·C/T − 1 and a growing head grows by exactly those. It has the attributes of
    Avalanche's own `NCScenario`, so its strategies and metrics work on it.
    """

    train_stream: ClassificationStream
    test_stream: ClassificationStream

    def __init__(
        self,
        data: dict[str, list[Dataset[Any]]],
        streams: dict[str, list[TaskAwareSupervisedClassificationDataset]],
        groups: list[list[int]],
        class_names: list[str],
        class_mapping: list[int],
    ) -> None:
        """See the class and `split`, which makes one."""
        self.data = data
        """The flat data behind each experience, such as the tensors `data["train"][k].inputs` and `.targets`."""
        self.class_names = class_names
        """Names by the numbers used in the streams: `class_names[label]`."""
        self.classes_order_original_ids: list[int] = [c for group in groups for c in group]
        """The data set's own number of every class: `classes_order_original_ids[label]`."""
        self.original_classes_in_exp: list[set[int]] = [set(group) for group in groups]
        self.class_mapping = class_mapping
        """From the data set's own number to the one used in the streams; −1 for classes left out."""
        self.n_classes = len(class_names)
        self.classes_order: list[int] = list(range(self.n_classes))
        """In the streams' numbers; iCaRL wants it."""
        self.n_classes_per_exp: list[int] = [len(group) for group in groups]
        super().__init__(stream_definitions={name: (datasets,) for name, datasets in streams.items()})


def split(
    source: Source,
    *,
    n_experiences: int,
    seed: int | None,
    class_order: Sequence[int] | None,
    validation: float,
    validation_seed: int,
    task_labels: bool,
) -> SplitBenchmark:
    """Cut a data set into a stream of equal groups of classes. The options are those of every stream here.

    Args:
        source: the data.
        n_experiences: T; must divide the number of classes.
        seed: of the order of classes; None: natural order.
        class_order: the order itself, in the data set's own numbers, instead of a seed.
        validation: held out from training data into `valid_stream`: below 1 a share of every class, from 1 on a
            number per class, 0 for no such stream.
        validation_seed: of that draw.
        task_labels: label experiences 0, 1, 2, … for multi-head models, instead of 0 throughout.
    """
    train_labels, test_labels = source.train.targets, source.test.targets
    order = order_classes(torch.unique(train_labels).tolist(), seed, class_order)
    groups = equal_groups(order, n_experiences, source.name)
    if absent := sorted(set(order) - set(test_labels.tolist())):
        raise ValueError(f"{source.name}: class {absent[0]} ({source.class_names[absent[0]]}) has no test sample")

    new_label = torch.full((len(source.class_names),), -1)
    new_label[torch.tensor(order)] = torch.arange(len(order))
    held = hold_out(train_labels, validation, validation_seed, source.name)
    parts: dict[str, tuple[LabelledData, Tensor, str]] = {
        "train": (source.train, ~held, "train"),
        "test": (source.test, torch.ones(len(test_labels), dtype=torch.bool), "eval"),
    }
    if validation:
        parts["valid"] = (source.train, held, "eval")

    data: dict[str, list[Dataset[Any]]] = {name: [] for name in parts}
    streams: dict[str, list[TaskAwareSupervisedClassificationDataset]] = {name: [] for name in parts}
    for name, (whole, mask, transforms) in parts.items():
        for k, group in enumerate(groups):
            indices = torch.nonzero(mask & torch.isin(whole.targets, torch.tensor(group))).flatten()
            labels = new_label[whole.targets[indices]]
            data[name].append(whole.pick(indices, labels))
            task = k if task_labels else 0
            streams[name].append(_for_avalanche(data[name][k], labels, task, source, transforms))
    class_names = [source.class_names[c] for c in order]
    return SplitBenchmark(data, streams, groups, class_names, new_label.tolist())


def _for_avalanche(
    data: Dataset[Any], labels: Tensor, task: int, source: Source, transforms: str
) -> TaskAwareSupervisedClassificationDataset:
    """One experience's samples, flat: one Avalanche layer over the data, without its chain of subsets."""
    groups = None
    if source.train_transform is not None or source.eval_transform is not None:
        groups = TransformGroups({"train": (source.train_transform, None), "eval": (source.eval_transform, None)})
    dataset = TaskAwareSupervisedClassificationDataset(
        [data],
        data_attributes=[
            DataAttribute(labels.tolist(), "targets"),
            DataAttribute(ConstantSequence(task, len(labels)), "targets_task_labels", use_in_getitem=True),
        ],
        transform_groups=groups,
    )
    return dataset.with_transforms(transforms)
