"""Stage ``train``: every placement, depth, learning rate, warmup and seed is a training run of its own."""

from tfblock_cli.probes.gradflow.training.stage import train

__all__ = ["train"]
