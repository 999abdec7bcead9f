"""Where the experiments lie that come with tfblock."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def shipped(package: Path = PACKAGE) -> dict[str, Path]:
    """Every shipped experiment by its name: inside the package of a wheel, beside the package in a checkout."""
    inside, beside = package / "experiments", package.parent / "experiments"
    folder = inside if inside.is_dir() else beside
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
