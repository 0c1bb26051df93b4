"""The pages of the documentation, and the commands, tables and links in them."""

import re
import shlex
from pathlib import Path

from tests.support.project import ROOT

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*DOCS, ROOT / "CONTRIBUTING.md", ROOT / "docker/README.md"]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:cl|dvc|python|make) |-S ")
PLACEHOLDER = re.compile(r"\.\.\.|<\w+>|\b(?:group=choice|key=value)\b")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


def inline_code(page: Path) -> list[str]:
    """The code spans outside of fenced blocks."""
    return re.findall(r"`([^`]+)`", BLOCK.sub("", page.read_text()))


def tables(page: Path) -> list[list[list[str]]]:
    """The cells of every table, with its header as the first row."""
    found = re.findall(r"(?:^ *\|.*\n)+", page.read_text(), re.MULTILINE)
    lines = [[line.strip().strip("|").split("|") for line in table.splitlines()] for table in found]
    return [[[cell.strip() for cell in row] for row in table[:1] + table[2:]] for table in lines]


def commands(page: Path) -> list[list[str]]:
    """The words of each shell command without placeholders; a lone `-S key=value` becomes a `dvc exp run`."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += [code.replace("\n", " ") for code in inline_code(page) if COMMAND.match(code)]
    found, begun = [], ""
    for line in lines:
        try:
            words = _words(f"{begun}{line}")
        except ValueError:  # a quotation that ends on a later line
            begun += f"{line}\n"
            continue
        begun = ""
        found += [command for command in _split(words) if not PLACEHOLDER.search(" ".join(command))]
    assert not begun, f"{page}: unbalanced quotation marks after {begun}"
    return [["dvc", "exp", "run", *words] if words[0] == "-S" else words for words in found]


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    return list(lexer)


def _split(words: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("&|;"):
            found.append([])
        else:
            found[-1].append(word)
    return [command for command in found if command]


def after(words: list[str], *start: str) -> list[str] | None:
    """What follows these words in a command, which another command such as `docker run` may contain."""
    for position in range(len(words) - len(start) + 1):
        if words[position : position + len(start)] == list(start):
            return words[position + len(start) :]
    return None


def runs(words: list[str]) -> list[list[str]]:
    """The overrides of a `dvc exp run`; a sweep gives two lists, with its first and its last values."""
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "-S"]
    swept = [_values(override) for override in overrides]
    assert any(len(values) > 1 for values in swept) == ("--queue" in words), f"{words}: --queue is for sweeps"
    return [list(run) for run in dict.fromkeys((tuple(v[0] for v in swept), tuple(v[-1] for v in swept)))]


def _values(override: str) -> list[str]:
    key, value = override.split("=", 1)
    return [override] if value.startswith("[") else [f"{key}={part}" for part in value.split(",")]


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The relative targets of links and images."""
    text = re.sub(r"`[^`]+`", "", BLOCK.sub("", page.read_text()))
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]
