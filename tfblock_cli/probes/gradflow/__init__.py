"""Which norm placement lets gradients through? Same weights, same input, many placements, depths and seeds."""

from tfblock_cli.probes.gradflow.compare import run

__all__ = ["run"]
