"""The tutorial: its notebooks are its pages, and they show what the pages say that they show."""

import csv
from pathlib import Path

import pytest

import build_tutorial as tutorial
from fedax.experiment.config import resolve

ROOT = Path(__file__).parents[1]
PAGES = tutorial.pages()


def rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_methods(folder):
    """Step 3: FedYogi is ahead by the training loss, Mime behind; on test data Mime is not."""
    found = {name: [row for row in rows(folder / "runs" / "methods" / "results.csv")
                    if row["algorithm"] == name] for name in ("fedavg", "fedyogi", "mime")}
    loss = {name: [float(row["score (train_loss)"]) for row in of] for name, of in found.items()}
    accuracy = {name: [float(row["test_accuracy"]) for row in of] for name, of in found.items()}
    assert max(loss["fedyogi"]) < min(loss["fedavg"]) < max(loss["fedavg"]) < min(loss["mime"])
    assert min(accuracy["mime"]) > max(accuracy["fedavg"])


def check_tuned(folder):
    """Step 7: tuning FedAvg was worth some points, and FedYogi's are within the spread."""
    def of(name, rate):
        return [float(row["test_accuracy"]) for row in rows(folder / "runs/final/results.csv")
                if row["algorithm"] == name and float(row["client_learning_rate"]) == rate]

    untuned, tuned, yogi = of("fedavg", 0.1), of("fedavg", 0.3), of("fedyogi", 0.3)
    assert sum(tuned) / 5 - sum(untuned) / 5 > 0.02
    assert abs(sum(tuned) / 5 - sum(yogi) / 5) < 0.02
    assert min(untuned) > 0.8


CLAIMS = {"3": check_methods, "7": check_tuned}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("steps", ["123", "45678"])
def test_the_notebooks_run_and_show_what_the_pages_say(steps, tmp_path, monkeypatch):
    """In one folder, as a reader goes through them; steps 1 to 3 share nothing with the others."""
    if "1" not in steps:  # its programs run long enough
        monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    for page in PAGES:
        if page.name[0] in steps:
            shown = tutorial.run(page, tmp_path)
            assert shown
            assert tutorial.differences(page, shown) == []
            CLAIMS.get(page.name[0], lambda folder: None)(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebooks_are_the_pages(page):
    """If not: python scripts/build_tutorial.py."""
    made = tutorial.as_text(tutorial.notebook(page))
    assert page.with_suffix(".ipynb").read_text("utf-8") == made


@pytest.mark.quick
def test_there_are_eight_steps_which_the_index_and_the_page_before_lead_to():
    assert [page.name[0] for page in PAGES] == list("12345678")
    index = (PAGES[0].parent / "index.md").read_text("utf-8")
    for page, following in zip(PAGES, [*PAGES[1:], None], strict=True):
        assert f"]({page.name})" in index
        assert f"]({page.stem}.ipynb)" in index
        text = page.read_text("utf-8")
        assert text.startswith(f"# {page.name[0]}. ")
        assert f"]({page.stem}.ipynb)" in text
        assert "## What can go wrong" in text
        assert following is None or f"]({following.name}).\n" in text.rpartition("Next: ")[2]


@pytest.mark.quick
def test_the_method_has_as_many_lines_as_it_says():
    text = next(page for page in PAGES if page.name[0] == "8").read_text("utf-8")
    code = text.partition('title="my_methods.py"')[2].partition("```")[0]
    lines = [line for line in code.splitlines()[2:]
             if line.strip() and not line.startswith(("import", "from"))]
    assert f"Without imports it is {len(lines)} lines" in text


@pytest.mark.quick
@pytest.mark.parametrize(("said", "printed", "fits"), [
    ("loss 0.25 of\n1,437", "the loss 0.26 of 1,437 digits", True),
    ("loss 0.25", "loss 0.35", False),
    ("1,437 digits", "1,438 digits", False),
    ("accuracy 90.1%", "accuracy 92.9%", True),
    ("accuracy 90.1%", "accuracy 93.9%", False),
    ("0.5 ± 0.03", "0.5 ± 0.05", True),
    ("one\n...\ntwo", "one\ntwo", True),
    ("one ... two", "one and a half, two", True),
    ("one ... two", "one and a half, three", False),
    ("line 3 of client_1.py", "line 4 of client_1.py", False),
])
def test_what_a_page_shows_is_compared(said, printed, fits, tmp_path):
    page = tmp_path / "1-page.md"
    page.write_text(f"# 1\n\n```python\nx\n```\n\n```text\n{said}\n```\n", "utf-8")
    shown = [tutorial.Shown(cell, printed) for cell in tutorial.cells(page.read_text("utf-8"))
             if cell.kind == "shown"]
    assert len(shown) == 1
    assert (tutorial.differences(page, shown) == []) == fits


@pytest.mark.quick
def test_numbers_of_a_page_are_refreshed(tmp_path):
    page = tmp_path / "1-page.md"
    text = "# 1\n\n```sh\nfedax x\n```\n\n```text\n3 rounds ... 0.5%\n```\n\nThe end of 3.\n"
    page.write_text(text, "utf-8")
    (cell,) = (cell for cell in tutorial.cells(text) if cell.kind == "shown")
    new = tutorial.refreshed(page, [tutorial.Shown(cell, "4 rounds in 2 s: 0.75% in all")])
    assert new == text.replace("3 rounds ... 0.5%", "4 rounds ... 0.75%")


@pytest.mark.quick
def test_blocks_become_cells():
    text = (
        "# Words\n\n```sh\nfedax list\n```\n\n![A picture](a.png)\n\n"
        '```python title="a.py"\nx = 1\n```\n\n[on](2-on.md)\n'
    )
    assert [(cell.kind, cell.text) for cell in tutorial.cells(text)] == [
        ("words", "# Words"), ("code", "!fedax list"),
        ("code", "from IPython.display import Image\n\nImage('a.png')"),
        ("code", "%%writefile a.py\nx = 1"), ("words", "[on](2-on.ipynb)"),
    ]


@pytest.mark.quick
def test_a_command_that_fails_unsaid_is_no_success(tmp_path):
    page = tmp_path / "1-page.md"
    page.write_text("# 1\n\n```sh\nfedax plot\n```\n\n```text\nPicture: ...\n```\n", "utf-8")
    with pytest.raises(ValueError, match="needs a kind of picture"):
        tutorial.run(page, tmp_path)


@pytest.mark.quick
def test_the_first_page_says_how_long_the_command_alone_trains():
    text = PAGES[0].read_text("utf-8")
    assert f"`fedax run` alone trains for {resolve().num_rounds} rounds" in text
