"""How fast the library is beside others: `python -m benchmarks.speed`, and `benchmarks/SPEED.md`, its page."""
