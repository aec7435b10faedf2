# ruff: noqa: INP001 - the builder of the site loads it by its path
"""Hooks of the site: two pages come from the project's root, and links lead to where pages are on the site."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))
reference = importlib.import_module("reference")

OF_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
INWARDS = re.compile(r"\]\(docs/")
OUTWARDS = re.compile(rf"\]\(\.\./({'|'.join(map(re.escape, OF_THE_ROOT))})")


def on_config(config: Any) -> Any:
    """Add the pages of the reference to the navigation."""
    config.nav.append({"Python": [{module: f"reference/{module}.md"} for module in reference.modules()]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    for name in OF_THE_ROOT:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name, text in reference.pages():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links between the root and docs/, where there is one folder."""
    if page.file.src_uri in OF_THE_ROOT:
        return INWARDS.sub("](", markdown)
    return OUTWARDS.sub(r"](\1", markdown)
