"""Every option, defined once.

An option that changes the experiment is a line of a table below: its flags, its key, one sentence. Its type, its
choices and its default are read from the spec, so that ``--help``, the loader and the error messages agree.
The other shared options are the fields of ``Request``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from tfblock_cli.cli.keys import choices, default, field
from tfblock_cli.loading import Flag, Large, whole_number

_PANELS = {
    "model": "Model",
    "target": "Target",
    "input": "Input",
    "causality": "Causality",
    "gradflow": "Gradient flow",
}
_RUN = "Run"


@dataclass(frozen=True)
class KeyOption:
    """An option that sets a key of the experiment.

    Attributes:
        flags: As typed; "--bias/--no-bias" is a switch.
        key: The dotted key of the experiment file.
        words: What it is, for ``--help``.
        also: Further keys that it sets, since they could say otherwise.
    """

    flags: tuple[str, ...]
    key: str
    words: str
    also: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The name under which Typer hands the value over."""
        return self.key.replace(".", "_")

    @property
    def panel(self) -> str:
        """The group of ``--help`` that it stands in."""
        table, dot, _ = self.key.partition(".")
        return _PANELS[table] if dot else _RUN

    @property
    def is_switch(self) -> bool:
        """Whether it has no value."""
        return "/" in self.flags[0]

    @property
    def is_list(self) -> bool:
        """Whether its value is a list, typed with commas."""
        return get_origin(field(self.key).annotation) is tuple

    @property
    def is_number(self) -> bool:
        """Whether its value, or each of its items, is a number."""
        annotation = field(self.key).annotation
        return annotation in (int, float) or (self.is_list and not choices(self.key))

    def help(self, preset: str | None = None) -> str:
        """The words, the choices and the default; ``preset`` is a default of one command."""
        allowed, usual = choices(self.key), preset or default(self.key)
        sentence = f"{self.words}: {', '.join(allowed)}" if allowed else self.words
        return f"{sentence}. Default: {usual}." if usual else f"{sentence}."

    def declare(self, preset: str | None) -> Parameter:
        """The parameter of a command's signature. None means not given; text is left to ``flag``."""
        item = "KIND" if choices(self.key) else "N" if self.is_number else "NAME"
        option = typer.Option(
            *self.flags,
            help=self.help(preset),
            rich_help_panel=self.panel,
            metavar="" if self.is_switch else f"{item},..." if self.is_list else item,
        )
        annotation = Annotated[bool | None, option] if self.is_switch else Annotated[str | None, option]
        return Parameter(self.parameter, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def flag(self, typed: bool | str) -> Flag:
        """What the loader gets: the flag as it was typed, its keys, its value."""
        keys = (self.key, *self.also) if self.also else self.key
        if isinstance(typed, bool):
            on, _, off = self.flags[0].partition("/")
            return Flag(on if typed else off, keys, typed)
        words = [word.strip() for word in typed.split(",")] if self.is_list else [typed]
        values = [_number(word) if self.is_number else word for word in words]
        return Flag(self.flags[0], keys, values if self.is_list else values[0])


def _number(text: str) -> int | float | str | Large:
    """A number if it is one. The loader refuses anything else: it tells all faults at once, Typer the first."""
    for read in (whole_number, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


MODEL = (
    KeyOption(("--d", "--d-model"), "model.d_model", "Width D of the residual stream"),
    KeyOption(("--layers",), "model.n_layers", "Blocks L"),
    KeyOption(("--vocab",), "model.vocab_size", "Vocabulary V; 0 is a stack without embedding and head"),
    KeyOption(("--max-seq",), "model.max_seq_len", "Longest sequence, and rows of a learned position table"),
    KeyOption(("--heads",), "model.attention.n_heads", "Query heads H"),
    KeyOption(("--kv-heads",), "model.attention.n_kv_heads", "Key-value heads K"),
    KeyOption(("--d-head",), "model.attention.d_head", "Width E of a head"),
    KeyOption(("--pattern",), "model.attention.pattern", "Which tokens see which"),
    KeyOption(("--ffn",), "model.ffn", "Feed-forward network"),
    KeyOption(("--d-ff",), "model.ffn.d_ff", "Hidden width F of the feed-forward network"),
    KeyOption(("--norm",), "model.norm", "Norm"),
    KeyOption(("--placement",), "model.norm_placement", "Where the norms sit"),
    KeyOption(("--final-norm/--no-final-norm",), "model.final_norm", "A norm behind the last block"),
    KeyOption(("--position",), "model.position", "How the model knows the order"),
    KeyOption(("--initialization",), "model.initialization", "How the first weights are drawn"),
    KeyOption(
        ("--bias/--no-bias",),
        "model.bias",
        "Biases of all linear layers",
        also=("model.attention.bias", "model.attention.out_bias", "model.ffn.bias", "model.head_bias"),
    ),
    KeyOption(("--tie/--no-tie",), "model.tie_embeddings", "Use the token table as the output layer"),
    KeyOption(("--dropout",), "model.dropout", "Dropout, on attention weights and behind the FFN"),
)
TARGET = (
    KeyOption(
        ("--target",),
        "target.factory",
        "Ask somebody else's model: pkg.mod:factory, which returns an nn.Module, with --vocab or --d saying what it "
        "takes; or hf:PATH, a local Hugging Face config.json or checkpoint folder",
    ),
    KeyOption(("--output-key",), "target.output_key", "The output to read, by attribute, key or index"),
    KeyOption(
        ("--chunk",), "target.chunk", "It computes in chunks, blocks or windows of so many tokens: try longer inputs"
    ),
)
TRUST = Annotated[
    bool,
    typer.Option("--trust", help="Run the code that a file names as its [target].", rich_help_panel=_PANELS["target"]),
]
"""Of the commands that can be about a target."""
INPUT = (
    KeyOption(("--batch",), "input.batch_size", "Sequences B"),
    KeyOption(("--seq",), "input.seq_len", "Tokens T of a sequence"),
)
RUN = (
    KeyOption(("--seed",), "seed", "Where everything random comes from"),
    KeyOption(("--dtype",), "dtype", "Number format of weights and activations"),
    KeyOption(("--device",), "device", "Where torch runs: cpu, cuda, cuda:1, mps, or meta for shapes alone"),
    KeyOption(("--kernel",), "kernel", "How attention runs, fused or spelled out"),
    KeyOption(("--threads",), "threads", "Threads that torch may use"),
)
CAUSALITY = (
    KeyOption(
        ("--declare",),
        "causality.declare",
        "Which outputs may see which inputs, also as window=16, prefix=4, documents=5,7; auto is what the model's own "
        "patterns say, but never bidirectional",
    ),
    KeyOption(("--budget",), "causality.budget", "Forward passes at the experiment's own length, per dtype"),
    KeyOption(
        ("--shrink/--no-shrink",),
        "causality.shrink",
        "Try every cut on a small copy of the model; auto is above 20 million parameters",
    ),
    KeyOption(
        ("--weights",),
        "causality.weights",
        "Redraw weights so large that no leak is small, or leave them; auto redraws what is random anyway",
    ),
)
GRADFLOW = (
    KeyOption(("--placements",), "gradflow.placements", "Norm placements to compare"),
    KeyOption(("--depths",), "gradflow.depths", "Numbers of blocks to compare them at"),
    KeyOption(("--seeds",), "gradflow.seeds", "How many seeds, counted up from --seed"),
    KeyOption(("--baseline",), "gradflow.baseline", "The placement that the others are divided by"),
    KeyOption(("--loss",), "gradflow.loss", "What is differentiated"),
)


_output = partial(typer.Option, rich_help_panel="Output")
RUNS_DIR = "--runs-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asked for, whatever the command.

    Its fields are the arguments and options that all commands share; ``flags`` are those of the tables above.
    """

    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPERIMENT",
            help="A TOML file, the name of a shipped experiment, or the experiment.toml of an earlier run. "
            "Without one, the flags alone describe the model.",
        ),
    ] = None
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of the experiment file, as model.norm.eps=1e-5; may be repeated, and beats every other flag.",
            rich_help_panel=_RUN,
        ),
    ] = None
    json: Annotated[bool, _output("--json", help="Print result.json and nothing else on stdout.")] = False
    quiet: Annotated[bool, _output("--quiet", "-q", help="No report and no notes; errors and --json remain.")] = False
    no_save: Annotated[bool, _output("--no-save", help="Keep no result.")] = False
    runs_dir: Annotated[
        Path, _output(RUNS_DIR, envvar="TFBLOCK_RUNS_DIR", metavar="FOLDER", help="Where results are kept.")
    ] = Path("runs")
    strict: Annotated[bool, _output("--strict", help="Warnings fail: exit code 1.")] = False
    debug: Annotated[bool, _output("--debug", help="Show the traceback of an unexpected error.")] = False
    flags: tuple[Flag, ...] = ()
    presets: Mapping[str, Any]


Command = Callable[..., None]


def with_shared_options(*own: KeyOption, presets: Mapping[str, Any] | None = None) -> Callable[[Command], Command]:
    """Give a command, beside its own options, those that all commands have; it gets them as its ``request``.

    Args:
        own: Options for keys that only this command reads.
        presets: Defaults that this command changes, by key: below the file and the flags.
    """
    changed = dict(presets or {})
    options = (*own, *MODEL, *INPUT, *RUN)
    shared = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in signature(Request).parameters.values()
        if parameter.name not in ("flags", "presets")
    ]

    def decorate(command: Command) -> Command:
        mine = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for parameter in signature(command).parameters.values()
            if parameter.name != "request"
        ]

        def asked(**values: Any) -> None:
            given = {option: values.pop(option.parameter) for option in options}
            flags = tuple(option.flag(value) for option, value in given.items() if value is not None)
            request = Request(
                **{parameter.name: values.pop(parameter.name) for parameter in shared},
                flags=flags,
                presets=changed,
            )
            command(request, **values)

        experiments, *rest = shared
        declared = [option.declare(changed.get(option.key)) for option in options]
        asked.__signature__ = signature(asked).replace(  # type: ignore[attr-defined]
            parameters=[experiments, *mine, *declared, *rest]
        )
        asked.__name__, asked.__doc__ = command.__name__, command.__doc__
        return asked

    return decorate
