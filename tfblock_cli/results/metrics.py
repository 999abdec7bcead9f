"""The metrics of ``gradflow``: what placements are compared by, at initialization and after training."""

from dataclasses import dataclass

XIONG = "Xiong et al. 2020, arXiv:2002.04745"
ADMIN = "Liu et al. 2020, arXiv:2004.08249"
DEEPNORM = "Wang et al. 2022, arXiv:2203.00555"
SLOPE = "slope."
"""The start of the name of a slope over the depths: ``slope.grad.down.last``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What placements are compared by.

    Attributes:
        words: What it is, in a few words.
        formula: How it is computed; h_l is the residual stream behind block l = 1..L, W a matrix, |.| a Euclidean norm.
        tells: What its value tells.
        undefined: Why it may be nan where losses, gradients and streams are finite; "" if it never is.
        source: Where it, or the prediction about it, comes from; "" if it is ours or nobody's.
    """

    words: str
    formula: str
    tells: str
    undefined: str = ""
    source: str = ""


_NO_GRADIENT = "there is no gradient to divide by"
_NO_PAIR = "a sequence of one token has no two tokens to compare"


METRICS = {
    "loss": Metric(
        words="the loss",
        formula="the loss of [gradflow]",
        tells="ln V at most initializations with cross_entropy; far above it, the logits have exploded",
    ),
    "grad.embedding": Metric(
        words="gradient norm of the token table",
        formula="|d loss / d token table|; with a tied head the head's part is in it",
        tells="what reaches the bottom; about the same for pre and post under equal terms",
    ),
    "grad.input": Metric(
        words="gradient norm of the stack's input",
        formula="|d loss / d x| of a stack without a vocabulary",
        tells="what reaches the bottom",
    ),
    "grad.head": Metric(
        words="gradient norm of the output matrix",
        formula="|d loss / d head.weight|; not there without a vocabulary, or where the head is tied",
        tells="what the last layer gets",
    ),
    "grad.matrices": Metric(
        words="gradient norm of the matrices of all blocks together",
        formula="sqrt(sum over l and W of |d loss / d W|²), W the matrices of block l, without biases and gains",
        tells="its square is the change of the loss per step of SGD, to first order; independent of L for deepnorm",
        source=DEEPNORM,
    ),
    "grad.block.first": Metric(
        words="gradient norm of the first block's parameters",
        formula="|d loss / d θ| over all parameters θ of block 1",
        tells="what the lowest block gets",
    ),
    "grad.block.last": Metric(
        words="gradient norm of the last block's parameters",
        formula="|d loss / d θ| over all parameters θ of block L",
        tells="what the highest block gets",
    ),
    "grad.block.last_first": Metric(
        words="gradient norm of the last block over that of the first",
        formula="grad.block.last / grad.block.first",
        tells="below 1: lower blocks get more; far from 1: one learning rate does not fit all; 1 for deepnorm",
        undefined=_NO_GRADIENT,
        source=DEEPNORM,
    ),
    "grad.block.max_min": Metric(
        words="largest gradient norm of a block over the smallest",
        formula="max over l of |d loss / d block l| / min over l of the same",
        tells="as last_first, wherever the extremes are",
        undefined=_NO_GRADIENT,
    ),
    "grad.down.last": Metric(
        words="gradient norm of the last block's second FFN matrix",
        formula="|d loss / d W| of ffn.down in block L",
        tells="grows with depth as L^0 for post and L^(-1/2) for pre at unit-gain initialization",
        source=f"{XIONG}, theorem 1",
    ),
    "grad.hidden.first": Metric(
        words="gradient norm of the stream behind the first block",
        formula="|d loss / d h_1|",
        tells="what reaches the bottom, without the embedding's own size",
    ),
    "grad.hidden.last_first": Metric(
        words="gradient norm of the last hidden state over that of the first",
        formula="|d loss / d h_L| / |d loss / d h_1|",
        tells="above 1: gradients shrink on the way down; below 1: they grow",
        undefined=_NO_GRADIENT,
        source=f"{XIONG}, section 3.3",
    ),
    "grad.q_over_v.last": Metric(
        words="gradient norm of the last block's q matrix over that of its v matrix",
        formula="|d loss / d W_q| / |d loss / d W_v| in block L",
        tells="near 0: attention has stopped to learn where to look, since all tokens look alike",
        undefined=_NO_GRADIENT,
    ),
    "rms.last": Metric(
        words="root mean square of the residual stream behind the last block",
        formula="sqrt(mean(h_L²))",
        tells="1 for post; pre lies between sqrt(1 + L/2) and sqrt(1 + 3L/2) with ReLU and d_ff = d_model",
        source=f"{XIONG}, lemma 2",
    ),
    "rms.squared_growth": Metric(
        words="growth of the stream's mean square per block",
        formula="(mean(h_L²) - mean(h_1²)) / (L - 1)",
        tells="0 for post, about 2 for sandwich and reordered: each of two branches adds a vector of mean square 1",
        undefined="there is one block alone, and nothing to grow from",
        source="Kim et al. 2025, arXiv:2502.02732",
    ),
    "cosine.last": Metric(
        words="mean cosine between different tokens of a sequence behind the last block; 1 is a collapse",
        formula="mean over sequences and pairs s != t of cos(h_L,s, h_L,t)",
        tells="near 1: the tokens have become alike, and attention can no longer tell them apart",
        undefined=_NO_PAIR,
        source="Dong et al. 2021, arXiv:2103.03404",
    ),
    "noise.response": Metric(
        words="relative change of the output under 1 % noise on the weights",
        formula="|f(W + 0.01 δ) - f(W)|² / |f(W)|², f the stack's output before the head, δ drawn as the blocks' W",
        tells="grows as L for post and as log L for pre; how much one update of a given size moves the output",
        undefined="the output is 0, or under noise not finite",
        source=f"{ADMIN}, section 4",
    ),
}
"""Those at initialization, in the order in which they are shown."""

TRAINED = {
    "train.verdict": Metric(
        words="how a training run ended",
        formula=(
            "DIVERGED: a loss is nan or inf, or the held-out loss ends above where it began; else LEARNS: it ends more "
            "than `margin` nats below unigram_loss, that of whoever knows frequencies alone; else COLLAPSED: "
            "train.cosine is above 0.99; else SLOW: it fell by a tenth of the margin or more over the last quarter of "
            "the steps; else STUCK"
        ),
        tells="whether what the network has learned is more than how frequent each character is",
    ),
    "train.held_out_loss": Metric(
        words="loss on text that was kept from training",
        formula="mean cross-entropy in nats over the characters of 64 sequences, the same for every run",
        tells="unigram entropy: frequencies were learned; bigram entropy: also what one character tells of the next",
    ),
    "train.cosine": Metric(
        words="mean cosine between different tokens of the held-out text behind the last block, after training",
        formula="mean over sequences and pairs s != t of cos(h_L,s, h_L,t)",
        tells="above 0.99: what is put out no longer depends on what was put in",
        undefined=_NO_PAIR,
        source="Dong et al. 2021, arXiv:2103.03404",
    ),
    "train.update_ratio": Metric(
        words="size of the last optimizer step beside that of the blocks' matrices",
        formula="sqrt(sum over W of |W after - W before|² / sum over W of |W before|²), of the step as it was applied",
        tells="about 1e-3 is usual; far above it a run jumps, far below it a run stands",
        undefined="the matrices are 0, so there is nothing to divide by",
    ),
}
"""Those of a training run, in the order in which they are shown."""


def metric(name: str) -> Metric:
    """What a metric is, the slope of one included.

    Raises:
        KeyError: There is none of that name.
    """
    if not name.startswith(SLOPE):
        return TRAINED[name] if name in TRAINED else METRICS[name]
    inner = name.removeprefix(SLOPE)
    found = METRICS[inner]
    return Metric(
        words=f"power of the depth L that the {found.words} grows with",
        formula=f"least-squares slope of log({inner}) against log(L) over the depths, seed by seed",
        tells="0: independent of depth; 1: as L; -1/2: as 1 / sqrt(L)",
        undefined="at some depth it is no positive number, and has no logarithm",
        source=found.source,
    )
