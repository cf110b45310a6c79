"""The pages of reproductions: what is committed is what the script makes, and can be found."""

import re
from types import SimpleNamespace

import matplotlib.image
import pytest

import build_reproductions as build
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.reproductions.outcome import judged, read, verdict
from reproduction_runs import RESULTS, Trained, linked, page_of, runs, source, waiting
from reproduction_sections import moved

pytestmark = pytest.mark.quick
ROW = re.compile(r'^\| <a id="([\w-]+)"></a>(.*) \|$', re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


@pytest.fixture(scope="module")
def made():
    return build.pages()


@pytest.fixture(scope="module")
def rows(made):
    """Name -> the cells of its row."""
    found = ROW.findall(made[build.OVERVIEW])
    assert len(found) == len(dict(found))
    return {name: cells.split(" | ") for name, cells in found}


def test_the_pages_are_those_of_their_files(made):
    """They are generated, not typed, and there are no others."""
    assert {build.OVERVIEW, *RESULTS.glob("*.md")} == set(made)
    for path, text in made.items():
        assert path.read_text("utf-8") == text, path.name


def test_each_table_and_figure_has_one_row(made, rows):
    assert set(rows) == {*EXPERIMENTS, *REPRODUCTIONS}
    papers = re.findall(r"^## (.*)$", made[build.OVERVIEW], re.MULTILINE)
    assert papers == sorted({source(name).paper for name in rows})
    for name, (place, question, _, waits) in rows.items():
        assert place.startswith(f"[{source(name).place}](reproductions/{page_of(name)}")
        info = EXPERIMENTS.get(name) or REPRODUCTIONS[name]
        assert info.source.lower() == ", ".join(source(name)).lower()
        assert question == info.description
        assert waits


def test_each_verdict_stands_beside_its_own_link(rows):
    """Judged here a second time, from the files."""
    wanted = {name: set() for name in rows}
    for path in RESULTS.glob("*.json"):
        came = read(path)
        found = verdict(judged(EXPERIMENTS[came.name], came.results))
        wanted[came.name].add((f"reproductions/{page_of(came.name)}#{path.stem}", found))
    for name, info in REPRODUCTIONS.items():
        wanted[name].add((f"reproductions/{page_of(name)}#{name}", info.verdict))
    for name, (_, _, came_out, _) in rows.items():
        lines = [] if came_out == "not run" else came_out.split("<br>")
        said = r"\[[\w ,-]+\]\((.*?)\): (.*?)( \(not .*\))?"  # in brackets: what was not run
        pairs = [re.fullmatch(said, line).groups()[:2] for line in lines]
        assert len(pairs) == len(wanted[name])
        assert set(pairs) == wanted[name]


def test_what_is_not_finished_is_said_beside_the_verdict(monkeypatch):
    """A panel that is missing, and runs that are."""
    whole = next(run for run in runs() if run.title == "adaptive-table-1-small-stand-in")
    first, *_ = whole.plan.panels
    assert not whole.left
    plan = whole.plan.only([first]).with_seeds(9)
    parts = (*plan.parts, *whole.plan.parts)
    info = whole.info._replace(plan=lambda scale, stand_in: plan._replace(parts=parts))
    monkeypatch.setitem(EXPERIMENTS, whole.name, info)
    traces = [trace for trace in whole.came.results.traces if trace.panel == first]
    part = Trained(whole.came._replace(results=type(whole.came.results)(traces)))
    missing, unfinished = part.left
    assert missing.startswith("not run yet: ")
    assert first not in missing
    assert unfinished.startswith(f"not all is done yet: {first}, ")
    assert linked("small", part, "reproductions/") == (
        f"[small](reproductions/adaptive.md#{part.title}): {part.verdict} ({missing}) "
        f"({unfinished})")


def test_what_was_run_waits_for_nothing():
    of = [run for run in runs() if run.name == "adaptive-table-1"]
    assert [words.partition(":")[0] for words in waiting("adaptive-table-1", of)] == ["in full"]
    assert [words.partition(":")[0] for words in waiting("adaptive-table-1", of[:1])] == [
        "small, by stand-in", "published settings, by stand-in", "in full"]
    assert waiting("mime-figure-2", []) == []


def anchors(text):
    """What a page's links may name: those of its own and its headings'."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"<.*?>", "", heading).lower() for heading in headings)
    slugs = {re.sub(r"[^\w\s-]", "", heading).strip().replace(" ", "-") for heading in plain}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


def test_every_link_of_the_pages_leads_somewhere(made):
    for path, text in made.items():
        for target, anchor in LINK.findall(text):
            if "://" in target:
                continue
            to = (path.parent / target).resolve() if target else path
            assert to.is_file(), (path.name, target)
            if anchor:
                assert anchor in anchors(to.read_text("utf-8")), (path.name, target, anchor)


def test_each_section_can_be_found_and_leads_back(made):
    for run in runs():
        text = made[RESULTS / page_of(run.title)]
        _, found = text.split(f'\n## <a id="{run.title}"></a>')
        assert found.startswith(f"{source(run.name).place}, {run.kind}\n")
        assert f"](../reproductions.md#{run.name})" in found.split("\n## ")[0]


def test_links_of_notes_are_moved_to_the_papers_page():
    titles = ["mime-table-3-small", "adaptive-figure-1-small"]
    text = ("[a](#mime-table-3-small) [b](#adaptive-figure-1-small) [c](log.md#0120-x) "
            "[d](../src/fedax/train.py) [e](https://example.org/a#b) [f](reproductions.md)")
    assert moved(text, "mime.md", titles) == (
        "[a](#mime-table-3-small) [b](adaptive.md#adaptive-figure-1-small) [c](../log.md#0120-x) "
        "[d](../../src/fedax/train.py) [e](https://example.org/a#b) [f](../reproductions.md)"
    )
    with pytest.raises(SystemExit, match="#gone, which is no run"):
        moved("[a](#gone)", "mime.md", titles)


def test_a_methods_page_names_its_runs_with_their_verdicts(monkeypatch):
    monkeypatch.syspath_prepend(RESULTS.parent.parent.parent / "website")
    import pages_of_methods

    text = pages_of_methods.page("mime").split("Reproductions, with their results:")[1]
    for run in runs():
        line = (f"    - [{source(run.name).place}, {run.kind}]"
                f"(../notebook/reproductions/{page_of(run.title)}#{run.title}): {run.verdict}"
                + "".join(f" ({what})" for what in run.left) + "\n")
        assert (line in text) == ("mime" in run.methods), run.title
    assert text.count("\n- ") == len(set(re.findall(r"^- (.*)$", text, re.MULTILINE)))


def test_pictures_are_loaded_late_and_keep_their_room(monkeypatch):
    monkeypatch.syspath_prepend(RESULTS.parent.parent.parent / "website")
    import hooks

    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebook/reproductions/mime.md"))
    name = "mime-figure-3-small-stand-in.png"
    height, width, _ = matplotlib.image.imread(RESULTS / name).shape
    found = hooks.on_page_content(f'<p><img alt="a" src="{name}" /></p>', page=page)
    assert found == (f'<p><img alt="a" src="{name}" loading="lazy" width="{width}" '
                     f'height="{height}" /></p>')
    there = '<img src="gone.png" /> <img src="https://example.org/a.png" />'
    assert hooks.on_page_content(there, page=page) == there
