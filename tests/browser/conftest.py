"""Fixtures of the tests in a real browser; `stage.py` says what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.stage import PATIENCE_MS, Served, Stage, launch, make_folder

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module. It must end with it: its loop would be in the way of tests that bring their own."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Starts servers, which end with the module."""
    started: list[Served] = []

    def start(
        config: str = "",
        *,
        tokens: bool = True,
        files: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        **variables: str,
    ) -> Served:
        folder = tmp_path_factory.mktemp("served")
        make_folder(folder, config, files or {})
        served = Served(folder, tokens=tokens, arguments=arguments, variables=variables)
        started.append(served)
        return served

    yield start
    for each in started:
        each.close()


@pytest.fixture
def pages(browser: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """The pages of a test. It fails if one of them did what no page may."""
    stage = Stage(browser)
    yield stage
    if request.node.stash.get(FAILED, False):
        print(stage.tell(tmp_path))  # noqa: T201 - for whoever looks at the failure
    complaints = stage.close()
    if not request.node.stash.get(FAILED, False):
        assert complaints == []


@pytest.fixture
def open_page(pages: Stage) -> Callable[..., Page]:
    """Opens a page of the dashboard."""
    return pages.open_page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Remember whether a test failed, so that its pages can be told about."""
    report = yield
    if call.when == "call" and call.excinfo is not None:
        item.stash[FAILED] = True
    return report
