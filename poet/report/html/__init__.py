"""Self-contained HTML pages, each a function from a record to the text of one file.

A page needs no network and loads nothing: Vega-Lite, which draws the charts, is part of it. It and
Jinja come with the extra ``report``.
"""

from __future__ import annotations

from poet.report.html.diff_page import diff_page as diff_page
from poet.report.html.page import check_installed as check_installed
from poet.report.html.plan_page import plan_page as plan_page
from poet.report.html.what_if_page import what_if_page as what_if_page
