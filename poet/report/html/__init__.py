"""Pages: from a template and data to one HTML file that loads nothing.

Vega-Lite, which draws the charts, is part of a page. It and Jinja come with the extra ``report``.

Names in a page come from untrusted models: templates escape them, and data is JSON with escapes for ``<``,
``>`` and ``&`` that scripts put in place as text. The page's content security policy runs no script but the
three whose hashes it names, and allows no connection.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from poet.errors import InputError, how_to_install, spelled_out
from poet.version import __version__

ASSETS = files(__name__) / "assets"

PACKAGES = ("jinja2", "vl_convert")
EXTRA = f"an HTML report needs {{package}}; to have it: {how_to_install('report')}"


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page's scripts draw.

    Attributes:
        charts: Vega-Lite specifications by the id of their place in the page.
        tables: rows that sort and filter, likewise, of `poet.report.page_table`.
        timeline: of `poet.report.html.plan_page.timeline_data`; ``None``: the page has none.
        downloads: what buttons save: ``csv`` as text, ``json`` as objects.
    """

    charts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    timeline: Mapping[str, Any] | None = None
    downloads: Mapping[str, Any] | None = None


def check_installed() -> None:
    """Refuse a page before the work for it is done.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    for package in PACKAGES:
        if find_spec(package) is None:
            raise InputError(EXTRA.format(package=package))


def render(template: str, content: PageContent, context: Mapping[str, Any]) -> str:
    """The page of ``template`` with ``content`` for its scripts and ``context`` for its text.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    try:
        import jinja2

        library = _chart_library()
    except ImportError as error:
        raise InputError(EXTRA.format(package=error.name)) from None
    first, script = _asset("theme.js"), _asset("page.js")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_spelled,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        **context,
        version=__version__,
        style=_asset("page.css"),
        library=library,
        first_script=first,
        script=script,
        script_hashes=" ".join(f"'{_digest(text)}'" for text in (first, library, script)),
        data=_json_block(content),
    )


@functools.cache
def _chart_library() -> str:
    """Vega, Vega-Lite and vega-embed in one script; putting it together takes seconds, so it is kept."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a content security policy names a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json_block(content: PageContent) -> str:
    """The data as JSON that cannot end its script element or open a comment in it."""
    data = {
        "charts": dict(content.charts),
        "tables": content.tables,
        "timeline": content.timeline,
        "downloads": content.downloads,
    }
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(data: Any) -> Any:
    """``data`` with text that prints, and ``null`` for what JSON has no number for (infinity: no bound)."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(item) for item in data]
    return _spelled(data)


def _spelled(item: Any) -> Any:
    """Text with escapes for what does not print; all else, markup too, as it is."""
    return spelled_out(item, keep="\n\u00a0") if type(item) is str else item  # amounts have such blanks
