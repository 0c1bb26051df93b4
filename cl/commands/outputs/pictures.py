"""A page of pictures in one HTML file, in rows whose first picture stands apart."""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.runtime.files import finished

Decode = Callable[[Path], np.ndarray]  # (H, W, 3) uint8

SIDE = 160  # pixels of a thumbnail at most
STYLE = (
    ":root{color-scheme:light dark}body{font:13px sans-serif;margin:1.5em}a{color:inherit}"
    "section,div{display:flex;gap:10px}section{padding:1em 0;border-bottom:1px solid #888}div{flex-wrap:wrap}"
    f"figure{{margin:0;width:{SIDE}px;flex:none}}figcaption{{overflow-wrap:anywhere}}"
    "section>figure{padding-right:10px;border-right:3px solid #36c}img{display:block;max-width:100%}"
    "@media(max-width:600px){figure{width:100px}}"
)
HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    f"<style>{STYLE}</style>"
)


def write(
    path: Path, title: str, about: str, rows: Iterable[Sequence[tuple[Path, str]]], decode: Decode
) -> None:
    """Write a page of pictures and captions; the reason replaces a picture that `decode` cannot read.

    about: what the rows show, and where they are from.
    """
    with finished(path) as partial, partial.open("w", encoding="utf-8") as page:
        page.write(f"{HEAD}<title>{title}</title><h1>{title}</h1><p>{escape(about)}</p>\n")
        for row in rows:
            first, *others = (_figure(picture, caption, decode) for picture, caption in row)
            page.write(f"<section>{first}<div>{''.join(others)}</div></section>\n")


def _figure(picture: Path, caption: str, decode: Decode) -> str:
    try:
        thumbnail, file = Picture.fromarray(decode(picture)), io.BytesIO()
        thumbnail.thumbnail((SIDE, SIDE))
        thumbnail.save(file, "JPEG", quality=85)
        content = base64.b64encode(file.getvalue()).decode()
        image = f'<img alt="{escape(picture.name)}" src="data:image/jpeg;base64,{content}">'
        shown = f'<a href="{escape(picture.absolute().as_uri())}">{image}</a>'
    except (ValueError, OSError) as error:
        shown = f"<p>{escape(str(error))}</p>"
    return f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>"
