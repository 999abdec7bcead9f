"""A small result of every command, written by hand."""

import math
from datetime import UTC, datetime
from typing import Any

from tfblock_cli.results.causality import CausalityData, Leak, ProbeRow
from tfblock_cli.results.forward import ForwardData, HeadWeights, StageRow
from tfblock_cli.results.gradflow import GradflowData, Guard, PlacementFacts, Row, Summary
from tfblock_cli.results.params import (
    Component,
    Flops,
    LayerGroup,
    Memory,
    ParamsData,
    StageFlops,
    Verification,
    WeightRow,
)
from tfblock_cli.results.result import Check, Result
from tfblock_cli.store.record import Run, make

STARTED_AT = datetime(2026, 11, 29, 17, 42, 5, 999_999, tzinfo=UTC)

PARAMS = ParamsData(
    total=6,
    total_without_embeddings=6,
    total_without_positions=6,
    by_path=6,
    active=6,
    components=(
        Component(name="ffn", count=6, weights=4, biases=2, formula="L (F D + D)", share=1.0, tied_to=None),
        Component(name="head", count=0, weights=0, biases=0, formula="0", share=0.0, tied_to="embedding"),
    ),
    per_layer=(
        LayerGroup(
            layers="0",
            n=1,
            attention=0,
            ffn=6,
            norms=0,
            total=6,
            weights=(WeightRow(name="ffn.up", symbolic=("F", "D"), shape=(2, 2), count=4, formula="F D"),),
        ),
    ),
    flops=Flops(
        batch_size=1,
        seq_len=4,
        dense=32,
        visible=32,
        backward_dense=64,
        backward_visible=64,
        train_dense=96,
        train_visible=96,
        per_token_dense=8,
        stages=(StageFlops(name="ffn.up", formula="2 B T D F", dense=32, visible=32),),
    ),
    memory=Memory(
        dtype="float32",
        bytes_per_element=4,
        weights=24,
        gradients=24,
        adamw=48,
        logits=0,
        activations=64,
        kv_cache_per_token=0,
        kv_cache=0,
    ),
    verified=Verification(tensors=2, parameters=6, differences=()),
)


def stage(**figures: Any) -> StageRow:
    known: dict[str, Any] = {"mean": 0.0, "std": 1.0, "absmax": 2.0, "finite": True, "note": ""}
    shape: dict[str, Any] = {
        "name": "x",
        "symbolic": ("B", "T"),
        "shape": (1, 2),
        "dtype": "float32",
        "bytes": 8,
    }
    return StageRow(**shape, **{**known, **figures})


FORWARD = ForwardData(
    letters={"B": 1, "T": 2},
    input_shape=(1, 2),
    output_shape=(1, 2),
    stages=(
        stage(),
        stage(mean=math.nan, std=math.nan, absmax=math.inf, finite=False),
        stage(mean=None, std=None, absmax=None, finite=None, note="fused, not stored"),
    ),
    head=HeadWeights(layer=0, head=1, weights=((1.0, 0.0), (0.5, math.nan))),
)

CAUSALITY = CausalityData(
    declared="causal",
    seq_len=4,
    probes=(
        ProbeRow(
            name="suffix_cuts",
            mode="eval sdpa",
            seq_len=4,
            dtype="float64",
            verdict="LEAK",
            worst=0.25,
            forwards=4,
            cuts_tried=3,
            cuts_total=3,
            pairs_covered=1.0,
            message="output 0 sees input 1",
        ),
    ),
    leaks=(Leak(probe="suffix_cuts", mode="eval sdpa", out=0, in_=1, magnitude=0.25, cuts=3, cuts_total=3),),
    not_proven=("train mode",),
)

GRADFLOW = GradflowData(
    loss="cross_entropy",
    baseline="pre",
    placements=(
        PlacementFacts(
            placement="pre",
            formula="x + f(N(x))",
            norms_per_block=2,
            final_norm=True,
            branch_gain=0.9,
            overrides=("weights of v times 0.5",),
        ),
    ),
    depths=(6,),
    seeds=(0,),
    guards=(Guard(name="cloned_layers", placements=("pre",), allowed=True, message="alike"),),
    forwards=2,
    vjps=1,
    rows=(
        Row(
            placement="pre",
            seed=0,
            depth=6,
            stage="init",
            step=0,
            layer=None,
            group="embedding",
            metric="grad_norm",
            value=math.inf,
        ),
    ),
    summary=(
        Summary(
            placement="pre",
            depth=6,
            metric="grad.embedding",
            geomean=0.5,
            mean=0.5,
            low=0.25,
            high=1.0,
            ci_low=None,
            ci_high=None,
            ratio=None,
            ratio_low=None,
            ratio_high=None,
            ratio_ci_low=None,
            ratio_ci_high=None,
        ),
    ),
)

DATA = {"params": PARAMS, "forward": FORWARD, "causality": CAUSALITY, "gradflow": GRADFLOW}


def check(passed: bool | None = True) -> Check:
    return Check(name="ratio", subject="pre", passed=passed, value=1.5, op="in", limit=(0.5, 2.0), message="as asked")


def record(
    command: Any = "causality", *checks: Check, run_id: str = "run", argv: tuple[str, ...] = ("tfblock",)
) -> dict[str, Any]:
    result = Result(
        command=command,
        data=DATA[command],
        checks=checks or (check(),),
        warnings=("a warning",),
        experiment={"name": "größe", "model": {"d_model": 8}},
    )
    run = Run(id=run_id, started_at=STARTED_AT, duration_s=0.5, argv=argv, exit_code=0)
    provenance = {
        "experiment_sha256": "3f9c1a2b" * 8,
        "source": "x.toml",
        "tfblock": "0.1.0",
        "python": "3.11.7",
        "torch": None,
        "platform": "Linux",
        "device": "cpu",
        "threads": 1,
        "git": {"sha": "0" * 40, "dirty": False},
    }
    return make(result, run=run, provenance=provenance)
