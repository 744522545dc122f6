"""The HTML pages in a real browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tests.browser.driver import ALL_IMPACTS, BrowserProcess
from tests.browser.layout_checks import WIDTHS, find_broken_texts, find_hidden_names, find_layout_errors_by_width
from tests.house.checkout import read_checkout_file
from tests.report.audit_samples import DENIED, NOW, audited_page, audited_pod, rows_of
from tests.report.layout_samples import planned_layout
from webhook.cli.main import build_app_for
from webhook.model.enums import PolicyMode
from webhook.report.audit import AdmissionSavings, AuditPage, totals_by_namespace
from webhook.report.html import MAX_UNEVALUATED, group_findings, html_report_pieces
from webhook.report.layout_html import layout_page
from webhook.report.results import UnevaluatedReason
from webhook.report.text import LABELS

HOSTILE = (
    "<script>window.attacked = 1</script>",
    "\"><img src=x onerror='top.attacked = 1'>",
    "</title></style></script><svg onload=top.attacked=1>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202ereversed\u0000",
)

LONG = ("w" * 63, "team-for-long-running-exploratory-training-and-evaluation-research")

SORTED = """
const table = document.querySelector("#workloads");
const button = [...table.querySelectorAll("th button")].find((each) => each.textContent === NAME);
const shown = () => [...table.tBodies[0].rows].map((row) => row.cells[button.parentElement.cellIndex].textContent);
const found = [shown()];
for (let i = 0; i < 2; i++) { button.click(); found.push(shown(), button.parentElement.getAttribute("aria-sort")); }
return found;
"""


def html_report(page: AuditPage) -> str:
    """Return the whole report."""
    return "".join(html_report_pieces(page))


@pytest.fixture(scope="module")
def page() -> AuditPage:
    return audited_page()


@pytest.fixture(scope="module")
def text(page: AuditPage) -> str:
    return html_report(page)


@pytest.fixture(scope="module")
def hostile() -> str:
    """Return the report on workloads whose names are attacks."""
    return html_report(audited_page(names=HOSTILE))


@pytest.fixture(scope="module")
def pages(text: str, hostile: str) -> dict[str, str]:
    """Return every page, with usual, hostile and long names."""
    return {
        "audit": text,
        "audit, hostile names": hostile,
        "audit, long names": html_report(audited_page(LONG)),
        "layout": layout_page(planned_layout(), NOW, "0.1.0"),
        "layout, hostile names": layout_page(planned_layout(HOSTILE), NOW, "0.1.0"),
        "layout, long names": layout_page(planned_layout(LONG), NOW, "0.1.0"),
    }


def sort(browser: BrowserProcess, text: str, column: str) -> Any:
    return browser.evaluate(text, SORTED.replace("NAME", repr(column)))


def test_a_click_on_a_header_sorts_numbers(browser: BrowserProcess, text: str) -> None:
    before, down, first, up, second = sort(browser, text, "GPUs")
    numbers = [float(cell) for cell in before]
    assert len(set(numbers)) > 3
    assert (first, [float(cell) for cell in down]) == ("descending", sorted(numbers, reverse=True))
    assert (second, [float(cell) for cell in up]) == ("ascending", sorted(numbers))


def test_whole_numbers_are_sorted_by_size_and_not_as_text(browser: BrowserProcess, page: AuditPage) -> None:
    pods = [audited_pod(f"{count}-{i}", workload=f"Job/{count}") for count in (2, 10, 9) for i in range(count)]
    text = html_report(msgspec.structs.replace(page, workloads=tuple(rows_of(pods))))

    _, down, _, up, _ = sort(browser, text, "Pods")

    assert down == ["10", "9", "2"]
    assert up == ["2", "9", "10"]


def test_a_click_on_a_header_sorts_text(browser: BrowserProcess, text: str) -> None:
    before, up, first, down, second = sort(browser, text, "Workload")
    assert (first, up) == ("ascending", sorted(before))
    assert (second, down) == ("descending", sorted(before, reverse=True))


def test_nothing_overlaps_overflows_or_is_too_small_at_any_width(
    browser: BrowserProcess, pages: dict[str, str]
) -> None:
    for name, html in pages.items():
        with browser.open(html) as page:
            assert find_layout_errors_by_width(page) == {}, name


PAPER = "return window.getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("name", ["audit", "layout"])
def test_both_themes_are_accessible(browser: BrowserProcess, pages: dict[str, str], name: str) -> None:
    """Contrast included: 4.5, as WCAG AA wants it."""
    with browser.open(pages[name], width=390) as page:
        assert page.accessibility_violations(ALL_IMPACTS) == []
        light = page.evaluate(PAPER)
        page.show(dark=True)
        assert page.accessibility_violations(ALL_IMPACTS) == []
        assert (light, page.evaluate(PAPER)) == ("rgb(255, 255, 255)", "rgb(18, 24, 31)")
        assert (page.errors, page.requests) == ([], [])


A4 = 718
"""CSS pixels between margins of one centimeter."""

PRINTED = """
const style = (element, pseudo) => window.getComputedStyle(element, pseudo);
const cut = (each) => ["hidden", "auto", "scroll"].includes(style(each).overflowX);
const box = (each) => each.getBoundingClientRect();
const out = (each) => box(each).left < 0 || box(each).right > window.innerWidth;
const every = [...document.body.querySelectorAll("*")], heads = [...document.querySelectorAll("thead")];
return {
  paper: [style(document.body).backgroundColor, style(document.body).color],
  cut: every.filter((each) => cut(each) || out(each)).map((each) => each.outerHTML.slice(0, 80)),
  repeated: heads.map((head) => style(head).display),
  together: [...document.querySelectorAll("tbody tr, .chart div")].map((each) => style(each).breakInside),
  numbers: [...document.querySelectorAll("td.n")].map((each) => style(each).whiteSpace),
  headers: [...document.querySelectorAll("th button")].map((each) => style(each).overflowWrap),
  arrows: [...document.querySelectorAll("th button")].map((each) => style(each, "::after").content),
};
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_print_cuts_nothing_off_and_repeats_headers(browser: BrowserProcess, pages: dict[str, str], dark: bool) -> None:
    for each in pages.values():
        found = browser.evaluate(each, PRINTED, dark=dark, width=A4, printed=True)
        assert found["paper"] == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
        assert found["cut"] == []
        assert set(found["repeated"]) == {"table-header-group"}
        assert set(found["together"]) == {"avoid"}
        assert (set(found["numbers"]), set(found["headers"])) == ({"nowrap"}, {"normal"})
        assert set(found["arrows"]) == {"none"}


@pytest.mark.parametrize("name", ["audit", "layout"])
def test_names_codes_and_numbers_are_on_one_line(browser: BrowserProcess, pages: dict[str, str], name: str) -> None:
    with browser.open(pages[name]) as page:
        for width in WIDTHS:
            page.show(width=width)
            number, broken = find_broken_texts(
                page, "tbody th:not(.long), td:not(.long):not(.code), code, .name, .chart b"
            )
            assert number > 25
            assert broken == []


ROWS = """
const rows = [...document.querySelectorAll("tbody tr")];
return [rows.length, Math.max(...rows.map((row) => row.getBoundingClientRect().height))];
"""
ROW_HEIGHTS = {390: 28, 768: 48, 1280: 48, 1920: 48}
"""Pixels of one line on a phone, where most columns are scrolled off, and of two lines elsewhere."""


@pytest.fixture(scope="module")
def demo_reports() -> dict[str, str]:
    """Return the reports on the example cluster, which has messages of every length."""
    commands = {name: [name, "--cluster", "demo", "-o", "html"] for name in ("audit", "layout")}
    return {name: CliRunner().invoke(build_app_for(each), each).stdout for name, each in commands.items()}


@pytest.mark.parametrize("name", ["audit", "layout"])
def test_rows_are_compact_at_every_width(browser: BrowserProcess, demo_reports: dict[str, str], name: str) -> None:
    with browser.open(demo_reports[name]) as page:
        for width in WIDTHS:
            page.show(width=width)
            number, highest = page.evaluate(ROWS)
            assert number > 20
            assert highest <= ROW_HEIGHTS[width], width


def test_long_texts_do_not_make_rows_high(browser: BrowserProcess) -> None:
    finding = msgspec.structs.replace(DENIED, message="message " * 100, fix="fix " * 100)
    rows = rows_of([audited_pod("a", findings=[finding], compute=60, memory=72387)])
    with browser.open(html_report(msgspec.structs.replace(audited_page(), workloads=tuple(rows)))) as page:
        for width in WIDTHS:
            page.show(width=width)
            assert page.evaluate(ROWS)[1] <= ROW_HEIGHTS[width], width


TABLE_WIDTHS = "return [...document.querySelectorAll('.scroll')].map((each) => [each.scrollWidth, each.clientWidth])"


@pytest.mark.parametrize("width", [1280, 1920])
def test_tables_fit_on_the_screen_of_a_laptop(
    browser: BrowserProcess, demo_reports: dict[str, str], width: int
) -> None:
    with browser.open(demo_reports["audit"], width=width) as page:
        assert [(inner, outer) for inner, outer in page.evaluate(TABLE_WIDTHS) if inner > outer] == []


OPENED = """
const focused = document.activeElement, height = (each) => Math.ceil(each.getBoundingClientRect().height);
return [focused.matches("td summary"), height(focused.closest("tr")), focused.scrollHeight <= height(focused)];
"""


def test_the_enter_key_shows_the_whole_of_a_long_text(browser: BrowserProcess, demo_reports: dict[str, str]) -> None:
    with browser.open(demo_reports["audit"], width=390) as page:
        page.evaluate("document.querySelector('td summary').focus()")
        is_text, folded, is_whole = page.evaluate(OPENED)
        assert (is_text, is_whole) == (True, False)
        page.press("Enter")
        _, opened, is_whole = page.evaluate(OPENED)
        assert opened > folded
        assert is_whole


STICKY_HEADERS = "return [...document.querySelectorAll('#workloads thead th.sticky')].map((each) => each.textContent)"


@pytest.mark.parametrize("name", ["audit", "audit, long names", "layout", "layout, long names"])
def test_names_of_rows_stay_on_a_narrow_screen(browser: BrowserProcess, pages: dict[str, str], name: str) -> None:
    with browser.open(pages[name], width=390) as page:
        assert find_hidden_names(page) == []


def test_of_a_workload_the_name_stays_not_the_namespace(browser: BrowserProcess, text: str) -> None:
    assert browser.evaluate(text, STICKY_HEADERS) == ["Workload"]


FILTERED = """
const line = document.querySelector(".filter"), input = line.querySelector("input");
const rows = [...line.nextElementSibling.querySelectorAll("tbody tr")];
return TEXTS.map((text) => {
  input.value = text;
  input.dispatchEvent(new window.Event("input"));
  return [rows.filter((row) => row.getClientRects().length).map((row) => row.cells[0].textContent),
          line.querySelector("output").textContent];
});
"""


def test_a_filter_shows_the_rows_that_contain_all_its_words(browser: BrowserProcess) -> None:
    report = html_report(audited_page([f"team-{i}" for i in range(10)]))
    typed = ["TEAM-3", "team-3 1", "team-3 no", " "]
    first, second, none, every = browser.evaluate(report, FILTERED.replace("TEXTS", repr(typed)))
    assert first == second == [["team-3"], "1 of 14 rows"]
    assert none == [[], "0 of 14 rows"]
    assert (len(every[0]), every[1]) == (14, "14 rows")


def test_a_code_has_the_color_of_its_mode(browser: BrowserProcess, text: str) -> None:
    """A note of a denied pod is not shown in red."""
    found = browser.evaluate(text, "return [...document.querySelectorAll('#workloads code')].map((c) => c.outerHTML)")
    assert set(found) == {'<code class="bad">GPU-L102</code>', "<code>GPU-R102</code>", "<code>-</code>"}


def test_untrusted_names_are_text(browser: BrowserProcess, hostile: str) -> None:
    found = browser.evaluate(
        hostile,
        """
        const cells = [...document.querySelectorAll("#workloads tbody th")].map((each) => each.textContent);
        const count = (selector) => document.querySelectorAll(selector).length;
        const attacked = window.attacked ?? window.top.attacked ?? 0;
        return [cells, count("script"), count("img"), count("[onload],[onerror]"), attacked];
        """,
    )
    names = {cell.removeprefix("Deployment/") for cell in found[0]}
    assert names >= {*HOSTILE[:-1], "\\u202ereversed\\x00"}
    assert found[1:] == [1, 0, 0, 0]


def test_untrusted_names_in_a_plan_are_text(browser: BrowserProcess, pages: dict[str, str]) -> None:
    found = browser.evaluate(
        pages["layout, hostile names"],
        """
        const heads = [...document.querySelectorAll("h3")].map((each) => each.textContent);
        const count = (selector) => document.querySelectorAll(selector).length;
        const attacked = window.attacked ?? window.top.attacked ?? 0;
        return [heads, count("script"), count("img"), count("[onload],[onerror]"), attacked];
        """,
    )
    assert set(found[0]) >= {*HOSTILE[:-1], "\\u202ereversed\\x00"}
    assert found[1:] == [1, 0, 0, 0]


def test_an_injected_script_does_not_run(browser: BrowserProcess, text: str) -> None:
    attacked = text.replace(
        "</footer>", "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'></footer>"
    )
    assert browser.evaluate(attacked, "return [document.querySelectorAll('script').length, window.attacked ?? 0]") == [
        2,
        0,
    ]


class ReferenceParser(HTMLParser):
    """Collects the references of a page, and checks that every element is closed."""

    VOID = frozenset({"meta", "link", "img", "br", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "action", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_pages_have_no_external_references(pages: dict[str, str]) -> None:
    for page in pages.values():
        parser = ReferenceParser()
        parser.feed(page)
        parser.close()
        assert (parser.open, parser.references) == ([], [])
        assert "url(" not in page
        assert "@import" not in page


def test_an_expired_exemption_is_marked(browser: BrowserProcess, text: str) -> None:
    rows = browser.evaluate(text, "return [...document.querySelectorAll('table')].pop().innerText")
    assert "old-driver" in rows
    assert re.search(r"old-driver\t.*2026-05-01.*\texpired\t0", rows)
    assert re.search(r"nccl-debug\t.*2026-12-01.*\tactive\t", rows)


@pytest.mark.parametrize("has_figures", [True, False])
def test_what_was_saved_at_admission_is_in_the_summary(page: AuditPage, has_figures: bool) -> None:
    shown = html_report(page if has_figures else msgspec.structs.replace(page, utilization=None))
    assert (
        "<div>Saved at admission<b>1.57</b><small>2 pods right-sized when created: requested 2, now 0.43</small></div>"
    ) in shown


def test_nothing_saved_at_admission_is_left_out(page: AuditPage) -> None:
    nothing = msgspec.structs.replace(page, admission=AdmissionSavings(0, 0, 0))
    assert "Saved at admission" not in html_report(nothing)


def test_without_nodes_there_is_no_summary(browser: BrowserProcess, page: AuditPage) -> None:
    nothing = {"utilization": None, "nodes": (), "admission": AdmissionSavings(0, 0, 0)}
    report = html_report(msgspec.structs.replace(page, **nothing))
    count = "return ['.heads', '.chart'].map((each) => document.querySelectorAll(each).length)"
    assert browser.evaluate(report, count) == [0, 1]


@pytest.mark.parametrize("condition", ["at least six hours", "less than one day old", "GPU_UTIL"])
def test_the_footer_defines_idle_as_the_docs_do(text: str, condition: str) -> None:
    assert condition in text
    assert condition in read_checkout_file("docs/usage.md").split("## Idle", 1)[1].split("\n## ")[0].replace("**", "")


def test_the_list_of_unevaluated_pods_is_limited() -> None:
    pods = [audited_pod(f"w{i:04}", unevaluated=UnevaluatedReason.UNRECORDED) for i in range(MAX_UNEVALUATED + 1)]
    many = [audited_pod(f"z{i}", workload="Deployment/z", unevaluated=UnevaluatedReason.UNRECORDED) for i in range(2)]
    page = msgspec.structs.replace(audited_page(), workloads=tuple(rows_of([*pods, *many])))
    table = html_report(page).split("<h2>Pods that were not evaluated at admission</h2>")[1].split("<h2>")[0]
    assert table.count("<tr><td>") == MAX_UNEVALUATED
    assert table.index("Deployment/z") < table.index("Pod/w0000")
    assert f"The first {MAX_UNEVALUATED} of {MAX_UNEVALUATED + 2}, by pods" in table


def test_zero_usage_and_unknown_usage_differ(browser: BrowserProcess) -> None:
    pods = [audited_pod("a", namespace="idle", compute=0, idle=True), audited_pod("b", namespace="unknown")]
    pending = audited_pod("c", namespace="pending", node="", compute=0, idle=True)
    results = [*pods, pending]
    page = msgspec.structs.replace(
        audited_page(), workloads=tuple(rows_of(results)), namespaces=tuple(totals_by_namespace(results))
    )
    rows = "return [...document.querySelectorAll('.chart section')].map((each) => each.textContent)"
    groups = browser.evaluate(html_report(page), rows)
    used = {
        name: text
        for group in groups
        for name, text in re.findall(r"(idle|unknown|pending)1 requested(.*?)1 rec", group)
    }
    assert used == {"idle": "0 used", "unknown": "no usage data", "pending": "no usage data"}


def test_a_workload_with_several_findings_of_one_code_counts_once() -> None:
    first = msgspec.structs.replace(DENIED, message="env A")
    second = msgspec.structs.replace(DENIED, message="env B")
    pods = [audited_pod(f"serve-{i}", workload="Deployment/serve", findings=[first, second]) for i in range(3)]
    [group] = group_findings(rows_of([*pods, audited_pod("other", findings=[second])]))
    assert sorted(number for _, number in group.findings) == [1, 3]


@pytest.mark.parametrize("mode", PolicyMode)
def test_a_finding_has_the_word_that_check_and_the_console_print(mode: PolicyMode) -> None:
    workloads = rows_of([audited_pod("a", findings=[msgspec.structs.replace(DENIED, mode=mode)])])
    report = html_report(msgspec.structs.replace(audited_page(), workloads=tuple(workloads)))
    [findings] = re.findall(r"<th[^>]*><button[^>]*>Mode</button>.*?</table>", report, re.DOTALL)
    assert f">{LABELS[mode]}</td>" in findings


def test_a_long_example_and_a_long_fix_of_a_finding_end_with_an_ellipsis() -> None:
    finding = msgspec.structs.replace(DENIED, message="message " * 100, fix="fix " * 100)
    report = html_report(
        msgspec.structs.replace(audited_page(), workloads=tuple(rows_of([audited_pod("a", findings=[finding])])))
    )
    assert len(re.findall("(?:message|fix)[^<]*…</summary>", report)) == 2


def test_the_reach_says_by_how_many_pods_the_savings_exceed_it(page: AuditPage) -> None:
    assert page.reach is not None
    report = html_report(msgspec.structs.replace(page, reach=page.reach._replace(displaced=3)))
    reach = report.split("<h2>Reach</h2>")[1].split("<h2>")[0]
    assert "The savings count 3 more pods, each evaluated alone" in reach
    assert "The savings count" not in html_report(page)


def test_the_rows_of_the_report_come_piece_by_piece(page: AuditPage) -> None:
    pieces = [str(each) for each in html_report_pieces(page)]
    rows = [each for each in pieces if each.strip().startswith("<tr>")]
    assert len(rows) >= len(page.workloads) > 1
