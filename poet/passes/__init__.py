"""Rewrites of a training step's ops into other forms with the same bits, and which of them a step has.

A technique is a module: it finds `Rewrite` records in a graph, and a trial shows which are exact here
(`poet.runtime.trials`). `poet.passes.forms` has the list of all, in order.
"""
