"""Mistakes in composed parameters are answered with the right name or the choices, and nothing is written."""

import pytest
from click.testing import CliRunner

from pipeline.compose import main
from tests.support.project import ROOT

MISTAKES = {
    "los=dclw": "los is not a parameter; did you mean loss? Choices: dataset, views, ",
    "+los=dclw": "unknown key los; did you mean loss? Choices: seed, recipe, ",
    "optim.epoch=3": "optim.epoch is not a parameter; did you mean epochs? Choices: kind, ",
    "+optim.epoch=3": "optim: unknown key epoch; did you mean epochs? Choices: kind, ",
    "optim.epochs.warmup=3": "optim.epochs.warmup is not a parameter; optim.epochs is 15",
    "evaluations.knnn.k=3": "evaluations.knnn is not a parameter; did you mean knn? Choices: knn, linear, ",
    "optim=larss optim.epoch=3": "optim=larss does not exist; did you mean lars? Choices: adamw, larc, ",
    "optim.chunks=2": "optim.chunks is now optim.microbatches (see CHANGELOG.md)",
    "loss=dclx": "loss=dclx does not exist; did you mean dcl? Choices: barlow_twins, cosine, dcl, dclw, ",
    "evaluation=[knn,lin]": "evaluation=lin does not exist; did you mean linear? Choices: byol_lin, ",
    "recipe=dcl/table9": "dcl/table1_imagenet100, ",
    "loss": "cannot read 'loss': expected group=choice or key=value",
    "evaluation=[knn": "cannot read 'evaluation=[knn': expected group=choice or key=value",
    "loss=infonce,dcl": "loss=infonce,dcl has several values; `dvc exp run --queue -S` runs each of them",
    "~loss": "loss is missing",
    "optim.epochs=0": "optim.epochs=0: input should be greater than 0",
    "method=byol loss=dclw": "method=byol gives pairs without negatives, but loss=dclw needs contrasts with",
    "init=nothing": "nothing is called 'nothing'",
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_a_mistake_is_answered_in_one_line(overrides, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, overrides.split())
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("Error: ")
    assert MISTAKES[overrides] in line
    assert not list(tmp_path.iterdir())


def test_a_subfolder_is_refused(monkeypatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    answer = CliRunner().invoke(main, ["loss=dclw"])
    expected = f"Error: this is a subfolder of the project: run `cd {ROOT}` first\n"
    assert (answer.exit_code, answer.stderr) == (1, expected)
    assert not (ROOT / "docs/params.yaml").exists()
