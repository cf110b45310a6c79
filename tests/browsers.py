"""The system's Chromium, driven by Playwright, which downloads nothing here."""

import contextlib
import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable(which=shutil.which):
    """Where the browser is; a test that needs it fails without, and says what to do."""
    for name in NAMES:
        if which(name):
            return which(name)
    return pytest.fail(
        f"This test needs a browser, but none of {', '.join(NAMES)} is on the PATH. On Debian and "
        "Ubuntu: apt-get install chromium."
    )


@contextlib.contextmanager
def started():
    """A browser."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # for whom Chromium has no sandbox
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if root else []
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser, file, **options):
    """A page of a file; nothing may be said to the console, and nothing be asked of anybody."""
    context = browser.new_context(**options)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    context.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    try:
        yield page
        painted(page)
        assert said == []
        assert asked == [file.as_uri()]
    finally:
        context.close()


def painted(page):
    """Waits until what was asked for is drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def seconds_worked(page):
    """Seconds of a processor that the page has taken; others may be at work, too."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime")
