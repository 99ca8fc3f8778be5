"""The site's files, without a browser: what is built from which records, and every number in the static pages."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from specbench_leaderboard._shards import script_json
from specbench_leaderboard.build import Built, build
from specbench_leaderboard.serve import serve
from support_golden import RunPage, run_page_holds
from support_records import make_record
from support_site import HOSTILE, HOSTILE_TARGET, cell, hostile, search, sweep, write_all

from specbench import registry
from specbench.errors import ConfigError, RecordError
from specbench.records import sla_result
from specbench.records.schema import Record
from specbench.report import numbers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [*sweep(), hostile()]


@pytest.fixture(scope="module")
def site(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    write_all(folder / "records", records)
    (folder / "records" / f"{'0' * 16}.json").write_text("{half a rec")
    (folder / "records" / "sla-0123.json").write_text("[]")
    sla_result.write(folder / "records", search(records))
    return build(folder / "records", out=folder / "out")


def test_every_estimate_on_a_run_s_page_is_the_record_s(site: Built, records: list[Record]) -> None:
    for record in records[::9]:
        run_page_holds(site.index.parent, record)


def test_downloads_are_the_records_byte_for_byte_and_every_estimate(site: Built, records: list[Record]) -> None:
    out = site.index.parent
    whole = json.loads((out / "downloads" / "records.json").read_text(encoding="utf-8"))
    assert {one["run_id"] for one in whole} == {record.run_id for record in records}
    with (out / "downloads" / "estimates.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    wanted = sorted((r.run_id, e.metric, repr(e.value)) for r in records for e in r.estimates)
    assert sorted((row["run_id"], row["metric"], row["value"]) for row in table if row["metric"]) == wanted
    for record in records[::20]:
        copied = (out / "records" / f"{record.run_id}.json").read_bytes()
        assert copied == (out.parent / "records" / f"{record.run_id}.json").read_bytes()


def test_a_file_that_is_no_record_is_named_and_nothing_else_is_lost(site: Built, records: list[Record]) -> None:
    assert site.records == len(records)
    assert len(site.unreadable) == 2
    page = (site.index.parent / "data.html").read_text(encoding="utf-8")
    assert "0000000000000000.json: not complete JSON" in page
    assert "sla-0123.json: schema version None" in page
    assert str(site.index.parent.parent) not in page  # no path of the machine


def test_markup_in_names_is_escaped_in_every_file(site: Built, records: list[Record]) -> None:
    seen = 0
    for path in site.index.parent.rglob("*"):
        if path.suffix not in (".html", ".js") or path.name == "plotly.min.js":
            continue
        text = path.read_text(encoding="utf-8")
        assert HOSTILE not in text
        assert HOSTILE_TARGET not in text
        assert "<b>GPU" not in text
        seen += "&lt;img src=x" in text or "\\u003cimg src=x" in text
    assert seen >= 5  # ranking, group, run, and their data
    parser = RunPage()
    parser.feed((site.index.parent / "runs" / f"{records[-1].run_id}.html").read_text(encoding="utf-8"))
    assert not {"img", "b"} & set(parser.tags)
    assert parser.tags.count("script") == 5  # the page's own


def test_a_search_has_its_table_and_its_value_stands_in_the_row_that_it_ended_at(
    site: Built, records: list[Record]
) -> None:
    text = (site.index.parent / "sla.html").read_text(encoding="utf-8")
    found = search(records)
    (dspark,) = [row for row in found.searches if row.method == "dspark"]
    (best,) = [probe.runs[0].run_id for probe in found.probes if probe.method == "dspark" and probe.load == dspark.best]
    assert f'<td class="num">{numbers.bounded(dspark.throughput)}</td>' in text
    assert "no load holds the floor" in text
    assert f'href="runs/{best}.html"' in text
    group = next(r for r in records if r.run_id == best).comparability_sha256[:12]
    page = (site.index.parent / "groups" / f"{group}.html").read_text(encoding="utf-8")
    assert "SLA tok/s" in page
    assert page.count("tok/s/user &gt;= 120") == 2  # dspark and dflash


def test_data_in_scripts_is_ascii_that_cannot_end_one() -> None:
    text = script_json({"name": "</script><!-- & \u2028 é \ud800"})
    assert not re.search(r"[<&\x80-\uffff]", text)
    assert json.loads(text) == {"name": "</script><!-- & \u2028 é \ud800"}


def test_every_link_leads_to_a_file(site: Built) -> None:
    out = site.index.parent
    for path in [
        *out.glob("*.html"),
        *out.glob("groups/*.html"),
        *out.glob("metrics/*.html"),
        *[*out.glob("runs/*.html")][:5],
    ]:
        for link in re.findall(r'(?:href|src)="([^"#]*)', path.read_text(encoding="utf-8")):
            if link and not link.startswith("data:"):
                assert (path.parent / link).is_file(), (path.name, link)


def test_a_rebuild_replaces_a_site_and_touches_nothing_else(tmp_path: Path) -> None:
    write_all(tmp_path / "records", [cell("ngram")])
    first = build(tmp_path / "records", out=tmp_path / "out")
    (page,) = (tmp_path / "out" / "runs").glob("*.html")
    page.rename(page.with_name("stale.html"))
    assert build(tmp_path / "records", out=tmp_path / "out") == first
    assert page.exists()
    assert not page.with_name("stale.html").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(RecordError, match="choose an empty or new folder"):
        build(tmp_path / "records", out=tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_the_same_record_in_two_folders_is_one_row(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_all(tmp_path / "records" / name, [cell("ngram")])
    assert build(tmp_path / "records", out=tmp_path / "out").records == 1


def test_no_records_give_a_site_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    built = build(tmp_path / "records", out=tmp_path / "out")
    assert "There are no records yet" in built.index.read_text()
    assert json.loads((tmp_path / "out" / "downloads" / "records.json").read_text()) == []


def test_a_record_with_almost_nothing_in_it_has_its_page(tmp_path: Path) -> None:
    bare = make_record(method="vanilla", draft_length=0, drafter=None, spec={}, provenance={}, command=[])
    write_all(tmp_path / "records", [bare])
    built = build(tmp_path / "records", out=tmp_path / "out")
    assert "commit is unknown" in (built.index.parent / "runs" / f"{bare.run_id}.html").read_text()


def test_the_command_builds_and_names_what_is_wrong(specbench, tmp_path: Path) -> None:
    write_all(tmp_path / "records", [cell("ngram"), cell("vanilla")])
    (tmp_path / "records" / f"{'1' * 16}.json").write_text("[]")
    code, out, err = specbench(
        "leaderboard", "build", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")
    )
    assert code == 0
    assert "2 records in 1 comparison group" in out.replace("\n", " ")
    assert err.count("\n") == 1
    assert "warning: 1111111111111111.json: a record is a JSON object" in err
    code, _, err = specbench(
        "leaderboard", "build", "--records", str(tmp_path / "absent"), "--out", str(tmp_path / "o")
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "no such folder" in err


def test_building_needs_no_torch(tmp_path: Path) -> None:
    write_all(tmp_path / "records", [cell("ngram")])
    code = (
        "import sys; from pathlib import Path; from specbench import registry\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "registry.load('leaderboard', 'build')(folder / 'records', out=folder / 'out')\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pandas', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture
def address(site: Built) -> Iterator[str]:
    told: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    def tell(url: str) -> None:
        told.append(url)
        ready.set()

    thread = threading.Thread(target=serve, args=(site.index.parent,), kwargs={"ready": tell, "stop": stop})
    thread.start()
    assert ready.wait(10)
    yield told[0]
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_the_server_answers_on_loopback_with_files_only(address: str, site: Built) -> None:
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address) as answer:
        assert answer.read() == site.index.read_bytes()
    for path in ("runs/", "../records/", "%2e%2e/records/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + path)
    with pytest.raises(ConfigError, match="choose another --port"):
        serve(site.index.parent, port=int(address.rstrip("/").rpartition(":")[2]), ready=lambda url: None)


def test_the_registry_names_the_tools() -> None:
    assert registry.names("leaderboard") == ["build", "serve"]
