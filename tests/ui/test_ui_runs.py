"""Run directories in a real browser, and what the server gives away of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon import compare, simulate
from gnomon.api.search import Search
from gnomon.core.errors import DataError
from gnomon.search.config import EffortConfig, SearchConfig
from gnomon.search.study import search
from gnomon.ui.app import make_app
from gnomon.ui.pages.plan import searches
from gnomon.ui.pages.routing import metric_folders
from gnomon.ui.pages.runs import PAGE
from gnomon.ui.run_folders import find_runs, open_run

if TYPE_CHECKING:
    from ui_kit import Tab

pytest_plugins = ["ui_kit"]

SMALL = {"workload.num_requests": 200, "workload.rate": 20}


@pytest.fixture(scope="session")
def saved(runs_folder: Path) -> Path:
    """A folder with a serving run, a comparison and a search in it."""
    simulate(**SMALL).save(runs_folder / "chat")
    compare(vary={"batching.policy": ["vllm_v1", "sarathi"]}, **SMALL).save(runs_folder / "policies")
    effort = EffortConfig(min_requests=200, max_requests=200, num_intervals=0)
    found = search(SearchConfig(effort=effort), results=runs_folder / "found" / "results.jsonl", jobs=1)
    Search(found).save(runs_folder / "found")
    (runs_folder / "empty").mkdir()
    (runs_folder.parent / "secret.html").write_text("secret")
    return runs_folder


def test_runs_are_told_by_their_files(saved: Path) -> None:
    kinds = {one.name: one.kind.name for one in find_runs(saved)}
    assert kinds["chat"] == "serving" and kinds["policies"] == "comparison" and kinds["found"] == "search"
    assert sum(kind == "serving" for kind in kinds.values()) == 3
    assert "empty" not in kinds
    assert "llama-3-8b on h200" in open_run(saved, "chat").words
    with pytest.raises(DataError, match="no run directory"):
        open_run(saved, "empty")
    with pytest.raises(DataError, match="no run directory"):
        open_run(saved, "..")


def test_plans_policies_and_training_steps_are_listed(tmp_path: Path) -> None:
    from gnomon import train, train_plan

    small = {"model": "llama-3-8b", "gpu": "h100", "gpus": 8, "batch": 8, "tensor_parallel": 4}
    train(**small).save(tmp_path / "step")
    train_plan(**small, pipeline_parallel=1, micro_batch=1, context_parallel=1).save(tmp_path / "plan")
    for folder, mark in (("policies", "policies.json"), ("plans", "plans.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / mark).touch()
    kinds = {one.name: one.kind.name for one in find_runs(tmp_path)}
    assert kinds == {
        "step": "training step", "plan": "training plan", "policies": "post-training policies",
        "plans": "post-training plan",
    }  # fmt: skip
    assert "llama-3-8b on 8 x h100" in open_run(tmp_path, "step").words
    assert "Fastest layout" in open_run(tmp_path, "plan").words


def test_a_run_without_its_page_is_listed_as_unfinished(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "scenario.yaml").write_text("model: x")
    (tmp_path / "bad" / "summary.json").write_text("{")
    assert "unfinished" in find_runs(tmp_path)[0].words


@pytest.fixture(scope="module")
def client(saved: Path) -> Any:
    return make_app(saved).server.test_client()


def test_pages_of_runs_are_given_in_a_sandbox(client: Any) -> None:
    with client.get("/run-files/chat/report.html") as answer:
        assert answer.status_code == 200
        assert "sandbox allow-scripts allow-downloads;" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    ["../secret.html", "%2e%2e/secret.html", "chat/../../secret.html", "chat", "gone.html", "%00",
     "chat%00/report.html", ".git/config", "chat/.hidden/x.csv", ".env"],
)  # fmt: skip
def test_nothing_else_is_given_away(client: Any, saved: Path, path: str) -> None:
    for hidden in (".git/config", "chat/.hidden/x.csv", ".env"):
        (saved / hidden).parent.mkdir(exist_ok=True)
        (saved / hidden).write_text("secret")
    assert client.get(f"/run-files/{path}").status_code == 404


@pytest.mark.parametrize("path", ["/serve", "/_dash-layout", "/run-files/chat/report.html", "/run-files/gone"])
def test_no_other_site_has_a_page_in_a_frame(client: Any, path: str) -> None:
    with client.get(path) as answer:
        assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_comparison_opens_as_its_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "comparison.json").write_text(text)
    with make_app(tmp_path).server.app_context():
        shown = PAGE.body({"run": "bad", "find": ""})
    assert "/run-files/bad/comparison.json" in str(shown)


def test_runs_are_found_wherever_they_are_opened_from(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c" / "d"
    for folder in (tmp_path, deep, tmp_path / "unfinished"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("search.yaml", "results.jsonl", "metrics.csv"):
            (folder / name).touch()
    for folder in (tmp_path, deep):
        (folder / "ranking.csv").touch()
    with make_app(tmp_path).server.app_context():
        assert set(searches()) == {"", ".", "a/b/c/d"}
        assert set(metric_folders()) == {".", "a/b/c/d", "unfinished"}


def test_runs_are_listed_found_and_opened(tab: Tab, saved: Path) -> None:
    tab.open("/runs")
    rows = tab.page.locator("#runs-list tbody tr")
    total = len(find_runs(saved))  # Other tests may have left searches there.
    assert rows.count() == total >= 5
    tab.type("runs-find", "policies")
    assert rows.count() == 3
    assert "find=policies" in tab.page.url
    tab.type("runs-find", "")
    tab.page.get_by_role("link", name="chat", exact=True).click()
    tab.page.frame_locator("iframe.report").locator("#ttft .main-svg").first.wait_for()
    tab.page.get_by_role("link", name="Open in Serve").click()
    tab.page.wait_for_selector("#serve-headline h1")
    tab.idle()
    assert "requests=200" in tab.page.url and "rate=20" in tab.page.url
    tab.page.go_back()
    tab.page.wait_for_selector("iframe.report")


def test_a_comparison_is_a_table(tab: Tab, saved: Path) -> None:
    tab.open("/runs?run=policies")
    report = tab.page.frame_locator("iframe.report")
    title = report.get_by_text("policy=sarathi against policy=vllm_v1, request by request")
    title.wait_for()
    assert title.count() == 1 and report.locator("table", has_text="sarathi").count() > 0


def test_a_search_is_opened_in_plan(tab: Tab, saved: Path) -> None:
    tab.open("/runs?run=found")
    tab.page.get_by_role("link", name="Open in Plan").click()
    tab.page.wait_for_selector("#page-plan")
    tab.idle()
    assert "dir=found" in tab.page.url
    assert tab.text("plan-page-error") == ""


def test_a_run_that_is_gone_says_so(tab: Tab) -> None:
    tab.open("/runs?run=gone")
    assert "there is no run directory here" in tab.text("content")


def test_reports_fit_a_phone_and_ask_nobody(browser: Any, saved: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith(("file:", "data:", "blob:")) else found.append(one.url))
    for name in ("chat", "policies", "found"):
        page.goto((saved / name / "report.html").as_uri())
        page.wait_for_selector(".js-plotly-plot .trace", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    page.close()
    assert found == []
