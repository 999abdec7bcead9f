"""One result per command, written by hand: numbers that a reader of the golden screens can check."""

import dataclasses
import math
from itertools import product
from typing import Any

from tfblock_cli.results.causality import CausalityData, Control, Leak, ProbeRow
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
)
from tfblock_cli.results.result import Check, Result
from tfblock_cli.results.training import Condition, Training, Trial

EXPERIMENT = {
    "name": "small",
    "model": {
        "d_model": 128,
        "n_layers": 2,
        "vocab_size": 256,
        "max_seq_len": 2048,
        "attention": {"n_heads": 4, "n_kv_heads": 4, "d_head": 32},
        "ffn": {"kind": "swiglu", "d_ff": 512},
    },
}


def params_result(*, verified: Verification | None = None) -> Result[ParamsData]:
    total = 557_696
    components = [
        ("embedding", 32_768, "V D", None),
        ("attention", 131_072, "L (D (H + 2 K) E + H E D)", None),
        ("ffn", 393_216, "3 L D F", None),
        ("norms", 512, "2 L D", None),
        ("final_norm", 128, "D", None),
        ("head", 0, "V D", "embedding"),
    ]
    return Result(
        command="params",
        experiment=EXPERIMENT,
        warnings=("d_ff = 512 stands in the file and does not follow --d 128",),
        checks=()
        if verified is None
        else (
            Check(
                name="account_equals_model",
                subject="",
                passed=not verified.differences,
                value=len(verified.differences),
                op="==",
                limit=0,
                message="The account and the built model differ.",
            ),
        ),
        data=ParamsData(
            total=total,
            total_without_embeddings=total - 32_768,
            total_without_positions=total,
            by_path=total + 32_768,
            active=total,
            components=tuple(
                Component(
                    name=name,
                    count=n,
                    weights=n,
                    biases=0,
                    formula=formula,
                    share=n / total,
                    tied_to=tied_to,
                )
                for name, n, formula, tied_to in components
            ),
            per_layer=(
                LayerGroup(layers="0-1", n=2, attention=65_536, ffn=196_608, norms=256, total=262_400, weights=()),
            ),
            flops=Flops(
                batch_size=1,
                seq_len=16,
                dense=18_087_936,
                visible=17_965_056,
                backward_dense=36_175_872,
                backward_visible=35_930_112,
                train_dense=54_263_808,
                train_visible=53_895_168,
                per_token_dense=1_130_496,
                stages=(
                    StageFlops(
                        name="projections", formula="2 B T L D (2 H + 2 K) E", dense=4_194_304, visible=4_194_304
                    ),
                    StageFlops(name="attention", formula="4 B T T L H E", dense=262_144, visible=139_264),
                    StageFlops(name="ffn", formula="6 B T L D F", dense=12_582_912, visible=12_582_912),
                    StageFlops(name="head", formula="2 B T D V", dense=1_048_576, visible=1_048_576),
                ),
            ),
            memory=Memory(
                dtype="float32",
                bytes_per_element=4,
                weights=4 * total,
                gradients=4 * total,
                adamw=8 * total,
                logits=16_384,
                activations=1_023,
                kv_cache_per_token=2_048,
                kv_cache=4_194_304,
            ),
            verified=verified,
        ),
    )


def _stage(name: str, symbolic: str, shape: tuple[int, ...], dtype: str = "float32", **figures: Any) -> StageRow:
    values: dict[str, Any] = {"mean": -0.0123, "std": 0.998, "absmax": 3.21, "finite": True, "note": ""} | figures
    return StageRow(
        name=name,
        symbolic=tuple(symbolic.split()),
        shape=shape,
        dtype=dtype,
        bytes=4 * math.prod(shape),
        **values,
    )


def forward_result() -> Result[ForwardData]:
    no_numbers: dict[str, Any] = {"mean": None, "std": None, "absmax": None, "finite": None}
    block: list[tuple[str, str, tuple[int, ...], dict[str, Any]]] = [
        ("norms.attention", "B T D", (1, 10, 128), {}),
        ("attention.q", "B H T E", (1, 4, 10, 32), {}),
        ("attention.k", "B K T E", (1, 4, 10, 32), {}),
        ("attention.v", "B K T E", (1, 4, 10, 32), {}),
        ("attention.scores", "B H T S", (1, 4, 10, 10), {"note": "visible entries only"}),
        ("attention.weights", "B H T S", (1, 4, 10, 10), {"mean": 0.1, "std": 0.21, "absmax": 1.0}),
        ("attention.context", "B H T E", (1, 4, 10, 32), {}),
        ("attention.merged", "B T D", (1, 10, 128), {}),
        ("residual.attention", "B T D", (1, 10, 128), {"mean": 1.2e-5, "absmax": 4321.0}),
        ("ffn.gate", "B T F", (1, 10, 512), {}),
        ("ffn.up", "B T F", (1, 10, 512), {}),
        ("residual.ffn", "B T D", (1, 10, 128), {"absmax": math.inf, "finite": False}),
    ]
    stages = [_stage("ids", "B T", (1, 10), "int64", note="token ids", **no_numbers)]
    for layer in (0, 1):
        stages += [_stage(f"blocks.{layer}.{name}", letters, shape, **more) for name, letters, shape, more in block]
    stages += [_stage("final_norm", "B T D", (1, 10, 128)), _stage("logits", "B T V", (1, 10, 256))]
    n = 10
    weights = tuple(tuple((s + 1) / ((t + 1) * (t + 2) / 2) if s <= t else 0.0 for s in range(n)) for t in range(n))
    rows_sum = [
        Check(
            name="attention_rows_sum_to_one",
            subject=f"blocks.{layer}.attention.weights",
            passed=True,
            value=1.2e-7,
            op="<=",
            limit=1e-5,
            message="",
        )
        for layer in (0, 1)
    ]
    return Result(
        command="forward",
        experiment=EXPERIMENT,
        checks=(
            *rows_sum,
            Check(
                name="output_shape",
                subject="logits",
                passed=True,
                value="(1, 10, 256)",
                op="==",
                limit="(1, 10, 256)",
                message="",
            ),
            Check(
                name="finite",
                subject="blocks.1.residual.ffn",
                passed=False,
                value=3,
                op="==",
                limit=0,
                message="3 values of blocks.1.residual.ffn [B, T, D] are not finite; the first is at (0, 2, 17).",
            ),
        ),
        data=ForwardData(
            letters={"B": 1, "T": 10, "S": 10, "D": 128, "H": 4, "K": 4, "E": 32, "F": 512, "V": 256},
            input_shape=(1, 10),
            output_shape=(1, 10, 256),
            stages=tuple(stages),
            head=HeadWeights(layer=0, head=2, weights=weights),
        ),
    )


def _probe(name: str, mode: str, verdict, worst: float | None, message: str, cuts: int = 9) -> ProbeRow:
    return ProbeRow(
        name=name,
        mode=mode,
        seq_len=10,
        dtype="float64",
        verdict=verdict,
        worst=worst,
        forwards=19,
        cuts_tried=cuts,
        cuts_total=9,
        pairs_covered=cuts / 9,
        message=message,
    )


def causality_result() -> Result[CausalityData]:
    leak = "Output 3 changes when the inputs from position 7 on are replaced."
    return Result(
        command="causality",
        experiment=EXPERIMENT,
        checks=(
            Check(
                name="deterministic",
                subject="eval eager",
                passed=True,
                value=0.0,
                op="==",
                limit=0.0,
                message="",
            ),
            Check(
                name="outputs_before_cut_are_equal",
                subject="suffix_cuts, eval eager",
                passed=False,
                value=0.8,
                op="==",
                limit=0.0,
                message=leak,
            ),
            Check(
                name="outputs_after_cut_change",
                subject="suffix_cuts, train",
                passed=None,
                value=None,
                op=">",
                limit=0.0,
                message="The train mode is not deterministic.",
            ),
        ),
        data=CausalityData(
            declared="causal",
            seq_len=10,
            probes=(
                _probe("preflight", "eval eager", "clean", 0.0, "Two equal runs give equal bits."),
                _probe("suffix_cuts", "eval eager", "LEAK", 0.8, leak),
                _probe("suffix_cuts", "eval sdpa", "noise", 2.2e-16, "Differences are of the size of rounding.", 4),
                _probe("suffix_cuts", "train", "inconclusive", None, "The train mode is not deterministic."),
            ),
            leaks=(Leak(probe="suffix_cuts", mode="eval eager", out=3, in_=7, magnitude=0.8, cuts=4, cuts_total=9),),
            not_proven=("lengths other than T = 10", "other weights", "generation with a cache"),
            notes=("weights were redrawn so large that no leak is small",),
            influence=tuple(
                tuple(10.0 ** (j - i) if j <= i else 1e-9 * (j == 7) for j in range(10)) for i in range(10)
            ),
        ),
    )


def self_test_result() -> Result[CausalityData]:
    """One model is caught, one slips through, one is clean."""
    controls = (
        Control(
            name="no mask",
            family="masks",
            probe="suffix_cuts eval",
            wanted="LEAK",
            found="LEAK",
            caught=True,
            worst=0.268,
        ),
        Control(
            name="20 subtracted",
            family="masks",
            probe="suffix_cuts",
            wanted="LEAK",
            found="clean",
            caught=False,
            worst=0.0,
        ),
        Control(
            name="causal mean",
            family="correct",
            probe="every",
            wanted="clean",
            found="clean",
            caught=True,
            worst=2.03e-16,
        ),
    )
    return Result(
        command="causality",
        experiment=EXPERIMENT,
        checks=tuple(
            Check(
                name="control",
                subject=control.name,
                passed=True if control.caught else None,
                value=control.found,
                op="==",
                limit=control.wanted,
                message="",
            )
            for control in controls
        ),
        data=CausalityData(
            declared="of each model its own", seq_len=12, probes=(), leaks=(), not_proven=(), controls=controls
        ),
    )


def gradflow_result() -> Result[GradflowData]:
    """Gradients that shrink by 0.8 (pre) or 0.4 (post) per block; a residual that grows by a half (pre)."""
    shrink, grow = {"pre": 0.8, "post": 0.4}, {"pre": 1.5, "post": 1.0}
    depths, seeds = (6, 12), (0, 1)
    rows, summary = [], []
    for depth in depths:
        for placement in shrink:
            for seed in seeds:
                for layer in range(depth):
                    for group, metric, value in (
                        ("block", "grad_norm", 0.5 * shrink[placement] ** (depth - 1 - layer)),
                        ("residual", "rms", grow[placement] ** (layer + 1)),
                    ):
                        rows.append(
                            Row(
                                placement=placement,
                                seed=seed,
                                depth=depth,
                                stage="init",
                                step=0,
                                layer=layer,
                                group=group,
                                metric=metric,
                                value=value * (1 + 0.1 * seed),
                            )
                        )
            for metric, factor in (
                ("grad.embedding", shrink),
                ("grad.block.last_first", {key: 1 / value for key, value in shrink.items()}),
                ("rms.last", grow),
            ):
                value, ratio = factor[placement] ** depth, (factor[placement] / factor["pre"]) ** depth
                is_baseline = placement == "pre"
                summary.append(
                    Summary(
                        placement=placement,
                        depth=depth,
                        metric=metric,
                        geomean=value,
                        mean=value,
                        low=0.9 * value,
                        high=1.1 * value,
                        ci_low=0.8 * value,
                        ci_high=1.2 * value,
                        ratio=None if is_baseline else ratio,
                        ratio_low=None if is_baseline else 0.95 * ratio,
                        ratio_high=None if is_baseline else 1.05 * ratio,
                        ratio_ci_low=None if is_baseline else 0.85 * ratio,
                        ratio_ci_high=None if is_baseline else 1.15 * ratio,
                    )
                )
    for placement, power in (("pre", -0.5), ("post", 0.0)):
        summary.append(
            Summary(
                placement=placement,
                depth=0,
                metric="slope.grad.down.last",
                geomean=None,
                mean=power,
                low=power - 0.1,
                high=power + 0.1,
                ci_low=power - 0.15,
                ci_high=power + 0.15,
                ratio=None,
                ratio_low=None,
                ratio_high=None,
                ratio_ci_low=None,
                ratio_ci_high=None,
            )
        )
    return Result(
        command="gradflow",
        experiment=EXPERIMENT,
        checks=(
            Check(
                name="guard.cloned_layers",
                subject="",
                passed=True,
                value=0,
                op="==",
                limit=0,
                message="",
            ),
            Check(
                name="grad.block.last_first",
                subject="post, depth 12",
                passed=True,
                value=59_604.6,
                op=">=",
                limit=10.0,
                message="",
            ),
            Check(
                name="rms.last",
                subject="pre, depth 12",
                passed=False,
                value=129.7463,
                op="in",
                limit=(None, 100.0),
                message="The residual stream of pre grows past what the experiment expects.",
            ),
        ),
        data=GradflowData(
            loss="cross_entropy",
            baseline="pre",
            placements=(
                PlacementFacts(
                    placement="pre",
                    formula="x + f(N(x))",
                    norms_per_block=2,
                    final_norm=True,
                    branch_gain=0.894,
                    overrides=(),
                ),
                PlacementFacts(
                    placement="post",
                    formula="N(x + f(x))",
                    norms_per_block=2,
                    final_norm=False,
                    branch_gain=0.447,
                    overrides=("weights of v, out, up, down times 0.5",),
                ),
            ),
            depths=depths,
            seeds=seeds,
            guards=(Guard(name="cloned_layers", placements=(), allowed=False, message=""),),
            forwards=16,
            vjps=8,
            rows=tuple(rows),
            summary=tuple(summary),
        ),
    )


def training_result() -> Result[GradflowData]:
    """The same with training: pre learns, post has collapsed, and one run of it has diverged and one has no end."""
    plain = gradflow_result()
    learned = {"pre": (2.0, "LEARNS", 0.3), "post": (3.9, "COLLAPSED", 0.999)}
    trials, rows = [], []
    for condition, (placement, (loss, verdict, cosine)), seed in product(
        (Condition(12, 3e-4, 0), Condition(12, 1e-3, 100)), learned.items(), (0, 1)
    ):
        diverged = placement == "post" and condition.warmup > 0 and seed == 1
        lost = placement == "post" and condition.warmup == 0 and seed == 1
        steps = 60 if diverged else 100
        for step in () if lost else range(2, steps + 1, 2):
            rows.append(
                Row(
                    placement=placement,
                    seed=seed,
                    depth=12,
                    stage="train",
                    step=step,
                    layer=None,
                    group="model",
                    metric="loss",
                    value=math.nan if diverged and step == steps else loss + 2.5 * 0.95**step + 0.1 * seed,
                    lr=condition.lr,
                    warmup=condition.warmup,
                )
            )
        trials.append(
            Trial(
                placement=placement,
                depth=12,
                lr=condition.lr,
                warmup=condition.warmup,
                seed=seed,
                verdict="" if lost else "DIVERGED" if diverged else verdict,
                held_out_loss=math.nan if lost or diverged else loss + 0.1 * seed,
                cosine=math.nan if lost or diverged else cosine,
                update_ratio=math.nan if lost else 1.2e-3,
                error="its process died" if lost else "",
            )
        )
    training = Training(
        text="markov",
        text_sha256="0" * 64,
        characters=200_000,
        symbols=64,
        unigram_entropy=3.911,
        unigram_loss=3.921,
        bigram_entropy=1.213,
        held_out_characters=2_048,
        optimizer="adamw",
        steps=100,
        batch_size=8,
        seq_len=32,
        margin=0.3,
        trials=tuple(trials),
    )
    check = Check(
        name="train.verdict",
        subject="post, 12 layers, lr 0.001, warmup 100",
        passed=False,
        value="DIVERGED",
        op="in",
        limit="COLLAPSED, STUCK",
        message="1 of 2 seeds as expected; seed 1: DIVERGED",
    )
    data = dataclasses.replace(plain.data, rows=(*plain.data.rows, *rows), training=training)
    return dataclasses.replace(plain, data=data, checks=(*plain.checks, check))


RESULTS: dict[str, Result[Any]] = {
    "params": params_result(verified=Verification(tensors=17, parameters=557_696, differences=())),
    "forward": forward_result(),
    "causality": causality_result(),
    "causality-self-test": self_test_result(),
    "gradflow": gradflow_result(),
    "gradflow-train": training_result(),
}
