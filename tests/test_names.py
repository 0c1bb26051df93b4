"""What `import cl` offers."""

import importlib.metadata

import cl


def test_every_name_is_found_and_described() -> None:
    for name in cl.__all__:
        assert getattr(cl, name).__doc__, name
        assert f"    {name}" in cl.__doc__, f"help(cl) lacks {name}"
    assert set(cl.__all__) <= set(dir(cl))
    assert cl.__version__ == importlib.metadata.version("cl")
    assert not hasattr(cl, "InfoNCELos")
