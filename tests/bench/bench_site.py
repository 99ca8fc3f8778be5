"""The leaderboard at scale: 10 000 synthetic rows built, opened and filtered in a headless browser."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from specbench_leaderboard.build import build
from support_browser import Session, browser_session
from support_site import many, write_all

ROWS = int(os.environ.get("SPECBENCH_BENCH_ROWS", "10000"))
REPEATS = 5
LIMITS = {"build_s": 30.0, "interactive_s": 2.0, "filter_ms": 200.0, "first_page_mb": 3.0}


def _opened(session: Session) -> tuple[float, float]:
    """(seconds from navigation to a drawn board that answers, MB of files that the page took)."""
    session.requests.clear()
    start = time.perf_counter()
    with session.page("index.html") as page:
        page.wait_for_selector("#board[data-drawn]")
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        seconds = time.perf_counter() - start
    paths = {url.removeprefix("file://").partition("#")[0] for url in session.requests if url.startswith("file:")}
    size = sum(Path(path).stat().st_size for path in paths if not path.endswith("plotly.min.js"))
    return seconds, size / 1e6


def _filters(session: Session) -> list[tuple[str, float]]:
    """(what was chosen, ms from the click to the drawn table), each on a page that was just opened."""
    chosen = (("drafter", 40), ("k", 2), ("policy", 0), ("load", 3), ("target", 1))
    found = []
    for facet, number in chosen:
        with session.page("index.html") as page:
            page.wait_for_selector("#board[data-drawn]")
            page.click(f'[data-facet="{facet}"] summary')
            boxes = page.locator(f'[data-facet="{facet}"] input')
            number = min(number, boxes.count() - 1)
            boxes.nth(number).scroll_into_view_if_needed()
            script = """box => new Promise(done => {
                const board = document.getElementById("board"), before = board.dataset.drawn, start = performance.now();
                const watch = new MutationObserver(() => {
                    if (board.dataset.drawn === before) return;
                    watch.disconnect();
                    requestAnimationFrame(() => done(performance.now() - start));
                });
                watch.observe(board, {attributes: true});
                box.click();
            })"""
            found.append((facet, float(boxes.nth(number).evaluate(script))))
    return found


def main() -> None:
    """Print the figures beside their limits; exit 1 when one is broken."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_all(folder / "records", list(many(ROWS)))
        print(f"{ROWS} records written", flush=True)
        start = time.perf_counter()
        built = build(folder / "records", out=folder / "site")
        build_s = time.perf_counter() - start
        size = sum(path.stat().st_size for path in (folder / "site").rglob("*") if path.is_file())
        print(
            f"build: {build_s:.1f} s for {built.pages} pages in {built.groups} groups, {size / 1e6:.0f} MB", flush=True
        )
        with browser_session(folder / "site") as session:
            opened = [_opened(session) for _ in range(REPEATS)]
            filters = [entry for _ in range(REPEATS) for entry in _filters(session)]
        seconds = sorted(seconds for seconds, _ in opened)
        print(f"first page: interactive after {seconds[len(seconds) // 2]:.2f} s (median), {seconds[-1]:.2f} s (worst)")
        print(f"first page: {opened[0][1]:.2f} MB")
        for facet in dict(filters):
            times = sorted(ms for name, ms in filters if name == facet)
            print(f"filter by {facet}: {times[len(times) // 2]:.0f} ms (median), {times[-1]:.0f} ms (worst)")
        worst = max(sorted(ms for name, ms in filters if name == facet)[REPEATS // 2] for facet in dict(filters))
        figures = {
            "build_s": build_s,
            "interactive_s": seconds[len(seconds) // 2],
            "filter_ms": worst,
            "first_page_mb": opened[0][1],
        }
        broken = [f"{key} {figures[key]:.2f} above {limit:g}" for key, limit in LIMITS.items() if figures[key] > limit]
        if broken:
            sys.exit("; ".join(broken))
