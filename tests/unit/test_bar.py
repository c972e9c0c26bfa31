"""A bar on a terminal, a line now and then elsewhere."""

import io

from manyfit.bar import LINE_SECONDS, Bar
from manyfit.console import Console


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return False


def test_a_screen_that_cannot_draw_gets_a_line_now_and_then():
    now, screen = [0.0], Screen()
    with Bar(Console(stdout=screen, stderr=screen), "features", "images", clock=lambda: now[0]) as bar:
        for done in range(0, 1001, 10):
            now[0] = done / 10  # 10 images a second, 100 seconds
            bar(done, 1000)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 100 // LINE_SECONDS
    assert lines[0] == "features: 300 of 1,000 (10 images/s, 70 s left)"


def test_a_terminal_gets_a_bar_that_goes_away():
    screen = Screen()
    console = Console(stdout=screen, stderr=screen, live=True)
    with Bar(console, "features", "images") as bar:
        bar(1, 2)
    assert "1 of 2" not in screen.getvalue()
