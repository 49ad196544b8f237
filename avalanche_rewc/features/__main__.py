"""The command `python -m avalanche_rewc.features`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from avalanche_rewc.features.extraction import extract
from avalanche_rewc.features.extractor import FeatureExtractor
from avalanche_rewc.features.sets import open_set
from avalanche_rewc.streams.feature_file import KINDS, load_features
from avalanche_rewc.streams.features import FILE_NAMES
from avalanche_rewc.streams.root import resolve_data_root


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main_parser = argparse.ArgumentParser(
        prog="python -m avalanche_rewc.features", description="VGG-16 features of picture sets, as the paper used them."
    )
    commands = main_parser.add_subparsers(dest="command", required=True)

    make = commands.add_parser(
        "extract",
        help="extract features of a set into a feature file",
        description="Extract VGG-16 features of a set into a feature file. CIFAR-100: pool5 of the 32×32 pictures. "
        "CUB-200 (box crops) and Stanford-40 (centre crops): conv5_3 after ReLU, global max pool, at 224×224. An "
        "interrupted run goes on where it stopped: give the same command again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    make.add_argument("--set", required=True, choices=sorted(KINDS), help="the picture set")
    make.add_argument(
        "--data-root", type=Path, help="folder of all data sets; if not given, the variable REWC_DATA, else ./data"
    )
    make.add_argument("--out", type=Path, help="file to write; if not given, where the set's stream looks for it")
    make.add_argument(
        "--weights", default="imagenet", help="'imagenet' for torchvision's, or a local .npz or .pth file"
    )
    make.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps, …")
    make.add_argument("--batch-size", type=_positive, default=32, help="pictures per step")
    make.add_argument("--workers", type=int, default=0, help="processes that decode pictures; 0: none but this one")
    make.add_argument("--restart", action="store_true", help="throw away what an interrupted run left")
    make.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    make.add_argument("--quiet", action="store_true", help="no progress bar")

    show = commands.add_parser("show", help="say what is in a feature file and what made it")
    show.add_argument("file", type=Path)
    return main_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors that a user can mend end it with one line."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "show":
            _show(options.file)
        else:
            _extract(options)
    except (OSError, ValueError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: give the same command again to go on\n")
        return 130
    return 0


def _extract(options: argparse.Namespace) -> None:
    out = options.out or resolve_data_root(options.data_root) / "features" / FILE_NAMES[options.set]
    inputs = open_set(options.set, options.data_root)
    extractor = FeatureExtractor(inputs.kind, options.weights)
    extract(
        inputs,
        extractor,
        out,
        batch_size=options.batch_size,
        device=options.device,
        num_workers=options.workers,
        restart=options.restart,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
    sys.stdout.write(f"{len(inputs.labels):,} features in {out}\n")


def _show(file: Path) -> None:
    content = load_features(file)
    lines = [
        f"{file}: {len(content.features):,} rows of {content.features.shape[1]} numbers, "
        f"{int(content.train.sum()):,} to train, {int((~content.train).sum()):,} to test"
    ]
    if content.metadata is None:
        lines.append("it does not say what made it")
    else:
        shown = {key: value for key, value in content.metadata.items() if key != "class_names"}
        lines.append(json.dumps(shown, indent=2, ensure_ascii=False))
    sys.stdout.write("\n".join(lines) + "\n")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
