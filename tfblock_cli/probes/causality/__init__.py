"""Does any output see the future? Every cut of a sequence is tried, in every mode that may take another kernel."""

from tfblock_cli.probes.causality.check import run

__all__ = ["run"]
