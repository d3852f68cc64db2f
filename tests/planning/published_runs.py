"""Published training runs: model, mesh, batch and speed, each with its table."""

from dataclasses import dataclass
from typing import Any

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.planning.cluster import CLUSTERS
from transom.planning.communication import MicroBatches, NumberBytes, list_collectives
from transom.planning.plan import flops_per_token
from transom.planning.stages import count_stage_parameters, divide_stages
from transom.planning.step_time import StepSeconds, predict_stage_seconds, stage_flops

HALF = NumberBytes(activation=2, weight=2, gradient=2)
"""Bytes per number of a run in 16 bits, whose gradients are summed in 16 bits."""


@dataclass(frozen=True)
class PublishedRun:
    """A run of an article or a repository.

    Attributes:
        name: name of the run.
        source: article or file, and table.
        model: fields of the model.
        cluster: devices, a name of ``CLUSTERS``.
        layout: mesh of the run.
        length: tokens per row.
        batch: rows per step.
        rows: rows per micro-batch.
        seconds: published seconds per step, or computed from the published rate as ``how`` says.
        how: how the seconds follow from the table.
        size: bytes per number that is sent.
        recompute: whether the backward pass ran the forward pass of each block again.
    """

    name: str
    source: str
    model: dict[str, Any]
    cluster: str
    layout: ParallelConfig
    length: int
    batch: int
    rows: int
    seconds: float
    how: str
    size: NumberBytes = HALF
    recompute: bool = False

    @property
    def config(self) -> ModelConfig:
        """Configuration of the model."""
        return parse_model_config(self.model)

    def predict(self) -> StepSeconds:
        """Predict the time of a step."""
        config, layout = self.config, self.layout
        micro = MicroBatches(self.batch // (layout.n_batch_parts * self.rows), self.rows, 0, self.length)
        parts = flops_per_token(config, 0, self.length).parts
        forward = {part: self.rows * self.length * flops for part, flops in parts.items()}
        stages = []
        for stage in divide_stages(config, layout.pipeline):
            parameters = count_stage_parameters(config, layout, stage)
            collectives = list_collectives(config, layout, stage, parameters, micro, self.size, self.recompute)
            flops = stage_flops(config, forward, layout, stage)
            stages.append(predict_stage_seconds(flops, collectives, layout, CLUSTERS[self.cluster], self.recompute))
        return StepSeconds(tuple(stages), micro.n)


def gpt(n_layers: int, d_model: int, n_heads: int) -> dict[str, Any]:
    """Return a GPT of the Megatron articles: 51,200 symbols and 2,048 positions."""
    shape = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_ff": 4 * d_model, "max_seq_len": 2048}
    parts = {"vocab_size": 51_200, "position": "learned", "norm": "layernorm", "feed_forward": "gelu", "tie_embeddings": True}
    return {"kind": "decoder", **shape, **parts}


def megatron_flops(batch: int, n_layers: int, d_model: int) -> float:
    """Return the FLOPs of a step with recomputation as the article counts them (Narayanan et al. 2021, equation 3)."""
    s, v = 2048, 51_200
    return 96 * batch * s * n_layers * d_model**2 * (1 + s / (6 * d_model) + v / (16 * n_layers * d_model))


def megatron(name: str, shape: tuple[int, int, int], layout: ParallelConfig, batch: int, rows: int, rate: float) -> PublishedRun:
    """Build a row of table 1 of Narayanan et al. 2021; micro-batches are those of Megatron-LM's examples/sc21/run_table_1.sh."""
    n_layers, d_model, n_heads = shape
    seconds = megatron_flops(batch, n_layers, d_model) / (layout.n_processes * rate)
    return PublishedRun(
        name=f"GPT {name} on {layout.n_processes:,} A100",
        source=f"Narayanan et al. 2021, table 1, row {name}, also in Megatron-LM's images/cases_april2021.png",
        model=gpt(n_layers, d_model, n_heads),
        cluster="a100",
        layout=layout,
        length=2048,
        batch=batch,
        rows=rows,
        seconds=seconds,
        how=f"equation 3 / ({layout.n_processes:,} GPUs x {rate / 1e12:.0f} TFLOP/s)",
        recompute=True,
    )


def torchtitan(n: int, rate: float, table: int) -> PublishedRun:
    """Build the compiled run in BF16 of a table of torchtitan's benchmarks/llama3_h100_202412_torchtitan.md."""
    return PublishedRun(
        name=f"Llama 3.1 8B on {n} H100",
        source=f"torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table {table}, FSDP + torch.compile",
        model={"preset": "llama-3-8b", "vocab_size": 128_256},
        cluster="h100",
        layout=ParallelConfig(shard=n),
        length=8192,
        batch=2 * n,
        rows=2,
        seconds=2 * 8192 / rate,
        how=f"2 rows x 8,192 tokens / {rate:,.0f} tokens per second and GPU",
        size=NumberBytes(activation=2, weight=2, gradient=4),
    )


RUNS = (
    torchtitan(8, 6667, 1),
    torchtitan(128, 6514, 3),
    megatron("18.4B", (40, 6144, 48), ParallelConfig(tensor=8, data=32), 1024, 8, 135e12),
    megatron("39.1B", (48, 8192, 64), ParallelConfig(tensor=8, pipeline=2, data=32), 1536, 4, 138e12),
    megatron("1008B", (128, 25_600, 160), ParallelConfig(tensor=8, pipeline=64, data=6), 3072, 1, 163e12),
    PublishedRun(
        name="GPT 175B on 1,024 A100",
        source="Megatron-LM's README (2022), GPT-3 example, and its examples/pretrain_gpt3_175B.sh",
        model=gpt(96, 12_288, 96),
        cluster="a100",
        layout=ParallelConfig(tensor=8, pipeline=16, data=8),
        length=2048,
        batch=1536,
        rows=1,
        seconds=32.0,
        how="as printed, around 32 s",
        recompute=True,
    ),
    PublishedRun(
        name="GPT 22B on 8 A100",
        source="Korthikanti et al. 2022, tables 3 and 5, row 22B; Megatron-LM's README (2022) has the utilization of 41.5 %",
        model=gpt(48, 6144, 64),
        cluster="a100",
        layout=ParallelConfig(tensor=8),
        length=2048,
        batch=4,
        rows=4,
        seconds=1.10,
        how="as printed, with sequence parallelism and selective recomputation; 41.5 % of 312 TFLOP/s are 1.104 s",
    ),
)
