from collections.abc import Callable
from pathlib import Path

import pytest

FILE = """\
name = "mine"

[model]
d_model = 16
n_layers = 2
norm = "layernorm"
ffn = { kind = "mlp", d_ff = 32 }

[model.attention]
n_heads = 4
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write x.toml, or another name, into an empty working directory; its name comes back."""
    monkeypatch.chdir(tmp_path)

    def make(text: str | bytes = FILE, name: str = "x.toml") -> str:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
        return name

    return make
