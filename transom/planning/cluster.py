"""Devices and links of a cluster, and the time of a collective on them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from transom.config.parallel import ParallelConfig

CollectiveKind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "send"]


class Link(NamedTuple):
    """A connection of one device to another one.

    Attributes:
        bandwidth: bytes per second in one direction.
        latency: seconds before the first byte of a message arrives.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Cluster:
    """Equal machines with equal devices.

    Attributes:
        name: name of the devices.
        flops: peak rate of one device in FLOP/s.
        device_bytes: memory of one device.
        devices_per_node: devices of one machine.
        intra: link of a device to others of its machine.
        inter: link of a device to devices of other machines.
        utilization: fraction of ``flops`` that the computation of a step reaches, waiting for collectives not counted.
        source: where these numbers come from.
        efficiency: fraction of the links' bandwidth that a kind of collective reaches, where it is not all of it.
        overlaps: whether devices compute while weights and gradients of shards are on their way.
    """

    name: str
    flops: float
    device_bytes: int
    devices_per_node: int
    intra: Link
    inter: Link
    utilization: float
    source: str
    efficiency: Mapping[CollectiveKind, float] = field(default_factory=dict)
    overlaps: bool = True


GIB = 2**30
CLUSTERS = {
    "h100": Cluster(
        "H100 SXM",
        989.4e12,
        80 * GIB,
        8,
        Link(450e9, 5e-6),
        Link(50e9, 10e-6),
        0.39,
        "NVIDIA H100 and DGX H100 datasheets: BF16 without sparsity, NVLink 900 GB/s in both directions, 400 Gbit/s per GPU",
    ),
    "a100": Cluster(
        "A100 SXM 80 GB",
        312e12,
        80 * GIB,
        8,
        Link(300e9, 5e-6),
        Link(25e9, 10e-6),
        0.55,
        "NVIDIA A100 and DGX A100 datasheets: BF16 without sparsity, NVLink 600 GB/s in both directions, 200 Gbit/s per GPU",
    ),
}
"""Published hardware. Latencies are assumed. The utilization is fitted to one published run of each, in
``tests/planning/test_published_runs.py``, which compares predictions for others."""

GLOO = Link(1.5e9, 1e-3)
"""Link between processes of one machine by gloo over the loopback interface, between computations.

Fitted to the times of an all-reduce of 1 to 64 MiB among 2 processes that ``benchmarks/collectives.py`` measured on two cores, 2026-11-28
with PyTorch 2.13. Alone, a small collective takes 0.3 ms. Between computations it takes milliseconds, since one process arrives later.
"""

GLOO_EFFICIENCY: Mapping[CollectiveKind, float] = {"all-gather": 0.45, "reduce-scatter": 0.35, "all-to-all": 0.8, "send": 0.85}
"""Fraction of the bandwidth of ``GLOO`` that other collectives reach, from the same measurement.

PyTorch's gloo computes a reduce-scatter as an all-reduce of which a rank keeps its part, and copies the tensors of a gather.
"""


class RankGroup(NamedTuple):
    """The ranks that differ in one axis only.

    Attributes:
        size: number of ranks.
        per_node: how many of them are in one machine.
    """

    size: int
    per_node: int


def rank_group(layout: ParallelConfig, axis: str, devices_per_node: int) -> RankGroup:
    """Return the group of an axis; neighboring ranks of it are as far apart as the product of all later axes of ``AXES``."""
    stride = math.prod(layout.sizes[layout.AXES.index(axis) + 1 :])
    size: int = getattr(layout, axis)
    return RankGroup(size, max(1, min(size, devices_per_node // stride)))


def sent_bytes(kind: CollectiveKind, n_bytes: float, size: int) -> float:
    """Return the bytes that each rank of a group sends (Thakur, Rabenseifner and Gropp 2005, section 4).

    Args:
        kind: an all-gather, reduce-scatter or all-to-all sends all but the rank's own part, an all-reduce this twice.
        n_bytes: size of the whole tensor: gathered, reduced, or, of an all-to-all and a send, what one rank has to send.
        size: number of ranks of the group.
    """
    if kind == "send":
        return n_bytes
    return (2 if kind == "all-reduce" else 1) * n_bytes * (size - 1) / size


def collective_seconds(kind: CollectiveKind, n_bytes: float, group: RankGroup, cluster: Cluster) -> float:
    """Predict the time of a collective: latency per hop, and bytes / bandwidth (Thakur, Rabenseifner and Gropp 2005, section 4).

    Ranks of a group that are in one machine each have a link to other machines, over which they share the group's traffic.
    """
    if group.size == 1:
        return 0.0
    n_nodes, n_bytes = -(-group.size // group.per_node), n_bytes / cluster.efficiency.get(kind, 1.0)
    if kind == "send":
        link = cluster.intra if n_nodes == 1 else cluster.inter
        return link.latency + n_bytes / link.bandwidth
    bandwidth = cluster.intra.bandwidth if n_nodes == 1 else min(cluster.intra.bandwidth, group.per_node * cluster.inter.bandwidth)
    hops = (group.per_node - 1) * cluster.intra.latency + (n_nodes - 1) * cluster.inter.latency
    return (2 if kind == "all-reduce" else 1) * hops + sent_bytes(kind, n_bytes, group.size) / bandwidth
