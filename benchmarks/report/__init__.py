"""Tables, figures and a page from result files alone: `python -m benchmarks.report`."""
