"""Which norm placement lets gradients through? Same weights, same input, many placements, depths and seeds."""

from tfblock_cli.probes.gradflow.compare import run
from tfblock_cli.probes.gradflow.target import run_module, run_target

__all__ = ["run", "run_module", "run_target"]
