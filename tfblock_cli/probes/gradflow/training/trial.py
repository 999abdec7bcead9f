"""One training run, as a function from plain data to plain data: it can run in any process, on any machine."""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite, nan, sqrt
from typing import Any, assert_never

import torch
import torch.nn.functional as F
from torch import Tensor

from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.modules.initialization import generator
from tfblock_cli.modules.stage import record
from tfblock_cli.probes.float64 import for_float64
from tfblock_cli.probes.gradflow.gradients import euclidean_norms
from tfblock_cli.probes.gradflow.streams import statistics
from tfblock_cli.probes.gradflow.training import text
from tfblock_cli.probes.gradflow.training.outcome import Judged, verdict
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.train import SGD, AdamW, TrainSettings

Plain = dict[str, Any]
POINTS = 50
"""Of the curve of the training loss: each is the mean over as many steps as there are between two points."""


def run(task: Mapping[str, Any], tick: Callable[[], object] = lambda: None) -> Plain:
    """Train the model of one placement, depth, learning rate, warmup and seed.

    The same task gives the same numbers, whatever ran before it. It raises nothing: a run that diverges has a
    verdict, and one that cannot go on says why.

    Args:
        task: ``experiment``, as plain data, whose model is the one to be trained and whose seed is the run's;
            ``lr``; ``warmup``; ``text_sha256``, of the text that is meant.
        tick: Called after every step.

    Returns:
        ``verdict``, ``held_out`` [step, loss, cosine], ``loss`` [step, mean since the point before], ``updates``
        [step, group, layer or None, ratio], ``update_ratio``, ``forwards``, ``vjps``, ``error`` ""; or ``error`` alone.
    """
    try:
        experiment = Experiment.model_validate(task["experiment"])
        before = torch.get_num_threads()
        torch.set_num_threads(experiment.threads)
        try:
            run = _Run(experiment, lr=task["lr"], warmup=task["warmup"])
            if run.text.sha256 != task["text_sha256"]:
                raise ValueError("the text has changed since the run was asked for")
            return run.whole(tick)
        finally:
            torch.set_num_threads(before)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


class _Run:
    """A network, its optimizer and its text.

    Dropout is off, as at initialization: its noise would stand where the placement's effect should.
    """

    def __init__(self, experiment: Experiment, *, lr: float, warmup: int) -> None:
        self.settings = experiment.gradflow.train
        self.lr, self.warmup = lr, warmup
        self.seq_len = experiment.input.seq_len
        self.text = text.read(self.settings.text)
        self.device = torch.device(experiment.device)
        self.random = generator(experiment.seed, "gradflow.train")
        self.decoder = build(experiment)
        self.optimizer = optimizer_of(self.decoder, self.settings)
        self.judged_BT = self.text.judged(self.seq_len).to(self.device)

    def whole(self, tick: Callable[[], object]) -> Plain:
        """Every step; the network is looked at on held-out text at the start and after every quarter."""
        steps = self.settings.steps
        quarters = {steps * quarter // 4 for quarter in range(5)}
        seen = [self._judge(0)]
        losses: list[float] = []
        updates: list[tuple[int, str, int | None, float]] = []
        ratio = nan
        for step in range(1, steps + 1):
            loss = self._backward(step)
            losses.append(loss)
            if not isfinite(loss):
                break
            if step in quarters or step == 1:
                groups, ratio = self._measured_step()
                updates += [(step, *group) for group in groups]
            else:
                self.optimizer.step()
            if step in quarters:
                seen.append(self._judge(step))
            tick()
        broke = not isfinite(losses[-1])
        if broke:
            seen.append(Judged(len(losses), nan, nan))
        return {
            "verdict": verdict(
                seen, unigram_loss=self.text.unigram_loss(self.seq_len), margin=self.settings.margin, broke=broke
            ),
            "held_out": [list(judged) for judged in seen],
            "loss": list(_thinned(losses, max(1, -(-steps // POINTS)))),
            "updates": [list(update) for update in updates],
            "update_ratio": ratio,
            "forwards": len(losses) + len(seen) - broke,
            "vjps": len(losses),
            "error": "",
        }

    def _backward(self, step: int) -> float:
        """The loss of the next batch and its gradients, at the rate of this step."""
        windows_BT = self.text.batch(self.settings.batch_size, self.seq_len, self.random).to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, step / self.warmup) if self.warmup else self.lr
        self.optimizer.zero_grad()
        loss = _cross_entropy(self.decoder, windows_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _measured_step(self) -> tuple[list[tuple[str, int | None, float]], float]:
        """One step of the optimizer, and how large it was beside the matrices that it changed."""
        groups = dict(_matrices(self.decoder))
        before = {key: [matrix.detach().clone() for matrix in matrices] for key, matrices in groups.items()}
        self.optimizer.step()
        found: list[tuple[str, int | None, float]] = []
        change = size = 0.0
        for (group, layer), matrices in groups.items():
            changed = _sum_of_squares(
                [new.detach() - old for new, old in zip(matrices, before[group, layer], strict=True)]
            )
            was = _sum_of_squares(before[group, layer])
            found.append((group, layer, sqrt(changed / was) if was else nan))
            if layer is not None:
                change, size = change + changed, size + was
        return found, sqrt(change / size) if size else nan

    def _judge(self, step: int) -> Judged:
        last: list[Tensor] = []
        name = f"blocks.{len(self.decoder.blocks) - 1}"
        with torch.no_grad(), record(self.decoder, [name], lambda _, stream_BTD: last.append(stream_BTD)):
            # in float64, whatever the model computes in: 16 bits cannot tell a loss that falls from one that stands
            loss = _cross_entropy(self.decoder, self.judged_BT, in_float64=True)
        (of_last,) = statistics(last)
        return Judged(step, loss.item(), of_last.cosine)


def optimizer_of(decoder: Decoder, settings: TrainSettings) -> torch.optim.Optimizer:
    """The optimizer of [gradflow.train], in torch's fused form: one call for all parameters."""
    match settings.optimizer:
        case AdamW(beta1=beta1, beta2=beta2, weight_decay=decay):
            return torch.optim.AdamW(decoder.parameters(), betas=(beta1, beta2), weight_decay=decay, fused=True)
        case SGD(momentum=momentum, weight_decay=decay):
            return torch.optim.SGD(decoder.parameters(), momentum=momentum, weight_decay=decay, fused=True)
        case _:
            assert_never(settings.optimizer)


def _cross_entropy(decoder: Decoder, windows_BT: Tensor, *, in_float64: bool = False) -> Tensor:
    """Of every character but the first, each predicted from those before it, over the whole vocabulary."""
    logits_BTV = decoder(windows_BT[:, :-1])
    if in_float64:
        (here_BTV,) = for_float64(logits_BTV)
        logits_BTV = here_BTV.double()
    return F.cross_entropy(logits_BTV.flatten(0, 1), windows_BT[:, 1:].flatten().to(logits_BTV.device))


def _matrices(decoder: Decoder) -> Iterator[tuple[tuple[str, int | None], list[Tensor]]]:
    """The matrices of every block, the token table, and an output matrix of its own."""
    yield ("embedding", None), [decoder.embed.weight]
    for layer, block in enumerate(decoder.blocks):
        yield ("block", layer), [parameter for parameter in block.parameters() if parameter.dim() > 1]
    if not decoder.spec.tie_embeddings:
        yield ("head", None), [decoder.head.weight]


def _sum_of_squares(tensors: list[Tensor]) -> float:
    return sum(norm**2 for norm in euclidean_norms(tensors))


def _thinned(losses: list[float], per_point: int) -> Iterator[list[float]]:
    """The step that a stretch of the curve ends at, and its mean."""
    for start in range(0, len(losses), per_point):
        part = losses[start : start + per_point]
        yield [start + len(part), sum(part) / len(part)]
