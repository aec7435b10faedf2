"""Settings of the command line, from files and variables."""

from pathlib import Path


def by_default(folder: Path, text: str) -> None:
    """Write the file that is read unless another one is named."""
    (folder / ".rkat").mkdir()
    (folder / ".rkat" / "config.toml").write_text(text, encoding="utf-8")
