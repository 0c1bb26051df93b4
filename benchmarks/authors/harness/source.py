"""The clones of the authors' repositories that a user made."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A repository on GitHub, the commit that was compared, and a file by which a clone is recognised."""

    repository: str
    commit: str
    file: str

    def recognises(self, folder: Path) -> bool:
        return (folder / self.file).is_file()

    def __str__(self) -> str:
        return f"{self.repository} at {self.commit}"


def assign(folders: Iterable[Path], wanted: Iterable[Source]) -> dict[Source, Path]:
    """For each wanted source the folder that holds it.

    Raises:
        ValueError: a folder holds none of them.
    """
    sources = list(dict.fromkeys(wanted))
    found: dict[Source, Path] = {}
    for folder in folders:
        fitting = [source for source in sources if source.recognises(folder.expanduser())]
        if not fitting:
            choices = " or ".join(f"{source} (with {source.file})" for source in sources)
            raise ValueError(f"{folder} is not a clone of {choices}; pass the folder of one")
        found |= dict.fromkeys(fitting, folder.expanduser().resolve())
    return found


def commit_of(folder: Path) -> str | None:
    """The commit that a clone is at, or None where Git does not say."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.stdout.strip() or None
