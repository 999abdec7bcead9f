"""Windows, prefixes and documents that are not what was declared."""

from functools import partial

from torch import Tensor

from tfblock_cli.probes.causality.zoo.inside_attention import BaseByLength, KeysOnly, with_tables
from tfblock_cli.probes.causality.zoo.parts import Attention, Net, Specimen, Specimens, leak, of, own, says
from tfblock_cli.probes.causality.zoo.time_mixing import Conv
from tfblock_cli.spec.attention import Causal, Documents, Prefix, SlidingWindow

W = 4
WINDOW = SlidingWindow(window=W)
PREFIX = Prefix(length=4)
PACKED = Documents(lengths=(5, 4))


def in_documents(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Within one document."""
    visible: Tensor = PACKED.allows(q, k)
    return visible


PATTERNS: Specimens = (
    Specimen(
        name="window one key too wide",
        make=partial(own, pattern={"kind": "sliding_window", "window": W + 1}),
        declared=of(WINDOW, WINDOW),
        wanted=(*leak("mask_readout", "gradient_map"), *says("clean", "suffix_cuts")),
    ),
    Specimen(
        name="window one key too wide, as a whole",
        make=lambda: Net(Attention(lambda h, q, k: (k <= q) & (q - k <= W))),
        declared=of(WINDOW),
        wanted=leak("gradient_map"),
    ),
    Specimen(
        name="window one key too narrow",
        make=partial(own, pattern={"kind": "sliding_window", "window": W - 1}),
        declared=of(WINDOW, WINDOW),
        wanted=says("no-flow", "mask_readout", "gradient_map"),
    ),
    Specimen(
        name="window forgotten in one layer",
        make=partial(
            own,
            pattern={"kind": "sliding_window", "window": W},
            layers=[{"at": [1], "attention": {"pattern": "causal"}}],
        ),
        declared=of(WINDOW, WINDOW),
        wanted=leak("mask_readout", "gradient_map"),
    ),
    Specimen(
        name="window to both sides",
        make=lambda: Net(Attention(lambda h, q, k: (q - k).abs() < W)),
        declared=of(WINDOW),
        wanted=leak("suffix_cuts", "gradient_map"),
    ),
    Specimen(
        name="prefix one token too long",
        make=partial(own, pattern={"kind": "prefix", "length": 5}),
        declared=of(PREFIX, PREFIX),
        wanted=leak("suffix_cuts", "gradient_map", "truncation", "mask_readout"),
    ),
    Specimen(
        name="prefix of the whole sequence",
        make=partial(own, pattern="bidirectional"),
        declared=of(PREFIX, PREFIX),
        wanted=leak("suffix_cuts"),
    ),
    Specimen(
        name="prefix that sees no further than itself",
        make=own,
        declared=of(PREFIX, PREFIX),
        wanted=says("no-flow", "gradient_map", "mask_readout"),
    ),
    Specimen(
        name="documents that see each other",
        make=own,
        declared=of(PACKED, PACKED),
        wanted=leak("documents", "gradient_map", "mask_readout"),
    ),
    Specimen(
        name="convolution across documents",
        make=lambda: Net(Attention(in_documents), Conv(3, 2)),
        declared=of(PACKED),
        wanted=leak("documents"),
    ),
    Specimen(
        name="boundary of documents off by one",
        make=partial(own, pattern={"kind": "documents", "lengths": [6, 3]}),
        declared=of(PACKED, PACKED),
        wanted=leak("documents", "mask_readout"),
    ),
    Specimen(
        name="causal only where nothing was declared",
        make=partial(own, pattern="bidirectional"),
        declared=of(Causal(), Causal()),
        wanted=leak("suffix_cuts", "mask_readout"),
    ),
    Specimen(
        name="rope on keys alone, packed",
        make=with_tables(KeysOnly, pattern={"kind": "documents", "lengths": [5, 4]}),
        declared=of(PACKED, PACKED),
        wanted=(*leak("documents"), *says("clean", "suffix_cuts", "mask_readout")),
    ),
    Specimen(
        name="base of rope by length, packed",
        make=with_tables(BaseByLength, pattern={"kind": "documents", "lengths": [5, 4]}),
        declared=of(PACKED, PACKED),
        wanted=(*leak("documents", "truncation"), *says("clean", "suffix_cuts", "mask_readout")),
    ),
)
