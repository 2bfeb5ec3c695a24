"""How results look in a terminal."""

import os
from typing import Any


def on_main_process() -> bool:
    """Whether this is the process, of those that torchrun started, that talks."""
    return os.environ.get("RANK", "0") == "0"


def print_results(results: dict[str, Any]) -> None:
    """One line per split, and one about the training."""
    for split in ("valid", "test"):
        if results.get(split):
            print(f"{split:6}" + "  ".join(f"{name} {value:.5g}" for name, value in results[split].items()))
    timing = results["timing"]
    print(
        f"best epoch {results['best_epoch']} of {results['epochs']}, {results['parameters']:,} parameters, "
        f"{timing['seconds']:.1f} s"
    )


def aligned(lines: list[list[str]]) -> str:
    """Cells in columns.

    Example:
        >>> print(aligned([["a", "1"], ["long", "22"]]))
        a     1
        long  22
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
