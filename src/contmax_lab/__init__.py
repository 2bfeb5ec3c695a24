"""The laboratory: benchmarks, and later data, training and reports, on the public API of contmax."""
