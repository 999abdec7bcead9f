"""Does any output see the future? Every cut of a sequence is tried, in every mode that may take another kernel."""

from tfblock_cli.probes.causality.check import run
from tfblock_cli.probes.causality.target import run_module, run_target

__all__ = ["run", "run_module", "run_target"]
