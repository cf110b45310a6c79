"""The site: it is built without a warning, its links lead somewhere, and a browser shows it."""

import ast
import builtins
import collections
import contextlib
import doctest
import html.parser
import inspect
import os
import re
import statistics
import subprocess
import sys
import types
import urllib.parse
from pathlib import Path

import griffe
import pytest

import browsers
import fedax
from fedax.algorithms import registry

ROOT = Path(__file__).parent.parent
NAMES = [*registry.ALGORITHMS, *registry.WRAPPERS]
# What a reader looks at most: home, the tutorial, methods, pictures, commands, the reference,
# guides, and those with wide tables.
LOOKED_AT = ("index", "tutorial/index", "tutorial/6-tuning", "methods/fedadam", "methods/elastic",
             "pictures", "commands/index", "commands/run", "reference/training",
             "guides/diagnostics", "tasks", "methods", "notebook/index",
             "notebook/reproductions", "notebook/reproductions/mime2020", "notebook/benchmarks")
# How many pictures cannot be shown, those too that are loaded when they come into sight.
PICTURES = """async () => {
  const pictures = [...document.images];
  pictures.forEach(one => { one.loading = 'eager'; });
  await Promise.all(pictures.map(one => one.decode().catch(() => {})));
  return pictures.filter(one => !one.naturalWidth).length;
}"""
# Words -> the page that a search for them finds first.
FOUND = {
    "scaffold": "methods/scaffold", "mostly cancellation": "guides/diagnostics",
    "mime": "methods/mime", "fedavg": "methods/fedavg", "resume": "guides/resuming",
    "my own csv": "guides/your-data", "getting started": "guides/quick-start",
    "how to install": "guides/quick-start", "install": "guides/quick-start",
    "hyperparameter tuning": "guides/tuning", "personalized": "guides/per-client",
    "personalization": "guides/per-client", "api": "reference/index",
    "reproduce": "guides/reproducing", "non-iid": "partitions", "heterogeneity": "partitions",
    "differential privacy": "guides/privacy", "secure aggregation": "guides/limits",
    "gpu": "guides/installation", "windows": "guides/installation",
    "early stopping": "guides/running", "client dropout": "guides/participation",
    "own dataset": "guides/your-data", "pytorch": "guides/from-pytorch",
    "learning rate": "guides/tuning", "federated averaging": "methods/fedavg",
    "hyperparameter": "guides/tuning", "checkpoint": "guides/resuming",
}
# Words -> pages that are among the first five which a search for them finds.
AMONG_FIRST = {
    "client drift": ("guides/diagnostics", "tutorial/2-the-page", "theory"),
    "learning rate": ("guides/tuning", "tutorial/6-tuning"),
    "adam": ("methods/fedadam",), "momentum": ("methods/fedavgm",),
    "heterogeneous": ("guides/diagnostics", "partitions", "notebook/label-skew"),
}
FOUND_LINKS = ".md-search-result__link"
WIDE, NARROW = 1280, 390
# Identifiers of papers on arXiv -> what a line that links to one calls it.
ARXIV = {
    "2301.09604": "FedExP", "2111.04263": "FedDyn", "2007.07481": "FedNova", "1905.10497": "q-FFL",
}
# How many frames of a heat map's best cell reach beyond the map, where they are not seen.
CUT_FRAMES = """[...document.querySelectorAll('.map td.best')].filter(cell => {
  const style = getComputedStyle(cell), box = cell.getBoundingClientRect();
  const beyond = parseFloat(style.outlineOffset) + parseFloat(style.outlineWidth);
  return box.bottom + beyond > cell.closest('.map').getBoundingClientRect().bottom + 0.1;
}).length"""
# What Markdown made of stars, lines below and angles of a formula: tags that no browser knows, and
# emphasis that begins or ends within a word, or next to a bar.
MANGLED = """() => {
  const unknown = [...document.querySelectorAll('article *')].filter(one =>
    one instanceof HTMLUnknownElement);
  const within = [...document.querySelectorAll('article em')].filter(one =>
    /[\\w|]$/.test(one.previousSibling?.textContent ?? '') ||
    /^[\\w|^_(]/.test(one.nextSibling?.textContent ?? ''));
  return [...unknown, ...within].map(one => one.outerHTML);
}"""
# Indices that do not reach below what they belong to, as in x t for x_t.
NOT_BELOW = """[...document.querySelectorAll('msub')].filter(one => {
  const [base, index] = [...one.children].map(part => part.getBoundingClientRect().bottom);
  return index <= base;
}).map(one => one.textContent)"""
# Formulas that are wider than their place, whose ends are seen by who scrolls them alone.
CUT_FORMULAS = """[...document.querySelectorAll('.formula')].filter(one =>
  one.scrollWidth > one.clientWidth).map(one => one.textContent)"""
# Blocks of code that are wider than their place.
CUT_CODE = """[...document.querySelectorAll('article pre > code')].filter(one =>
  one.scrollWidth > one.clientWidth).map(one => one.textContent)"""
# Of the build's process: asking for a host raises.
NO_NETWORK = """
import socket
def refuse(*_, **__):
    raise OSError("the build of the site asked for the network")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
"""


@pytest.fixture
def website(monkeypatch):
    """The folder whose modules make pages."""
    monkeypatch.syspath_prepend(ROOT / "website")
    return ROOT / "website"


class Links(html.parser.HTMLParser):
    """A page's links, the files that it loads, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.update(found[key] for key in ("id", "name") if found.get(key))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(found["href"])


def broken(site):
    """(page, link) of all links that lead nowhere, and of all that is loaded from elsewhere."""
    pages = {page: Links(page.read_text("utf-8")) for page in site.rglob("*.html")}
    wrong = []
    for page, found in pages.items():
        name = page.relative_to(site).as_posix()
        wrong += [(name, link) for link in found.loaded if "://" in link or link.startswith("//")]
        for link in [*found.links, *found.loaded]:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = urllib.parse.unquote(parts.path)
            target = (page.parent / path).resolve() if path else page
            anchor = urllib.parse.unquote(parts.fragment)
            there = not anchor or target not in pages or anchor in pages[target].anchors
            if not (target.is_file() and there):
                wrong.append((name, link))
    return pages, wrong


def looked_at(browser, site, width, scheme):
    """Opens pages at a width; nothing may be asked of anybody, said, or wider than the screen."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, said = [], []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        browsers.painted(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        assert page.evaluate(PICTURES) == 0, name
        shown = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
        contrast(page, name)
        assert page.evaluate(CUT_FRAMES) == 0, name
    assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert said == []
    context.close()


def fits(browser, site):
    """Opens every page: none is wider than the screen, lacks a picture, or says something is wrong.
    """
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    found = sorted(site.rglob("*.html"))
    assert len(found) > 80
    for path in found:
        name = path.relative_to(site).as_posix()
        page.set_viewport_size({"width": WIDE, "height": 900})
        page.goto(path.as_uri())
        assert page.evaluate(PICTURES) == 0, name
        assert page.evaluate(MANGLED) == [], name
        assert page.evaluate(CUT_FORMULAS) == [], name
        if name.startswith(("reference/", "commands/", "methods/")):
            assert page.evaluate(CUT_CODE) == [], name
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.evaluate(NOT_BELOW) == [], name
        assert said == [], name
    page.close()


def bounds(site):
    """How many descriptions begin with `>`: in the reference, and in the docstrings it shows."""
    package = griffe.load("fedax", search_paths=[str(ROOT / "src")], resolve_aliases=True)
    shown = written = 0
    for page in (site / "reference").glob("*.html"):
        text = page.read_text("utf-8")
        assert "<blockquote" not in text, page.name
        shown += len(re.findall(r'doc-md-description">\s*<p>&gt;', text))
        for name in set(re.findall(r'<h\d id="fedax\.([\w.]+)" class="doc doc-heading"', text)):
            if docstring := package[name].docstring:
                written += len(re.findall(r"^ +[\w*, ]+: >", docstring.value, re.MULTILINE))
    return shown, written


def fonts_of_formulas(browser, file):
    """The fonts that a page's formulas are drawn in, and whether they come with the site."""
    page = browser.new_page()
    page.goto(file.as_uri())
    browsers.painted(page)
    session = page.context.new_cdp_session(page)  # which says of a file that it is loaded again
    for part in ("DOM", "CSS"):
        session.send(f"{part}.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    found = session.send("DOM.querySelectorAll", {"nodeId": root, "selector": "math, math *"})
    fonts = [font for node in found["nodeIds"] for font in
             session.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]]
    page.close()
    return {(font["familyName"], font["isCustomFont"]) for font in fonts}


def tables_of_font(font):
    """The names of the tables of a WOFF2 file's directory, but for those that every font has."""
    number, at, found = int.from_bytes(font[12:14]), 48, []
    for _ in range(number):
        flags = font[at]
        at += 1
        tag = flags & 0x3F  # a number of the format's list, in which MATH is 31
        if tag == 0x3F:
            found.append(font[at:at + 4].decode())
            at += 4
        transformed = (flags >> 6) != 3 if tag in (10, 11) else bool(flags >> 6)
        found.append("MATH" if tag == 31 else "")
        for _ in range(1 + transformed):  # lengths, seven bits a byte
            while font[at] & 0x80:
                at += 1
            at += 1
    return {name for name in found if name}


def contrast(page, name):
    """Text and links stand out from the page by 4.5 to 1 at least (WCAG AA)."""
    ratio = page.evaluate("""() => {
      const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
      const rgb = colour => {  // as it looks on the page
        canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
        canvas.fillRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
      };
      const light = colour => rgb(colour).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const back = light(getComputedStyle(document.body).backgroundColor);
      const found = [...document.querySelectorAll('article p, article p a, article td, article h1')]
        .map(one => light(getComputedStyle(one).color))
        .map(l => (Math.max(l, back) + 0.05) / (Math.min(l, back) + 0.05));
      return Math.min(...found);
    }""")
    assert ratio >= 4.5, (name, ratio)


@contextlib.contextmanager
def searching(browser, site, width):
    """words -> the pages that the search finds, the first ten, from a file and without a network.

    With `follow` the page that the first of them leads to.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    page.goto((site / "guides" / "running.html").as_uri())
    field, links = page.locator(".md-search__input"), page.locator(FOUND_LINKS)
    if not field.is_visible():  # on a narrow screen it opens
        page.locator(".md-header__button[for=__search]").click()

    def ask(words):
        field.fill(words)
        field.press("End")  # the search listens to keys

    def search(words, follow=False):
        ask("")
        links.first.wait_for(state="detached", timeout=90_000)  # of a busy machine
        ask(words)
        links.first.wait_for(state="visible", timeout=90_000)
        page.wait_for_function("""() => {
          const box = document.querySelector('.md-search__output').getBoundingClientRect();
          return box.left >= 0 && box.right <= innerWidth;
        }""", timeout=5_000)
        addresses = links.evaluate_all("links => links.map(link => link.href)")
        if follow:
            with page.expect_navigation():
                links.first.click()
            addresses = [page.url]
        paths = [urllib.parse.urlsplit(one).path.partition(f"{site.name}/")[2] for one in addresses]
        return list(dict.fromkeys(path.removesuffix(".html") for path in paths))

    yield search
    context.close()


@pytest.mark.slow
@pytest.mark.long
def test_the_site_is_built_and_shown_without_a_network(tmp_path, tmp_path_factory):
    without = tmp_path_factory.mktemp("without-network")
    (without / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join(filter(None, (str(without), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": path}
    ask = "import socket; socket.create_connection(('localhost', 9))"
    asked = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True,
                           text=True, check=False)
    assert "asked for the network" in asked.stderr
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search("WARNING|ERROR", done.stderr), done.stderr
    pages, wrong = broken(tmp_path)
    assert wrong == []
    documents = {path.relative_to(ROOT / "docs").with_suffix("").as_posix()
                 for path in (ROOT / "docs").rglob("*.md")}
    there = {page.relative_to(tmp_path).with_suffix("").as_posix() for page in pages}
    assert documents | {f"methods/{name}" for name in NAMES} | {"commands/run"} <= there
    shown, written = bounds(tmp_path)
    assert shown == written > 20
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    public = {f"fedax.{name}" for name in fedax.__all__}
    assert public - anchors == set()
    text = (tmp_path / "methods" / "scaffold.html").read_text("utf-8")
    assert "<math" in text
    assert "arithmatex" not in text
    with browsers.started() as browser:
        for name in ("notebook/errata", "methods/fedadam", "reference/theory"):
            fonts = fonts_of_formulas(browser, tmp_path / f"{name}.html")
            assert fonts == {("STIX Two Math", True)}, name
        for width in (WIDE, NARROW):
            for scheme in ("light", "dark"):
                looked_at(browser, tmp_path, width, scheme)
        fits(browser, tmp_path)
        with searching(browser, tmp_path, WIDE) as search:
            for words, expected in FOUND.items():
                assert search(words)[:1] == [expected], words
            for words, expected in AMONG_FIRST.items():
                assert set(expected) <= set(search(words)[:5]), words
        # What is found is the same on a narrow screen: there one search shows that it works.
        for width in (WIDE, NARROW):
            with searching(browser, tmp_path, width) as search:
                assert search("scaffold", follow=True) == ["methods/scaffold"]


@pytest.mark.quick
def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>'
        '<a href="https://example.org">4</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<p id="here">')
    wrong = broken(tmp_path)[1]
    assert sorted(link for _, link in wrong) == [
        "b.html#gone", "c.html", "https://example.org/x.js"
    ]


def malformed(text):
    """The addresses in a text that are no https, or name no host of the net."""
    found = re.findall(r"\w+://[^\s<>\"'`)\]]*", text)
    return [url for url in found if not re.fullmatch(
        r"https://(?:[a-z0-9-]+\.)+[a-z]{2,}(?:/[\w./~%#?=&+-]*[\w/])?", url)]


@pytest.mark.quick
@pytest.mark.parametrize(("url", "wrong"), [
    ("https://arxiv.org/abs/2003.00295", False), ("https://optuna.org", False),
    ("http://optuna.org", True), ("https://optuna", True), ("https:///abs/2003.00295", True),
    ("https://arxiv.org/abs/2003.00295,", True), ("https://arxiv.org//abs\\2003", True),
])
def test_malformed_addresses_are_found(url, wrong):
    assert malformed(f"See [it]({url}).") == ([url] if wrong else [])


@pytest.mark.quick
def test_addresses_of_the_pages_are_well_formed_and_of_the_papers_that_they_name():
    """Nobody asks the network whether they answer."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = set()
    for page in pages:
        text = page.read_text("utf-8")
        links = re.findall(r"\]\((\w+://[^)]*)\)", text)
        assert malformed("\n".join(links)) == [], page
        for line in text.splitlines():
            for identifier in re.findall(r"arxiv\.org/abs/([\w.]+)", line):
                assert ARXIV[identifier] in line, (page, identifier)
                named.add(identifier)
    assert named == set(ARXIV)


@pytest.mark.quick
def test_every_method_has_a_page_of_its_own(website):
    import pages_of_methods

    pages = pages_of_methods.pages()
    assert set(pages) == {f"methods/{name}.md" for name in NAMES}
    for name, text in pages.items():
        headings = re.findall(r"^## (.*?)(?: \{.*\})?$", text, re.MULTILINE)
        assert [one for one in headings if one != "Differences from the literature"] == [
            "The update", "Settings", "When to use it", "Measurements", "Sources"
        ], name
        assert ">>> " in text, name
        assert ":math:" not in text, name
    linked = {path for entry in pages_of_methods.navigation() for paths in entry.values()
              for path in paths}
    assert linked == set(pages)


@pytest.mark.quick
@pytest.mark.parametrize("name", NAMES)
def test_a_method_s_example_is_its_docstring_s_and_imports_what_it_uses(name, website):
    """The docstring's is run as a doctest, with the names of its module: a new session has none."""
    import pages_of_methods

    (code,) = re.findall(r"^```pycon\n(.*?)^```", pages_of_methods.page(name), re.M | re.S)
    parts = [one.source for one in doctest.DocTestParser().get_examples(code)]
    docstring = inspect.getdoc(getattr(fedax, name))
    assert parts == [one.source for one in doctest.DocTestParser().get_examples(docstring)]
    assert undefined("".join(parts)) == set()
    assert f"fedax.{name}(" in code


def undefined(code):
    """The names that a program uses and neither defines nor imports before."""
    known, missing = set(dir(builtins)), set()
    for statement in ast.parse(code).body:
        nodes = list(ast.walk(statement))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        known |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        known |= {(node.asname or node.name).split(".")[0]
                  for node in nodes if isinstance(node, ast.alias)}
        missing |= {node.id for node in names} - known
    return missing


def test_names_that_an_example_does_not_define_are_found():
    assert undefined("import jax.numpy as jnp\nx = [i for i in range(jnp.pi)]\nprint(x)") == set()
    assert undefined("x = jnp.ones(y)\nimport jax.numpy as jnp\ny = 1") == {"jnp", "y"}


@pytest.mark.quick
def test_a_method_s_update_is_a_formula_whose_symbols_are_said(website):
    import pages_of_methods
    import symbols

    for name, text in pages_of_methods.pages().items():
        update, _, said = between(text, "## The update\n", "\n## ").partition("**Symbols**")
        assert "$$" in update, name
        assert letters(update) - letters(said) == set(), name
        own = symbols.OWN.get(Path(name).stem, {})
        assert [symbol for symbol in own if f"${symbol}$: " not in said] == [], name
    elastic, fedavg, pfnm = (
        between(pages_of_methods.page(name), "**Symbols**", "</div>")
        for name in ("elastic", "fedavg", "pfnm")
    )
    assert r"$\tau$: `elasticity`" in elastic
    assert "$k$: a client" in elastic
    assert r"\tau" not in fedavg
    assert "x_" not in pfnm


def between(text, first, last):
    """What stands between two texts."""
    return text.partition(first)[2].partition(last)[0]


def letters(text):
    """The letters of a text's formulas, as a browser has them."""
    import formulas

    drawn = formulas.mathml(formulas.formulas(text).replace("&", " "), block=False)
    found = {html.unescape(one) for one in re.findall(r"<mi>(.*?)</mi>", drawn)}
    return {one for one in found if len(one) == 1 and one.isalpha()}


@pytest.mark.quick
def test_the_symbols_of_a_formula_are_found_and_one_that_nothing_explains_stops_the_build(website):
    import symbols

    assert symbols.occurring(r"x_{i,K_i}^2 \to \hat v_{t-1} / \text{sum}(\gamma_0)") == [
        "x_{i,k}", "i", "K_i", "v_t", "t", r"\gamma_0"
    ]
    assert "$m_t$" in symbols.meanings("fedadam", "m_0")
    with pytest.raises(ValueError, match=r"no meaning for \\zeta in the formulas of fedadam"):
        symbols.meanings("fedadam", r"x_t + \zeta")


@pytest.mark.quick
def test_each_argument_of_an_adaptive_method_has_a_meaning_of_its_own(website):
    import pages_of_methods

    for name in ("fedadam", "fedyogi", "fedadagrad", "fedamsgrad", "fedadabound", "local_adam"):
        text = between(pages_of_methods.page(name), "## Settings\n", "\n### ")
        rows = dict(re.findall(r"^\| (`\w+`) \|.*?\| (.*) \|$", text, re.MULTILINE))
        assert "steps are those of SGD" in rows["`adaptivity`"], name
        assert {"`momentum`", "`initial_accumulator`"} <= set(rows), name
        assert "as for" not in text, name
        assert len(set(rows.values())) == len(rows), name


@pytest.mark.quick
def test_names_of_the_reference_are_links_and_methods_pages_name_no_others(website):
    import docstrings
    import pages_of_methods

    text = docstrings.linked(
        "`fedax.optimizers.adam`, `optimizers.amsgrad`, `train`, `Model`, `a.b`"
    )
    assert text == (
        "[`fedax.optimizers.adam`][fedax.optimizers.adam], "
        "[`optimizers.amsgrad`][fedax.optimizers.amsgrad], `train`, [`Model`][fedax.Model], `a.b`"
    )
    for name, page in pages_of_methods.pages().items():
        assert not re.search("fold_minibatches|match_(?:scores|networks)|nearest_units", page), name


@pytest.mark.quick
def test_a_method_s_papers_are_named_in_full_and_can_be_followed(website):
    import pages_of_methods

    papers = [*registry.PAPERS.values(), *registry.EARLIER.values()]
    assert {paper.title for paper in papers if not paper.address} == {
        "Faster Federated Learning with Decaying Number of Local SGD Steps"
    }
    assert malformed("\n".join(paper.address for paper in papers)) == []
    assert len({paper.address for paper in papers}) == len(papers)
    for name, text in pages_of_methods.pages().items():
        sources = between(text, "\n## Sources\n", "\nReproductions")
        lines = re.findall(r"^- .*$", sources, re.MULTILINE)
        assert lines, name
        for line in lines:
            assert any(paper.title in line and paper.address in line for paper in papers), line
            assert "Alg." not in line, line
    assert (
        "- Reddi et al., [Adaptive Federated Optimization](https://arxiv.org/abs/2003.00295), "
        "2021: Algorithm 2\n"
    ) in pages_of_methods.page("fedadam")


@pytest.mark.quick
def test_what_was_not_varied_is_named(website):
    """`fedsgd` varies its steps and three decays, `elastic` has no options of local training."""
    import pages_of_methods

    assert (
        "Not measured: `server_optimizer`, and of the options of local training "
        "`num_local_epochs`, `weighting`, `order`, `proximal_weight`.\n"
    ) in pages_of_methods.page("fedsgd")
    assert "Not measured: `sensitivity_batch_size`.\n" in pages_of_methods.page("elastic")


@pytest.mark.quick
def test_the_pages_numbers_are_those_of_the_files(website):
    """The best setting and the share of good ones, computed here a second time."""
    import measured

    rows = collections.defaultdict(list)
    lines = (ROOT / "docs" / "notebook" / "sensitivity.csv").read_text("utf-8").splitlines()
    for line in lines[1:]:
        method, varied, client, server, _, _, _, diverged, accuracy = line.split(",")
        if (method, varied) == ("fedyogi", "rates"):
            rows[client, server].append(0.0 if diverged == "1" else float(accuracy))
    means = {pair: sum(found) / len(found) for pair, found in rows.items()}
    (client, server), top = max(means.items(), key=lambda item: item[1])
    good = sum(mean >= 0.95 * top for mean in means.values()) / len(means)
    text = measured.on_digits("fedyogi")
    assert f"client rate {client} and server rate {server}, with {100 * top:.1f}" in text
    assert f"**{good:.0%} of the settings**" in text
    page = (ROOT / "docs" / "notebook" / "learning-rates.md").read_text("utf-8")
    for method in ("fedavg", "fedyogi"):  # as scripts/learning_rates.py has them on its page
        shares = re.findall(rf"^\| {method} \|.*?\|.*?\| (\d+%) \|", page, re.MULTILINE)
        assert re.findall(r"\*\*(\d+%) of", "".join(measured.rate_maps(method))) == shares


@pytest.mark.quick
def test_every_method_was_measured(website):
    text = (ROOT / "docs" / "notebook" / "sensitivity.csv").read_text("utf-8")
    import measured

    # The file measures the server's model, and of these wrappers the wrapped method's rates hold.
    elsewhere = {*measured.OWN_MODELS, "attacked", "compressed", "private", "robust"}
    assert set(re.findall(r"^(\w+),rates,", text, re.MULTILINE)) == set(NAMES) - elsewhere


@pytest.mark.quick
def test_a_search_finds_pages_for_readers_first_and_no_files(website):
    import hooks

    assert hooks.found_in_a_search("source/tests/test_own.py.md") == {"exclude": True}
    boost = {uri: hooks.found_in_a_search(uri)["boost"] for uri in (
        "methods/mime.md", "methods/mimelite.md", "guides/resuming.md", "tutorial/1-first-run.md",
        "notebook/log.md", "index.md", "guides/quick-start.md",
        "notebook/reproductions/mime2020.md",
    )}
    assert list(boost.values()) == [16, 4, 4, 2, 1e-3, 1, 16, 1e-3]


def on_the_site(hooks, uri, text):
    """A page's Markdown as the site gets it."""
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=uri), meta={})
    return hooks.on_page_markdown(text, page)


@pytest.mark.quick
@pytest.mark.parametrize("page", ["methods.md", "notebook/quick-rates.md"])
def test_methods_in_tables_are_links_to_their_pages(page, website):
    import hooks

    text = on_the_site(hooks, page, (ROOT / "docs" / page).read_text("utf-8"))
    up = "../" * page.count("/")
    linked = set(re.findall(rf"\[`(\w+)`\]\({up}methods/\1\.md\)", text))
    assert linked >= {"fedavg", "fedadam", "scaffold", "mime", "maml", "elastic", "pfnm"}
    rows = "\n".join(re.findall(r"^\|.*$", text, re.MULTILINE))
    assert [name for name in NAMES if re.search(rf"(?<!\[)`{name}`", rows)] == []


@pytest.mark.quick
def test_links_on_a_method_s_page_are_not_called_by_files(website):
    import hooks
    import pages_of_methods

    for path, page in pages_of_methods.pages().items():
        assert re.findall(r"\[[^]]*\.md\]", on_the_site(hooks, path, page)) == [], path


@pytest.mark.quick
def test_the_front_page_leads_to_the_quick_start_first():
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    before, _, first = text.partition("```sh\n")
    assert first.startswith("pip install . && fedax run\n")
    assert "](guides/quick-start.md)" in before
    assert text.index("(pictures/front.png)") < text.index("\n## ")


def caption(page):
    """What a page says below the picture of the front page."""
    return between((ROOT / page).read_text("utf-8"), "pictures/front.png)\n\n*", " [How it was")


@pytest.mark.quick
def test_the_readme_says_of_the_picture_what_the_front_page_says():
    said = caption("docs/index.md")
    assert caption("README.md") == said
    for words in ("Test accuracy", "`digits`", "20 clients", "learning rate 0.3", "five seeds"):
        assert words in said
    assert (ROOT / "docs" / "pictures" / "front.png").stat().st_size < 80_000


@pytest.mark.slow
def test_the_front_page_s_accuracies_are_those_of_its_picture_s_runs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import build_pictures

    runs = build_pictures.tuned()
    found = {label: 100 * statistics.mean(history["test_accuracy"][-1] for history in histories)
             for label, histories in runs.items()}
    said = re.findall(r"(\w+)(?: reaches)? ([\d.]+) ± [\d.]+%", caption("docs/index.md"))
    assert [label for label, _ in said] == sorted(found, key=found.get, reverse=True)
    for label, accuracy in said:
        assert abs(found[label] - float(accuracy)) < 0.5, label


@pytest.mark.quick
def test_every_public_name_has_a_place_in_the_reference(website):
    import pages_of_reference

    pages = pages_of_reference.pages()
    assert "::: fedax.train" in pages["reference/training.md"]
    named = "\n".join(pages.values())
    for name in fedax.__all__:
        assert re.search(rf"::: fedax\.{name}$|\[fedax\.{name}\]|::: fedax\.\w+\.{name}$", named,
                         re.MULTILINE), name
    for room in (fedax.theory, fedax.models):  # some functions are called like their modules
        hidden = {name for name in room.__all__ if f"{room.__name__}.{name}" in sys.modules
                  and not isinstance(getattr(room, name), types.ModuleType)}
        assert hidden
        for name in hidden:
            assert f"::: {room.__name__}.{name}.{name}" in named, name


@pytest.mark.quick
def test_formulas_of_docstrings_are_drawn(website):
    import formulas

    text = formulas.in_dollars(
        "One.\n\n.. math::\n    a &= b \\\\\n    c &= d\n\nWith :math:`x_i`."
    )
    assert text == "One.\n\n\n$$\na &= b \\\\\nc &= d\n$$\n\n\nWith $x_i$."
    drawn = formulas.mathml("a &= b \\\\\nc &= d", block=True)
    assert drawn.count("<mtr>") == 2
    assert "text-align: right" in drawn
    bars = formulas.mathml(r"E|x| \ln 2", block=False)
    assert bars.count('lspace="0" rspace="0">&#x0007C;') == 2  # else it is E, given x
    assert '<mi>ln</mi><mspace width="0.17em"/><mn>2</mn>' in bars
    with pytest.raises(ValueError, match="not known"):
        formulas.mathml(r"\nonsense x", block=False)


@pytest.mark.quick
def test_stars_and_angles_of_a_docstring_are_no_markdown(website):
    import docstrings

    text = (
        "|x*(g) - x*_g|^2 <= <grad f, x> for x*_{t+1} as in `a*b*` and :math:`x^*`.\n\nArgs:\n"
        "  **options: see `f`.\n  rate: > 0, or >= 1.\n  size:\n    >= 2\n\nExample:\n"
        "  >>> 2 * 3 * 4\n  24\n"
    )
    shown = docstrings.shown(text)
    assert r"|x\*(g) - x\*\_g|^2 <= &lt;grad f, x> for x\*\_{t+1} as in `a*b*` and $x^*$." in shown
    assert "  **options: see `f`." in shown
    assert "  rate: \\> 0, or >= 1.\n  size:\n    \\>= 2\n" in shown
    assert "  >>> 2 * 3 * 4\n" in shown


@pytest.mark.slow
def test_what_markdown_made_of_a_formula_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<article><em>Fine</em>, <em>too</em>. |x<em>_t - x</em>| <grad f></article>")
    with browsers.started() as browser, browsers.opened(browser, page) as opened:
        found = opened.evaluate(MANGLED)
    assert [one[:5] for one in found] == ["<grad", "<em>_"]


@pytest.mark.quick
def test_the_font_of_formulas_knows_where_an_index_stands(website):
    folder = website / "static"
    style = (folder / "site.css").read_text("utf-8")
    (name,) = re.findall(r'"Site Math"; src: url\("([\w-]+\.woff2)"', style)
    font = (folder / name).read_bytes()
    assert font[:4] == b"wOF2"
    assert len(font) < 300_000
    assert "MATH" in tables_of_font(font)
    assert "OPEN FONT LICENSE" in (folder / name).with_suffix(".LICENSE").read_text("utf-8")


@pytest.mark.quick
def test_links_out_of_the_docs_lead_to_pages(website):
    import links

    text = links.rewritten(
        "[a](../CONTRIBUTING.md) [b](../examples/methods.py) [c](../src/fedax/tasks) [d](data.md#x)"
        "\n```\n[e](../README.md)\n```\n", "docs", "theory.md",
    )
    assert text == (
        "[a](contributing.md) [b](source/examples/methods.py.md) `src/fedax/tasks` [d](data.md#x)"
        "\n```\n[e](../README.md)\n```\n"
    )
