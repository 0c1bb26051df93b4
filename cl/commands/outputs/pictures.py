"""Pictures as HTML without other files, in rows whose first picture stands apart."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.runtime.files import finished

Decode = Callable[[Path], np.ndarray]  # (H, W, 3) uint8

Rows = Iterable[Sequence[tuple[Path, str]]]  # pictures and captions

SIDE = 160  # pixels of a thumbnail at most
STYLE = (
    ".cl a{color:inherit}.cl,.cl div{display:flex;gap:10px}.cl{padding:1em 0;border-bottom:1px solid #888}"
    f".cl div{{flex-wrap:wrap}}.cl figure{{margin:0;width:{SIDE}px;flex:none}}"
    ".cl figcaption{overflow-wrap:anywhere}.cl img{display:block;max-width:100%}"
    ".cl>figure{padding-right:10px;border-right:3px solid #36c}"
    "@media(max-width:600px){.cl figure{width:100px}}"
)
HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<style>:root{color-scheme:light dark}body{font:13px sans-serif;margin:1.5em}</style>"
)


def write(path: Path, title: str, about: str, rows: Rows, decode: Decode) -> None:
    """Write a page; `about`: what the rows show, and where they are from."""
    with finished(path) as partial, partial.open("w", encoding="utf-8") as page:
        page.write(f"{HEAD}<title>{title}</title><h1>{title}</h1><p>{escape(about)}</p>\n")
        page.writelines(html(rows, decode))


def html(rows: Rows, decode: Decode) -> Iterator[str]:
    """The style, then each row; the reason replaces a picture that `decode` cannot read."""
    yield f"<style>{STYLE}</style>\n"
    for row in rows:
        first, *others = (_figure(picture, caption, decode) for picture, caption in row)
        yield f'<section class="cl">{first}<div>{"".join(others)}</div></section>\n'


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
