import shutil

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """The system's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'srepr[test]'")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs the system's chromium on PATH")
    with playwright.sync_playwright() as running:
        context = running.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=chromium, headless=True, args=FLAGS
        )
        yield context
        context.close()
