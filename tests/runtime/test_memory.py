"""How much memory is left."""

from cl.runtime.memory import available

MIB = 2**20


def test_control_groups_limit_what_is_available(tmp_path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/pod/container\n")
    group = tmp_path / "pod" / "container"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(f"{3 * MIB}\n")
    for folder in (group, group.parent):
        (folder / "memory.current").write_text(f"{MIB}\n")
    assert available(tmp_path, own) == 2 * MIB
    assert available(tmp_path, tmp_path / "none") > 2 * MIB
