"""results/nets.md is the page that its command makes, and every net is in it by every route."""

from __future__ import annotations

import nets_table
from helpers.layers import ROOT
from usual_nets import USUAL

PAGE = (ROOT / "benchmarks" / "results" / "nets.md").read_text(encoding="utf-8")


def test_the_page_has_every_net_by_every_route_and_its_commands_words() -> None:
    rows = nets_table.lines_of(PAGE)
    assert rows.keys() == {(net, route) for net in USUAL for route in nets_table.ROUTES}
    assert nets_table.document(rows) == PAGE


def test_what_was_not_run_is_said() -> None:
    rows = nets_table.lines_of(PAGE)
    del rows["lora", "module"]
    assert "Not run when this table was made: lora module." in nets_table.document(rows)


def test_a_refusal_says_whose_it_is() -> None:
    row = nets_table.Row("lora", "module", refusal="by torch's exporter: no a|b")
    line = nets_table.line(row)
    assert line == "| LoRA | `module` |  | refused: by torch's exporter: no a\\|b |  |  |  |"
    assert nets_table.lines_of(line) == {("lora", "module"): line}
