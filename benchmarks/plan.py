"""From names to a full configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.config import RunConfig
from benchmarks.methods import check_stream, find_method, with_options
from benchmarks.names import UserError, unknown
from benchmarks.streams import find_stream

MAPPINGS = ("model", "stream_options")


def make_config(
    *,
    stream: str = "digits",
    method: str,
    strength: float | None = None,
    n_experiences: int = 2,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunConfig:
    """A run of a method on a stream, with the paper's protocol where `settings` do not say otherwise.

    Raises:
        UserError: a name that is not there, a strength that is missing or has no meaning, a method that cannot run
            with the stream.
    """
    spec = find_stream(stream)
    chosen = with_options(find_method(method), options or {}, spec)
    check_stream(chosen, stream, spec)
    if chosen.strength and strength is None:
        raise UserError(f"method {chosen.name!r} needs a strength ({chosen.strength})")
    if not chosen.strength and strength is not None:
        raise UserError(f"method {chosen.name!r} has no strength, so {strength:g} has no meaning for it")
    values = {**spec.protocol, **settings}
    for name in MAPPINGS:
        values[name] = _merged(stream, name, getattr(spec, name), settings.get(name) or {})
    return RunConfig.from_dict(
        {
            **values,
            "stream": stream,
            "n_experiences": n_experiences,
            "method": chosen.name,
            "strength": None if strength is None else float(strength),
            "seed": seed,
            # Results from before there was a rank keep their names: whole bases are what is not written down.
            "options": {key: value for key, value in chosen.options.items() if (key, value) != ("rank", None)},
        }
    )


def _merged(stream: str, what: str, defaults: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for name in changes:
        if name not in defaults:
            if not defaults:
                raise UserError(f"stream {stream!r} has no settings under {what}, so {name!r} cannot be set")
            raise unknown(f"setting under {what} of stream {stream!r} called", name, defaults)
    return {**defaults, **changes}
