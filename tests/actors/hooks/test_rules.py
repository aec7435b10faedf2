"""Rules by which a hook is for some calls of a tool alone."""

import pytest

from warren.actors.hooks.rules import holds
from warren.settings.hook_config import HookEntry


def rule(text: str) -> tuple[str, str | None]:
    """Return a rule as an entry has it."""
    found = HookEntry(event="PreToolUse", command="x", condition=text).rule
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "command", "held"),
    [
        ("Bash", "ls", True),
        ("Bash(*)", "ls", True),
        ("Bash(git *)", "git push", True),
        ("Bash(git *)", "git", True),
        ("Bash(git:*)", "git push", True),
        ("Bash(git *)", "gitk", False),
        ("Bash(git *)", "FOO=bar git push", True),
        ("Bash(git *)", "npm test && git push", True),
        ("Bash(git *)", "npm test; (git push)", True),
        ("Bash(rm *)", "echo $(rm -rf /)", True),
        ("Bash(rm *)", "echo `rm -rf /`", True),
        ("Bash(rm *)", "echo $(date)", False),
        ("Bash(git push *)", "echo $(date)", True),
        ("Bash(git push *)", "git pull", False),
        ("Bash(npm test)", "npm test", True),
        ("Bash(npm test)", "npm test x", False),
        ("Bash(rm *)", 'echo "', True),
        ("Write", "ls", False),
    ],
)
def test_commands(text: str, command: str, *, held: bool) -> None:
    """A rule holds if one command of the line fits, and if it cannot be told."""
    assert holds(rule(text), ("Bash", "shell"), {"command": command}, "/root") is held


@pytest.mark.parametrize(
    ("text", "path", "held"),
    [
        ("Edit(*.ts)", "/root/src/deep/a.ts", True),
        ("Edit(*.ts)", "/root/a.tsx", False),
        ("Edit(src/**)", "/root/src/a/b.py", True),
        ("Edit(src/**)", "/root/lib/src/b.py", False),
        ("Edit(**/src/**)", "/root/lib/src/b.py", True),
        ("Edit(//etc/*)", "/etc/passwd", True),
        ("Edit(./a?.py)", "/root/a1.py", True),
    ],
)
def test_paths(text: str, path: str, *, held: bool) -> None:
    """A pattern without a slash is about the name, others about the path below the root."""
    assert holds(rule(text), ("Edit", "edit_file"), {"file_path": path}, "/root") is held


def test_domains_and_other_tools() -> None:
    """A domain is compared; what cannot be told holds."""
    assert holds(rule("WebFetch(domain:a.org)"), ("WebFetch",), {"url": "https://A.org/x"}, "")
    assert not holds(rule("WebFetch(domain:a.org)"), ("WebFetch",), {"url": "https://b.org/x"}, "")
    assert holds(rule("pay(anything)"), ("pay",), {"cents": 1}, "")
