"""`src/compare.py` as its user meets it: the terminal, the files, and the page in a browser without a network."""

import json
import re
import time

import pytest

from manyfit.report.comparison import compare
from manyfit.report.comparison_page import comparison_page
from manyfit.report.images import write_images
from manyfit.report.page import By, Page
from manyfit.report.runs import load_runs

WIDTHS = (1280, 390)
SECONDS_TO_DRAW = 60
LONGEST_TITLE = "a_run_with_a_name_that_is_far_too_long_for_any_column_of_a_table_mirrored-x4"


@pytest.fixture(scope="module")
def folders(made_runs, tmp_path_factory):
    """Two finished runs with samples of their GPUs, one that was killed, one rehearsal."""
    root = tmp_path_factory.mktemp("runs")
    verdict = {"bound": "input", "share": 0.4, "shares": {"input": 0.4}, "advice": "try data.cache=memory"}
    return {
        "one": made_runs.make_run(root / "one", speed=100.0, samples=made_runs.make_samples(220)),
        "four": made_runs.make_run(
            root / LONGEST_TITLE,
            replicas=4,
            speed=360.0,
            seed=1,
            accuracy=0.905,
            verdict=verdict,
            samples=made_runs.make_samples(80, gpus=4, utilization=60.0),
        ),
        "killed": made_runs.make_run(root / "killed", status="running", epochs=2, asked_epochs=5, seed=2),
        "drawn": made_runs.make_run(root / "drawn", rehearsal=True, seed=3),
    }


# --- the command ------------------------------------------------------------------------------------------------------


def test_everything_is_written_and_the_verdict_comes_last(script, folders, tmp_path):
    files = [f"--{name}={tmp_path / f'out.{name}'}" for name in ("html", "markdown", "json")]
    done = script("compare.py", *folders.values(), *files, "--price", "36", "--currency", "EUR")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["verdict"].startswith("4 replicas: 3.6x faster, 90 % efficient (strong scaling)")
    assert "€" in told["verdict"] and "bound by input: try data.cache=memory" in told["verdict"]
    assert told["verdict"] in (tmp_path / "out.markdown").read_text().replace("\\", "")
    assert "3.6x faster" in (tmp_path / "out.html").read_text()
    assert told["verdict"][:50] in done.stdout
    assert [claim["comparable"] for claim in told["claims"]] == [True, False, False]
    assert done.stdout.splitlines()[-1] == str(tmp_path / "out.html")


def test_a_baseline_that_was_not_listed_is_read_as_well(script, folders):
    done = script("compare.py", folders["one"], "--baseline", folders["four"])
    assert done.returncode == 0
    assert "slower, 0.28x the speed" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing"], 1, "missing holds no run"),
        (["{one}", "{one}"], 1, "is given twice"),
        (["{one}", "--price=-3"], 2, "cost.price_per_hour=-3.0 is out of range"),
        (["{one}", "--currency=euro"], 2, "cost.currency=euro is not a currency"),
        (["{one}", "--target=95"], 1, "target accuracy 95.0 is out of range"),
        (["{one}", "--html=nowhere/page.html"], 2, "is in a folder that does not exist"),
        (["{one}", "--json=."], 2, "is a folder"),
        ([], 2, "RUN"),
    ],
)
def test_mistakes_end_in_a_message(script, folders, arguments, code, said):
    done = script("compare.py", *(argument.format(one=folders["one"]) for argument in arguments))
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


def test_help_comes_at_once(script):
    started = time.perf_counter()
    assert "--baseline" in script("compare.py", "--help").stdout
    print(f"--help took {time.perf_counter() - started:.1f} s")
    assert time.perf_counter() - started < 20  # a second on a quiet machine


# --- the page, in a browser -------------------------------------------------------------------------------------------


class Opened:
    """A page in the browser, and all that it said and asked for."""

    def __init__(self, browser, path, width=1280, theme="light"):
        self.tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.said, self.asked = [], []
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(path.as_uri())

    def wait(self, script):
        """Until a script is true; Playwright's own waiting needs `eval`, which the page forbids."""
        until = time.monotonic() + SECONDS_TO_DRAW
        while not self.tab.evaluate(script):
            assert time.monotonic() < until, f"never true: {script}"
            self.tab.wait_for_timeout(30)

    def wait_for_charts(self):
        self.wait("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn)")

    def background(self):
        return self.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")


@pytest.fixture(scope="module")
def page_file(folders, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    runs = load_runs(list(folders.values()))
    comparison_page(compare(runs, price={"price_per_hour": 36.0}), "a test").write(path)
    return path


@pytest.fixture
def opened(chromium, page_file):
    tabs = []

    def one(**how):
        tabs.append(Opened(chromium, page_file, **how))
        return tabs[-1]

    yield one
    for each in tabs:
        each.tab.close()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_the_page_draws_everything_and_asks_for_nothing(opened, page_file, width, theme):
    page = opened(width=width, theme=theme)
    page.wait_for_charts()
    assert page.said == []
    assert [url for url in page.asked if not url.startswith(("data:", "blob:"))] == [page_file.as_uri()]
    assert page.tab.inner_text("#verdict").startswith("4 replicas: 3.6x faster, 90 % efficient")
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.tab.evaluate("[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('.trace').length)")
    assert len(drawn) >= 14 and all(drawn)
    assert page.background() == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[theme]


@pytest.mark.browser
def test_every_axis_has_its_unit_and_no_text_overflows_its_chart(opened):
    page = opened()
    page.wait_for_charts()
    axes = page.tab.evaluate(
        """[...document.querySelectorAll('.chart')].flatMap(chart => Object.entries(chart.layout)
        .filter(([name, axis]) => /^[xy]axis/.test(name) && axis.type !== 'category')
        .map(([name, axis]) => `${axis.title?.text || ''}${axis.ticksuffix || ''}`))"""
    )
    assert len(axes) > 20 and all(axes)
    outside = page.tab.evaluate(
        """[...document.querySelectorAll('.chart')].filter(chart => { const box = chart.getBoundingClientRect();
        return [...chart.querySelectorAll('.main-svg text')].some(text => { const at = text.getBoundingClientRect();
        return at.width && (at.left < box.left - 2 || at.right > box.right + 2); }); }).map(chart => chart.id)"""
    )
    assert outside == []


@pytest.mark.browser
def test_runs_keep_their_colour_in_every_chart(opened):
    page = opened()
    page.wait_for_charts()
    colors = page.tab.evaluate(
        """[...document.querySelectorAll('.chart')].flatMap(chart => chart.data)
        .filter(trace => trace.legendgroup).map(trace => [trace.legendgroup, (trace.type === 'bar' ? trace.marker
        : trace.line).color])"""
    )
    assert len({key for key, _ in colors}) == 4
    assert len({tuple(pair) for pair in colors}) == 4


@pytest.mark.browser
def test_the_axis_runs_and_theme_are_chosen_with_the_keyboard(opened):
    page = opened()
    page.wait_for_charts()
    first = "document.querySelector('#chart-3')"
    assert page.tab.evaluate(f"{first}.layout.xaxis.title.text") == "epoch"
    page.tab.focus(".switch input")
    page.tab.keyboard.press("ArrowRight")
    page.wait(f"{first}.layout.xaxis.title.text === 'training examples seen'")
    page.tab.keyboard.press("ArrowRight")
    page.wait(f"{first}.layout.xaxis.title.text.startsWith('time since the start of the run')")
    assert page.tab.evaluate(f"{first}.data[0].x[0]") == pytest.approx(53.0)  # 12 s + 40 s + 1 s
    page.tab.focus("input[data-series]")
    page.tab.keyboard.press("Space")
    page.wait(f"{first}.data[0].visible === false && {first}.data[1].visible === true")
    page.tab.focus("#theme")
    for expected in ("rgb(255, 255, 255)", "rgb(22, 24, 29)"):
        page.tab.keyboard.press("Enter")
        assert page.background() == expected
    page.wait(f"{first}.layout.font.color === '#e7e9ee'")
    assert page.said == []


@pytest.mark.browser
def test_everything_is_reached_with_the_tab_key_and_charts_are_read_with_arrows(opened):
    page = opened()
    page.wait_for_charts()
    reached = []
    for _ in range(150):
        page.tab.keyboard.press("Tab")
        reached.append(page.tab.evaluate("document.activeElement.id || document.activeElement.className"))
    charts = page.tab.evaluate("[...document.querySelectorAll('.chart')].map(chart => chart.id)")
    assert {"skip", "theme", "table", *charts} <= {name.split(" ")[0] for name in reached}
    page.tab.focus("#chart-3")
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("ArrowRight")
    page.wait("document.querySelector('p[aria-live]').textContent.includes('at 2')")
    page.tab.keyboard.press("ArrowDown")
    page.wait("document.querySelector('p[aria-live]').textContent.includes('a_run_with')")


@pytest.mark.browser
def test_long_names_are_cut_with_the_whole_in_the_tooltip(opened):
    page = opened()
    title = page.tab.evaluate(f"document.querySelector('th[title*=\"{LONGEST_TITLE}\"]').innerText")
    assert "…" in title and len(title) <= 32


@pytest.mark.browser
def test_twenty_runs_of_a_thousand_epochs_load_in_two_seconds(chromium, made_runs, tmp_path):
    root = tmp_path / "runs"
    folders = [
        made_runs.make_run(
            root / f"run_{index}",
            replicas=2 ** (index % 4),
            speed=1000.0 * (1 + index % 4),
            epochs=1000,
            seed=index,
            samples=made_runs.make_samples(400, gpus=2 ** (index % 4)),
        )
        for index in range(20)
    ]
    started = time.perf_counter()
    comparison_page(compare(load_runs(folders))).write(tmp_path / "page.html")
    print(f"made in {time.perf_counter() - started:.1f} s")
    tab = chromium.new_page(viewport={"width": 1280, "height": 900})
    session = tab.context.new_cdp_session(tab)
    # Seconds of the page's own thread: a busy machine makes the clock on the wall run on, but not these.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_timeout(50)
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    print(f"loading took {metrics['TaskDuration']:.2f} s, of which scripts {metrics['ScriptDuration']:.2f} s")
    assert metrics["TaskDuration"] < 2.0
    assert tab.evaluate("document.querySelectorAll('input[data-series]').length") == 20
    tab.close()


@pytest.mark.browser
@pytest.mark.slow
def test_charts_become_pictures(chromium, tmp_path):
    page = Page("t")
    page.chart(
        {"data": [{"y": [1.0, 2.0]}], "layout": {"yaxis": {"title": {"text": "loss"}}}},
        "Loss",
        by={"epochs": By("epoch", [[1, 2]])},
        height=240,
    )
    (path,) = write_images(page, tmp_path)
    assert path.name == "01-loss-by-epochs.png"
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert [int.from_bytes(header[at : at + 4], "big") for at in (16, 20)] == [2000, 600]


def test_the_page_says_how_it_is_opened_without_scripts(page_file):
    text = page_file.read_text()
    assert re.search(r"<noscript>.*need JavaScript", text)
