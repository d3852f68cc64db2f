"""Maximum flow through a directed graph with whole-number capacities (Dinic 1970)."""

from collections.abc import Iterable


class FlowNetwork:
    """A directed graph with capacities, in which maximum flows between any two nodes can be computed.

    Edge 2 i + 1 is the residual edge of edge 2 i: it starts with capacity 0 and gains what flows along edge 2 i.
    """

    def __init__(self, n_nodes: int, edges: Iterable[tuple[int, int, int]]) -> None:
        """Build the graph.

        Args:
            n_nodes: number of nodes.
            edges: start, end and capacity of each edge.
        """
        self._edges: list[list[int]] = [[] for _ in range(n_nodes)]
        self._ends, self._capacities = list[int](), list[int]()
        for start, end, capacity in edges:
            for node, other, size in ((start, end, capacity), (end, start, 0)):
                self._edges[node].append(len(self._ends))
                self._ends.append(other)
                self._capacities.append(size)

    def max_flow(self, source: int, sink: int) -> int:
        """Return the largest flow from one node to another; each node passes on what it receives."""
        residual, total = list(self._capacities), 0
        while (distances := self._distances(residual, source, sink)) is not None:
            unused = [iter(edges) for edges in self._edges]
            current: list[int | None] = [next(edges, None) for edges in unused]

            def push(node: int, limit: int) -> int:
                """Send at most ``limit`` from a node to the sink along shortest paths; return the amount sent."""
                if node == sink:
                    return limit
                sent = 0
                while (edge := current[node]) is not None:  # noqa: B023 - called in this round only
                    end = self._ends[edge]
                    if residual[edge] and distances[end] == distances[node] - 1:
                        passed = push(end, min(limit - sent, residual[edge]))
                        residual[edge] -= passed
                        residual[edge ^ 1] += passed
                        sent += passed
                        if sent == limit:
                            break
                    current[node] = next(unused[node], None)  # noqa: B023
                return sent

            total += push(source, sum(residual[edge] for edge in self._edges[source]))
        return total

    def _distances(self, residual: list[int], source: int, sink: int) -> list[int] | None:
        """Return the number of edges from each node to the sink, -1 if none or more than from the source; None without a path."""
        distances, layer, n = [-1] * len(self._edges), [sink], 0
        distances[sink] = 0
        while layer and distances[source] < 0:
            n, reached = n + 1, list[int]()
            for node in layer:
                for edge in self._edges[node]:
                    start = self._ends[edge]
                    if distances[start] < 0 and residual[edge ^ 1]:
                        distances[start] = n
                        reached.append(start)
            layer = reached
        return distances if distances[source] >= 0 else None
