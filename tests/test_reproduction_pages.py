"""The pages of reproductions: what is committed is what the script makes, and can be found."""

import itertools
import re
from types import SimpleNamespace

import matplotlib.image
import pytest

import build_reproductions as build
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.reproductions.experiment import Part, Plan
from fedax.reproductions.outcome import in_a_word, judged, verdict
from fedax.reproductions.results import Results, Trace
from fedax.reproductions.results_file import read
from reproduction_runs import (
    CHANGED,
    IN_PART,
    KINDS,
    RESULTS,
    Trained,
    data_of,
    kind,
    linked,
    page_of,
    runs,
    source,
    waiting,
)
from reproduction_sections import moved

pytestmark = pytest.mark.quick
ROW = re.compile(r'^\| <a id="([\w-]+)"></a>(.*) \|$', re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def outcomes_of(came):
    """Each criterion of a result with what it came to, by the whole plan."""
    entry = EXPERIMENTS[came.name]
    return judged(entry, came.results, entry.plan(came.scale, came.stand_in))


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
    papers = re.findall(r'^## <a id="(.*)"></a>(.*)$', made[build.OVERVIEW], re.MULTILINE)
    assert papers == sorted(
        {(page_of(name).removesuffix(".md"), source(name).paper) for name in rows},
        key=lambda paper: paper[1],
    )
    for name, (place, question, *_) in rows.items():
        assert place.startswith(f"[{source(name).place}](reproductions/{page_of(name)}")
        info = EXPERIMENTS.get(name) or REPRODUCTIONS[name]
        assert info.source.lower() == ", ".join(source(name)).lower()
        assert question == info.description


def test_each_row_has_one_word_and_a_sentence_why(rows):
    """Judged here a second time, from the files."""
    found = {name: [] for name in rows}
    for path in RESULTS.glob("*.json"):
        came = read(path)
        found[came.name].append(((came.scale != "paper", came.stand_in), outcomes_of(came)))
    for name, (_, _, word, count, data, why) in rows.items():
        of_runs = [
            [outcome for _, outcome in outcomes]
            for _, outcomes in sorted(found[name], key=lambda one: one[0])
        ]
        telling = [outcome.agrees for outcome in itertools.chain(*of_runs)
                   if outcome.run and not outcome.inconclusive]
        computed = REPRODUCTIONS.get(name)
        assert word in build.WORDS
        assert word == (computed.result if computed else in_a_word(of_runs[0] if of_runs else []))
        said = [re.fullmatch(r"(.*): (\d+) of (\d+)", part) for part in count.split("; ") if part]
        assert sum(int(part[2]) for part in said) == sum(telling)
        assert sum(int(part[3]) for part in said) == len(telling)
        kinds = [part[1].removesuffix(", in part") for part in said]
        order = [KINDS[0], IN_PART.removesuffix(", in part"), KINDS[1], CHANGED, *KINDS[2:]]
        assert kinds == sorted(kinds, key=order.index)
        assert (data == "") == (word == "not run")
        assert word == "agrees" or why, name
        assert len(why.split()) <= 35
        assert why == "" or re.search(r"[^.]\.$", why)


def test_the_overview_begins_with_its_counts_and_a_picture(made, rows):
    words = [word for _, _, word, *_ in rows.values()]
    title, _, counts, _, picture, *_ = made[build.OVERVIEW].splitlines()
    assert title == "# Reproductions"
    agrees = words.count("agrees")
    assert counts.startswith(f"**In {agrees} of {len(words)} tables and figures the strongest run")
    for word in build.WORDS:
        assert f"{word}: {words.count(word)}" in counts
    assert (RESULTS.parent / re.search(r"\((.*)\)", picture)[1]).is_file()


def test_each_verdict_is_beside_its_own_link(made):
    wanted = {page: set() for page in made if page != build.OVERVIEW}
    for path in RESULTS.glob("*.json"):
        came = read(path)
        found = verdict(outcomes_of(came))
        wanted[RESULTS / page_of(came.name)].add((path.stem, found))
    for name, info in REPRODUCTIONS.items():
        wanted[RESULTS / page_of(name)].add((name, info.verdict))
    for page, pairs in wanted.items():
        said = r"^- \[[^]]+\]\(#(\S+?)\): (.*?)(?: \(not .* yet: .*\))?$"  # what was not run
        found = re.findall(said, made[page].split("\n## ")[0], re.MULTILINE)
        assert set(found) == pairs
        assert len(found) == len(pairs)


def test_what_was_not_run_is_listed(made):
    every = runs()
    for name in (*EXPERIMENTS, *REPRODUCTIONS):
        above = made[RESULTS / page_of(name)].split("\n## ")[0].splitlines()
        for what in waiting(name, [run for run in every if run.name == name]):
            assert f"- {source(name).place}, {what}" in above


def test_what_is_not_finished_is_said_beside_the_verdict(monkeypatch):
    """A panel that is missing, and runs that are."""
    whole = next(run for run in runs() if run.title == "reddi2021-table-1-small-stand-in")
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
    labels = ", ".join(part.label for part in plan.parts)
    done, wanted = (one.only([first]).num_runs // 5 for one in (whole.plan, plan._replace(
        parts=parts)))
    assert unfinished.startswith(f"not all runs are done yet: {first} ({labels}) ")
    assert unfinished.endswith(f" of {wanted} each")
    assert done < wanted
    assert linked("small", part, "reproductions/") == (
        f"[small](reproductions/reddi2021.md#{part.title}): {part.verdict} ({missing}) "
        f"({unfinished})")


def test_what_was_run_waits_for_nothing():
    of = [run for run in runs() if run.name == "reddi2021-table-1"]
    whole = [run for run in of if run.rest is None]
    assert len(whole) >= 2
    left = [words.partition(":")[0] for words in waiting("reddi2021-table-1", whole)]
    assert left == ["published settings, other data", "in full"]


def test_what_is_left_of_a_plan_waits_with_its_hours(monkeypatch):
    """Of A three seeds of five, of B none: 2 + 5 runs of 10, so 0.7 of 2 hours; Q is whole."""
    parts = (Part("P", "A", "quadratics", "fedavg", num_seeds=5),
             Part("P", "B", "quadratics", "fedavg", num_seeds=5),
             Part("Q", "A", "quadratics", "fedavg"))
    whole = next(run for run in runs() if run.title == "reddi2021-table-1-paper-stand-in")
    plan = Plan(parts, "", {"P": (2.0, 1.0), "Q": (9.0, 9.0)})
    info = whole.info._replace(
        plan=lambda scale, stand_in: plan if (scale, stand_in) == ("paper", False) else None)
    monkeypatch.setitem(EXPERIMENTS, whole.name, info)
    traces = [Trace(panel, "A", {}, seed, 1, 0, {}, {}) for panel in "PQ" for seed in range(3)]
    run = Trained(whole.came._replace(stand_in=False, results=Results(traces)))
    assert run.left == ["not run yet: P (B)", "not all runs are done yet: P (A) 3 of 5"]
    assert run.kind == "published settings and data, in part"
    assert waiting(whole.name, [run]) == [
        "in full, what is left: about 1.4 hours on 2 cores (P), perhaps 0.70 on a GPU"]
    more = [Trace("P", label, {}, seed, 1, 0, {}, {}) for label in "AB" for seed in range(5)]
    done = Trained(run.came._replace(results=Results([*more, *traces[3:]])))
    assert (done.left, done.kind, done.rest) == ([], "in full", None)
    assert waiting(whole.name, [done]) == []


@pytest.mark.parametrize("number", [3, 4, 8])
def test_the_papers_data_with_fewer_rounds_are_no_stand_in(number):
    """Nor are they called so where they wait to be run."""
    name = f"reddi2021-figure-{number}"
    panel = "shakespeare-tff (100 rounds) for Shakespeare"
    some = next(run for run in runs() if isinstance(run, Trained))
    results = Results([Trace(panel, "Adam", {}, 0, 1, 0, {}, {})])
    run = Trained(some.came._replace(name=name, scale="paper", stand_in=True, results=results))
    assert run.kind == "changed settings, fewer rounds"  # few rates are tried
    assert data_of([run]) == "shakespeare-tff (100 rounds)"
    kinds = [words.partition(":")[0] for words in waiting(name, [])]
    assert "changed settings, fewer rounds" in kinds
    assert KINDS[1] not in kinds
    replaced = Results([Trace("plays for Shakespeare", "Adam", {}, 0, 1, 0, {}, {})])
    other = Trained(some.came._replace(name=name, scale="small", stand_in=True, results=replaced))
    assert data_of([other]) == "plays (stand-in)"


@pytest.mark.parametrize(("name", "panel", "found"), [
    # Section 6 has an MLP, which writers of MNIST get a logistic regression for.
    ("mime2020-figure-3", "MNIST by writers for EMNIST62", "changed settings, other data"),
    ("mime2020-figure-3", "femnist-328 (300 rounds) for EMNIST62",
     "published settings, other data"),
    ("mime2020-figure-5", "femnist-328 (300 rounds) for EMNIST62", "changed settings, other data"),
    ("mime2020-table-3", "femnist-328 for EMNIST62 logistic", "changed settings, other data"),
    ("reddi2021-figure-4", "shakespeare-tff (100 rounds) for Shakespeare",
     "changed settings, fewer rounds"),
    ("reddi2021-table-1", "femnist-328 (300 rounds) for EMNIST CR",
     "published settings, other data"),
])
def test_another_network_and_a_smaller_search_are_no_published_settings(name, panel, found):
    experiment = EXPERIMENTS[name]
    plan = experiment.plan("paper", True)
    assert kind("paper", True, [panel], plan, experiment) == found
    unchanged = kind("paper", True, [panel], plan._replace(changed=()), experiment)
    papers = panel.startswith("shakespeare-tff")
    assert unchanged == ("published settings and data, fewer rounds" if papers else KINDS[1])


@pytest.mark.parametrize("label", ["Adam", "Yogi"])
def test_the_published_best_rate_lies_inside_of_what_is_tried(label):
    """Appendix D: the server's 0.01 is the best of Shakespeare, with the adaptivity 0.001."""
    for number in (3, 4, 8):
        plan = EXPERIMENTS[f"reddi2021-figure-{number}"].plan("paper", True)
        tried = {
            rate for part in plan.parts if part.label == label
            and 1e-3 in part.grid.get("adaptivity", [1e-3])
            for rate in part.grid["server_learning_rate"]
        }
        assert min(tried) < 0.01 < max(tried)
        assert 0.01 in tried


def test_a_computed_figure_waits_for_nothing():
    assert waiting("mime2020-figure-2", []) == []


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
    titles = ["mime2020-table-3-small", "reddi2021-figure-1-small"]
    text = ("[a](#mime2020-table-3-small) [b](#reddi2021-figure-1-small) [c](log.md#0120-x) "
            "[d](../src/fedax/train.py) [e](https://example.org/a#b) [f](reproductions.md)")
    assert moved(text, "mime2020.md", titles) == (
        "[a](#mime2020-table-3-small) [b](reddi2021.md#reddi2021-figure-1-small) "
        "[c](../log.md#0120-x) "
        "[d](../../src/fedax/train.py) [e](https://example.org/a#b) [f](../reproductions.md)"
    )
    with pytest.raises(SystemExit, match="#gone, which is no run"):
        moved("[a](#gone)", "mime2020.md", titles)


def test_a_methods_page_names_its_runs_with_their_verdicts(monkeypatch):
    monkeypatch.syspath_prepend(RESULTS.parents[2] / "website")
    import pages_of_methods

    text = pages_of_methods.page("mime").split("Reproductions, with their results:")[1]
    for run in runs():
        line = (f"    - [{source(run.name).place}, {run.kind}]"
                f"(../notebook/reproductions/{page_of(run.title)}#{run.title}): {run.verdict}"
                + "".join(f" ({what})" for what in run.left) + "\n")
        assert (line in text) == ("mime" in run.methods), run.title
    assert text.count("\n- ") == len(set(re.findall(r"^- (.*)$", text, re.MULTILINE)))


def test_pictures_are_loaded_late_and_keep_their_room(monkeypatch):
    monkeypatch.syspath_prepend(RESULTS.parents[2] / "website")
    import hooks

    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebook/reproductions/mime2020.md"))
    name = "mime2020-figure-3-small-stand-in.png"
    height, width, _ = matplotlib.image.imread(RESULTS / name).shape
    found = hooks.on_page_content(f'<p><img alt="a" src="{name}" /></p>', page=page)
    assert found == (f'<p><img alt="a" src="{name}" loading="lazy" width="{width}" '
                     f'height="{height}" /></p>')
    there = '<img src="gone.png" /> <img src="https://example.org/a.png" />'
    assert hooks.on_page_content(there, page=page) == there
