"""Graphs of auxiliary schedules: on the training step's tensors across steps, under the same names."""

from __future__ import annotations

from dataclasses import replace

from poet.graph import Graph, Value


def beside(graph: Graph, training: Graph) -> Graph:
    """``graph`` with everything that lives across steps of ``training``, whether it reads it or not."""
    there = {buffer.name for buffer in graph.buffers}
    named = {value.name for value in graph.values}
    persistent = training.persistent()
    lasting = {value for _, value in (*training.states, *training.constants)}
    lasting |= {item.value for item in training.parameters}
    lasting |= {value for item in training.parameters for _, value in item.optimizer_state}
    lasting |= {item.accumulator for item in training.parameters if item.accumulator is not None}
    added: list[Value] = [item for item in training.values if item.name in lasting and item.name not in named]
    return replace(
        graph,
        buffers=(
            *graph.buffers,
            *(item for item in training.buffers if item.name in persistent and item.name not in there),
        ),
        values=(*graph.values, *added),
        parameters=tuple(replace(item, gradient=None) for item in training.parameters),
        states=training.states,
        constants=training.constants,
    )
