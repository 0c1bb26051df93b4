"""How much memory is left."""

import pytest

from cl.runtime.memory import available

MIB = 2**20
UNLIMITED = 2**63 - 4096


@pytest.mark.parametrize(
    ("line", "top", "limit", "use", "cache", "unlimited"),
    [
        ("4:memory:", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", UNLIMITED),
        ("0::", "", "memory.max", "memory.current", "", "max"),
    ],
    ids=["version 1", "version 2"],
)
def test_control_groups_limit_what_is_available(tmp_path, line, top, limit, use, cache, unlimited) -> None:
    own = tmp_path / "own"
    own.write_text(f"{line}/pod/container\n")
    group = tmp_path / top / "pod" / "container"
    group.mkdir(parents=True)
    (group / limit).write_text(f"{unlimited}\n")
    (group.parent / limit).write_text(f"{4 * MIB}\n")
    for folder in (group, group.parent):
        (folder / use).write_text(f"{3 * MIB}\n")
    assert available(tmp_path, own) == MIB
    stat = f"anon {MIB}\n{cache}active_file {MIB}\n{cache}inactive_file {MIB}\n"
    (group.parent / "memory.stat").write_text(stat)
    assert available(tmp_path, own) == 3 * MIB
    assert available(tmp_path, tmp_path / "none") > 3 * MIB
