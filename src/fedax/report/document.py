"""A page: one HTML file that holds all it needs, and that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from fedax.report.curves import Chart, figure, payload
from fedax.report.marks import escaped, pairs, text


class Page(NamedTuple):
    """What a page says.

    Attributes:
      title: what it is of.
      state: a line below the title.
      warnings: sentences that the reader should not miss.
      before: HTML above the curves.
      charts: the curves.
      after: HTML below them.
      commands: what repeats it: sentence -> a command line, or nothing.
      made_by: versions.
    """

    title: str
    state: str
    warnings: Sequence[str]
    before: str
    charts: Sequence[Chart]
    after: str
    commands: Mapping[str, str]
    made_by: Mapping[str, Any] = {}

    def html(self) -> str:
        """The file's content.

        Its policy lets run the three scripts of the package, known by their digests, and nothing
        else: what slipped in by a name could not.
        """
        drawn = "\n".join(figure(number, chart) for number, chart in enumerate(self.charts))
        several = ' class="several"' if len(self.charts) > 1 else ""
        curves = f"<div{several}>{drawn}</div>" if drawn else "<p>No curves yet.</p>"
        scripts = [_read(name) for name in ("uPlot.iife.min.js", "charts.js", "page.js")]
        allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
        warned = "\n".join(f"<li>{text(sentence)}</li>" for sentence in self.warnings)
        repeated = "\n".join(
            f"<p>{text(sentence)}</p>{_command(command) if command else ''}"
            for sentence, command in self.commands.items()
        )
        made_by = f"<h2>Versions</h2>\n{pairs(self.made_by)}" if self.made_by else ""
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src {allowed}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(self.title)}</title>
<style>{_read("uPlot.min.css")}
{_read("page.css")}</style>
</head>
<body>
<header><h1>{text(self.title)}</h1></header>
<main>
<p class="quiet">{text(self.state)}</p>
{f'<ul class="warnings" aria-label="Warnings">{warned}</ul>' if warned else ""}
{self.before}
<h2>Curves</h2>
{curves}
{self.after}
<h2>Repeat</h2>
{repeated}
{made_by}
</main>
<noscript><p>Curves, sorting and filtering need JavaScript, which is included in this file.</p>\
</noscript>
<script type="application/json" id="data">{payload(self.charts)}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _command(command: str) -> str:
    """A command, of which nothing is cut."""
    return f'<pre class="command">{escaped(command)}</pre>'


def _read(name: str) -> str:
    """A file of the package."""
    return (resources.files("fedax.report") / "static" / name).read_text("utf-8")


def _digest(script: str) -> str:
    """By which a browser knows a script that may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
