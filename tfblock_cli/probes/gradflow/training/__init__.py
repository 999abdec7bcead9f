"""Stage ``train``: every placement, depth, learning rate, warmup and seed is a training run of its own."""

from tfblock_cli.probes.gradflow.training.stage import expect_text, train

__all__ = ["expect_text", "train"]
