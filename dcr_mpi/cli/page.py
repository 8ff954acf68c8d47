"""A page that needs nothing else: sections with a title, a note and a plot each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 980px; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; } p { max-width: 60em; } .dim { color: #666; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd; } .dim { color: #999; } }
"""


def page(title: str, heading: str, note: str, answer: Sequence[str], sections: Sequence[str]) -> str:
    """HTML 5; ``answer`` are the lines that most people want."""
    head = f"<h1>{escape(heading)}</h1><p class=dim>{escape(note)}</p>"
    told = "".join(f"<p><b>{escape(line)}</b></p>" for line in answer)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{head}{told}\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def section(title: str, note: str, plot: str) -> str:
    """One question and the plot that answers it."""
    return f"<h2>{escape(title)}</h2><p class=dim>{escape(note)}</p>{plot}"
