"""Initializations: how the first weights are drawn. Gains are 1; biases are 0 unless the kind says otherwise."""

from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from tfblock_cli.spec.base import Axis, Kind
from tfblock_cli.spec.size import Weight

Std = Annotated[float, Field(gt=0)]


Distribution = Literal["normal", "uniform"]


class Draw(NamedTuple):
    """A distribution around 0 and its standard deviation; 0 is the constant 0."""

    distribution: Distribution
    std: float


class Initialization(Kind):
    """The keys and rules that all kinds share.

    Attributes:
        embedding_std: Of the token table and the position table.
        clone_layers: Give every block the weights of the first one, as torch.nn.TransformerEncoder does
            (pytorch/pytorch#86274): a flaw, for those who want to see what it does.
    """

    clone_layers: bool = False

    if TYPE_CHECKING:
        # a key of every kind; it stands behind the key that its default follows, since keys are read in their order
        embedding_std: float

    def draw(self, weight: Weight, n_layers: int) -> Draw:
        """The distribution of a matrix or a bias of a model with n_layers blocks."""
        if weight.role in ("embed", "position"):
            return self.embedding()
        return self.matrix(weight, n_layers) if weight.kind == "matrix" else self.bias(weight)

    def embedding(self) -> Draw:
        """Of the token table and the position table."""
        return Draw("normal", self.embedding_std)

    def matrix(self, weight: Weight, n_layers: int) -> Draw:
        """Of the weight of a linear layer."""
        raise NotImplementedError

    def bias(self, weight: Weight) -> Draw:
        """Of the bias of a linear layer."""
        return Draw("normal", 0.0)


class Uniform(Initialization):
    """U(-bound, bound), whose standard deviation is bound / sqrt(3)."""

    kind: Literal["uniform"] = "uniform"
    bound: Std = 0.1
    embedding_std: Std = Field(default_factory=lambda keys: keys.get("bound", 0.1) / sqrt(3))

    def embedding(self) -> Draw:
        """Uniform as well."""
        return Draw("uniform", self.embedding_std)

    def matrix(self, weight: Weight, n_layers: int) -> Draw:
        """The same for every matrix."""
        return Draw("uniform", self.bound / sqrt(3))


class Normal(Initialization):
    """N(0, std²)."""

    kind: Literal["normal"] = "normal"
    std: Std = 0.02
    embedding_std: Std = Field(default_factory=lambda keys: keys.get("std", 0.02))

    def matrix(self, weight: Weight, n_layers: int) -> Draw:
        """The same for every matrix."""
        return Draw("normal", self.std)


class GPT2(Initialization):
    """N(0, std²); out and down, which write into the residual stream, by std / sqrt(2L) (Radford et al. 2019)."""

    kind: Literal["gpt2"] = "gpt2"
    std: Std = 0.02
    embedding_std: Std = Field(default_factory=lambda keys: keys.get("std", 0.02))

    def matrix(self, weight: Weight, n_layers: int) -> Draw:
        """By role."""
        return Draw("normal", self.std / sqrt(2 * n_layers) if weight.role in ("out", "down") else self.std)


class Torch(Initialization):
    """What torch.nn does by itself: U(±1/sqrt(fan_in)) for weights and biases of linear layers, N(0, 1) embeddings."""

    kind: Literal["torch"] = "torch"
    embedding_std: Std = 1.0

    def matrix(self, weight: Weight, n_layers: int) -> Draw:
        """Kaiming-uniform with a = sqrt(5), which is U(±1/sqrt(fan_in))."""
        return Draw("uniform", 1 / sqrt(3 * weight.fan_in))

    def bias(self, weight: Weight) -> Draw:
        """As the weight that it goes with; a norm's bias stays 0."""
        return Draw("normal", 0.0) if weight.role == "norm" else self.matrix(weight, 1)


class Unit(Initialization):
    """N(0, 2 / (fan_in + fan_out)): Xavier-normal, which keeps a stream's size (Glorot and Bengio 2010)."""

    aliases = ("xavier",)
    kind: Literal["unit"] = "unit"
    embedding_std: Std = 1 / sqrt(2)

    def matrix(self, weight: Weight, n_layers: int) -> Draw:
        """By its fans."""
        return Draw("normal", sqrt(2 / (weight.fan_in + weight.fan_out)))


AnyInitialization = Annotated[Uniform | Normal | GPT2 | Torch | Unit, Axis("gpt2")]
