"""The folders of checkpoints: one for each run, wherever it goes on."""

from pipeline.support.resuming import folder_name


def test_copies_of_the_project_share_runs_but_not_those_of_baselines(tmp_path, monkeypatch) -> None:
    """Experiments with equal baselines may run at the same time, in clones that share CL_SCRATCH."""
    names: dict[str, set[str]] = {"pretrain": set(), "baseline": set()}
    for clone in ("first", "second", "first"):
        (tmp_path / clone).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / clone)
        for stage, found in names.items():
            found.add(folder_name(stage, "0123456789abcdef"))
    assert names["pretrain"] == {"0123456789abcdef"}
    assert len(names["baseline"]) == 2
