"""Articulation points of a graph without directions, by depth-first search (Hopcroft & Tarjan, Algorithm 447, CACM 16, 1973)."""

from __future__ import annotations

from collections.abc import Iterable


def articulation_points(edges: Iterable[tuple[int, int]], count: int) -> set[int]:
    """The vertices, of 0, ..., count - 1, without which what was connected is not.

    Behind a vertex the search comes to everything that is connected to it by other vertices than those above it. A vertex cuts off
    what is behind one of its children if nothing there has an edge to anything above; the first of all, where nothing is above, if
    it has two children.
    """
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges:
        neighbours[one].append(other)
        neighbours[other].append(one)
    found: set[int] = set()
    number = [-1] * count  # in which order vertices are come to
    lowest = [0] * count  # the least number with an edge from what is behind a vertex
    numbered = 0
    for root in range(count):
        if number[root] >= 0:
            continue
        number[root] = lowest[root] = numbered
        numbered += 1
        children = 0
        path = [(root, iter(neighbours[root]))]
        while path:
            vertex, left = path[-1]
            following = next(left, None)
            if following is None:
                path.pop()
                if not path:
                    continue
                above = path[-1][0]
                lowest[above] = min(lowest[above], lowest[vertex])
                if above == root:
                    children += 1
                elif lowest[vertex] >= number[above]:
                    found.add(above)
            elif number[following] < 0:
                number[following] = lowest[following] = numbered
                numbered += 1
                path.append((following, iter(neighbours[following])))
            else:
                lowest[vertex] = min(lowest[vertex], number[following])
        if children > 1:
            found.add(root)
    return found
