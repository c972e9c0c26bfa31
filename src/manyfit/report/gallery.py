"""Thumbnails on a page, each with what was said of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A picture on a page.

    Args:
        source: A data URI; None where there is no picture any more.
        text: What is said of it.
        name: Where it is from, short.
        full: The same in full, in a tooltip.
        overlay: A data URI of the same proportions, laid over the picture; None for none.
    """

    source: str | None
    text: str
    name: str = ""
    full: str = ""
    overlay: str | None = None


def overlay_switch_html(text: str, escape: Callable[[str], str]) -> str:
    """A box that shows or hides what is laid over the pictures of the page."""
    return f'<label class="overlays"><input type="checkbox" id="overlays" checked> {escape(text)}</label>'


def gallery_html(pictures: Sequence[Picture], escape: Callable[[str], str]) -> str:
    """The pictures as one list, which wraps to the width of the window."""
    return f'<ul class="gallery">{"".join(_item(picture, escape) for picture in pictures)}</ul>'


def _item(picture: Picture, escape: Callable[[str], str]) -> str:
    described = escape(f"{picture.text}: {picture.name}")
    shown = '<span class="none">no longer there</span>'
    if picture.source is not None:
        shown = f'<img src="{escape(picture.source)}" alt="{described}" decoding="async">'
    layered = ""
    if picture.source is not None and picture.overlay is not None:
        shown += f'<img class="overlay" src="{escape(picture.overlay)}" alt="" decoding="async">'
        layered = " layered"
    return (
        f'<li title="{escape(picture.full or picture.name)}"><span class="frame{layered}">{shown}</span>'
        f"<b>{escape(picture.text)}</b><small>{escape(picture.name)}</small></li>"
    )
