"""Models whose causality is known: broken ones, each in one way, and correct ones. ``--self-test`` asks them all."""

from collections.abc import Mapping

from tfblock_cli.probes.causality.zoo.caches import CACHES
from tfblock_cli.probes.causality.zoo.correct import CORRECT
from tfblock_cli.probes.causality.zoo.dead_paths import DEAD_PATHS
from tfblock_cli.probes.causality.zoo.inside_attention import INSIDE_ATTENTION
from tfblock_cli.probes.causality.zoo.lengths_and_batches import LENGTHS_AND_BATCHES
from tfblock_cli.probes.causality.zoo.masks import MASKS
from tfblock_cli.probes.causality.zoo.parts import Specimens
from tfblock_cli.probes.causality.zoo.patterns import PATTERNS
from tfblock_cli.probes.causality.zoo.routing import ROUTING
from tfblock_cli.probes.causality.zoo.time_mixing import TIME_MIXING

BROKEN: Mapping[str, Specimens] = {
    "masks": MASKS,
    "mixing over time": TIME_MIXING,
    "routing": ROUTING,
    "lengths and batches": LENGTHS_AND_BATCHES,
    "dead paths": DEAD_PATHS,
    "patterns": PATTERNS,
    "inside attention": INSIDE_ATTENTION,
    "caches and padding": CACHES,
}
ZOO: Mapping[str, Specimens] = {**BROKEN, "correct": CORRECT}
"""By family."""
