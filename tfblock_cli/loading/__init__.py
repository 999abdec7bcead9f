"""READ: a TOML file, a shipped name, flags and --set -> Experiment; and back to TOML."""

from tfblock_cli.loading.large import Large, whole_number
from tfblock_cli.loading.loader import Loaded, load, load_any, target_experiment
from tfblock_cli.loading.overrides import Flag
from tfblock_cli.loading.shipped import shipped
from tfblock_cli.loading.toml import resolved_toml, sha256, to_toml

__all__ = [
    "Flag",
    "Large",
    "Loaded",
    "load",
    "load_any",
    "resolved_toml",
    "sha256",
    "shipped",
    "target_experiment",
    "to_toml",
    "whole_number",
]
