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
    """

    source: str | None
    text: str
    name: str = ""
    full: str = ""


def gallery_html(pictures: Sequence[Picture], escape: Callable[[str], str]) -> str:
    """The pictures as one list, which wraps to the width of the window."""
    return f'<ul class="gallery">{"".join(_item(picture, escape) for picture in pictures)}</ul>'


def _item(picture: Picture, escape: Callable[[str], str]) -> str:
    described = escape(f"{picture.text}: {picture.name}")
    shown = '<span class="none">no longer there</span>'
    if picture.source is not None:
        shown = f'<img src="{escape(picture.source)}" alt="{described}" decoding="async">'
    return (
        f'<li title="{escape(picture.full or picture.name)}"><span class="frame">{shown}</span>'
        f"<b>{escape(picture.text)}</b><small>{escape(picture.name)}</small></li>"
    )
