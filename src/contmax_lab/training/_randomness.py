"""Randomness without a memory: a resumed training draws what the uninterrupted one would have drawn."""

import hashlib

import torch


def seed_for(*path: int | str) -> int:
    """A seed in [0, 2⁶³) that depends on all the parts, e.g. seed, step and process.

    Example:
        >>> seed_for(0, "step", 1) == seed_for(0, "step", 1), seed_for(0, "step", 1) == seed_for(0, "step", 2)
        (True, False)
    """
    text = "/".join(str(part) for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed the generators that a model on this device draws from.

    ``torch.manual_seed`` would do, were it not for the millisecond it takes to remember the seed for GPUs not in use.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def generator_for(*path: int | str) -> torch.Generator:
    """A generator of torch, on the CPU, with that seed."""
    return torch.Generator().manual_seed(seed_for(*path))
