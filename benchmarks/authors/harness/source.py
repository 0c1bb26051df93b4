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
        ValueError: a folder holds none of them, or another commit of one.
    """
    sources = list(dict.fromkeys(wanted))
    found: dict[Source, Path] = {}
    for folder in folders:
        fitting = [source for source in sources if source.recognises(folder.expanduser())]
        if not fitting:
            choices = " or ".join(f"{source} (with {source.file})" for source in sources)
            raise ValueError(
                f"{folder} is not a clone of {choices}; pass the folder of one, with that commit checked out"
            )
        for source in fitting:
            check_commit(source, folder.expanduser())
        found |= dict.fromkeys(fitting, folder.expanduser().resolve())
    return found


def check_commit(source: Source, folder: Path) -> None:
    """Refuse a clone at another commit; a folder without Git (an unpacked archive) is taken as it is."""
    if not (folder / ".git").exists():
        return
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not commit.startswith(source.commit):
        raise ValueError(
            f"{folder} is at {commit[:7] or 'no commit'}, but the comparison is with {source}; "
            f"run `git -C {folder} checkout {source.commit}`"
        )
