"""For each kind of picture a small model, the numbers of the picture computed by hand in float64, and what its words and colors must be."""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import transom
from tests.inspection.test_alignment import tiny, trained
from transom.data.batch import translation_batch
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.predictors.translator import Translator
from transom.inspection.plots.picture import DIVERGING, SEQUENTIAL, Picture
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

Rows = list[tuple[Any, ...]]

SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 24, "dropout": 0.0, "max_seq_len": 32}
IMAGE: dict[str, Any] = {"image_size": 8, "patch_size": 4, "classes": ["a", "b"], "n_heads": 2, "d_ff": 16, "d_model": 12}
TOKENS = torch.tensor([[1, 5, 9, 7, 3, 11]])
N = TOKENS.shape[1]
NAMES = [str(i) for i in range(N)]
"""A model without a run has no names of tokens: positions stand in their place."""


class Matrix(NamedTuple):
    """A matrix that a picture draws.

    Attributes:
        values: the numbers; NaN where a cell is blank.
        low: number at the lower end of the colors.
        high: number at the upper end of the colors.
        colors: name of the color map.
        image: picture over which a translucent matrix lies, (height, width, 3); None if it is opaque.
    """

    values: Tensor
    low: float
    high: float
    colors: str = SEQUENTIAL
    image: Tensor | None = None


class Case(NamedTuple):
    """A picture of one kind.

    Attributes:
        draw: builds the model anew and draws the picture.
        rows: computes the rows of its table by hand.
        matrices: the matrices that it draws, in the order of its axes, from the rows of its table.
        said: what the text alternative must say, from the rows.
    """

    draw: Callable[[], Picture]
    rows: Callable[[], Rows]
    matrices: Callable[[Rows], list[Matrix]]
    said: Callable[[Rows], list[str]]


def decoder(**fields: Any) -> Network:
    torch.manual_seed(1)
    model: Network = transom.build({"kind": "decoder", "vocab_size": 20, "n_layers": 2} | SMALL | fields)
    return model.double().eval()


def recorded(model: Network, *sites: str, inputs: Any = TOKENS) -> dict[str, Tensor]:
    recorder = ActivationRecorder(sites)
    with torch.no_grad():
        model(inputs, recorder)
    return dict(recorder.activations)


def softmax(q: Tensor, k: Tensor, is_causal: bool = True) -> Tensor:
    """Compute the weights of queries and keys, causal or not."""
    s = (q @ k.transpose(-2, -1)).double() / math.sqrt(q.shape[-1])
    return (s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf) if is_causal else s).softmax(-1)


def maps(model: Network, tokens: Tensor = TOKENS) -> list[Tensor]:
    """Return the attention maps of each block of a decoder, (batch, heads, query, key)."""
    sites = recorded(model, "*.q", "*.k", inputs=tokens)
    return [softmax(sites[f"decoder.blocks.{i}.attn.q"], sites[f"decoder.blocks.{i}.attn.k"]) for i in range(2)]


def column(rows: Rows, *index: int, at: int = -1) -> Tensor:
    """Return the last number of each row as a tensor of a shape."""
    return torch.tensor([float(row[at]) for row in rows], dtype=torch.float64).view(*index)


@cache
def head_rows() -> Rows:
    return [
        (layer, h, i, NAMES[i], j, NAMES[j], float(weights[0, h, i, j]))
        for layer, weights in enumerate(maps(decoder()))
        for h in range(2)
        for i in range(N)
        for j in range(N)
    ]


def head_matrices(rows: Rows) -> list[Matrix]:
    table = column(rows, -1, N, N)
    return [Matrix(each, 0.0, float(table.max())) for each in table]


def said_of_heads(rows: Rows) -> list[str]:
    sharpness = column(rows, 2, 2, N, N).amax(-1).mean(-1)
    layer, h = divmod(int(sharpness.argmax()), 2)
    return ["2 x 2 attention maps of 6 queries (rows) and 6 keys", f"head {h} of block {layer}", f"{float(sharpness.max()):.2f} on average"]


def said_of_head(rows: Rows) -> list[str]:
    i, j = divmod(int(column(rows, -1).argmax()), N)
    return ["head 1 of decoder.blocks.1.attn", "6 queries (rows), 6 keys (columns)", f"{rows[i * N + j][-1]:.3f}, goes from '{i}' to '{j}'"]


SOURCE, TARGET = "the red house", "die rote Katze"


def translator() -> Translator:
    tokenizers = trained()
    return Translator(tiny(tokenizers), tokenizers)  # type: ignore[arg-type]


def word_of_token(tokenizers: Tokenizers, side: str, text: str) -> list[int]:
    """Return the index of the word of each token, and of the end of sequence, by encoding longer and longer beginnings of a text."""
    tokenizer, words = getattr(tokenizers, side), text.split()
    lengths = [len(tokenizer.encode(" ".join(words[: n + 1]))) for n in range(len(words))]
    return [sum(i >= length for length in lengths) for i in range(lengths[-1] + 1)]


def alignment_rows() -> Rows:
    """Average the cross-attention of a layer over its heads, add up the tokens of a source word, average those of a target word."""
    run = translator()
    tokens = run.tokenizers.source.encode(SOURCE), run.tokenizers.target.encode(TARGET)
    sites = recorded(run.model, "*.cross.q", "*.cross.k", inputs=translation_batch([tokens[0]], [tokens[1]], [0]))
    weights = softmax(sites["decoder.blocks.1.cross.q"], sites["decoder.blocks.1.cross.k"], is_causal=False)[0].mean(0)
    keys, queries = word_of_token(run.tokenizers, "source", SOURCE), word_of_token(run.tokenizers, "target", TARGET)
    assert len(keys) > 4 < len(queries)  # some words have several tokens
    rows = []
    for t, target in enumerate([*TARGET.split(), "[EOS]"]):
        for s, source in enumerate([*SOURCE.split(), "[EOS]"]):
            cells = [float(weights[i, j]) for i, q in enumerate(queries) for j, k in enumerate(keys) if (q, k) == (t, s)]
            rows.append((t, target, s, source, sum(cells) / queries.count(t)))
    return rows


def said_of_alignment(rows: Rows) -> list[str]:
    best = [max(rows[4 * t : 4 * t + 4], key=lambda row: float(row[-1])) for t in range(4)]
    return ["4 target words (rows) with 4 source words (columns)", ", ".join(f"{row[1]} - {row[3]}" for row in best)]


def probability_rows() -> Rows:
    logits = decoder()(TOKENS)[0, 2].detach()
    best = logits.argsort(descending=True)[:5].tolist()
    return [(tau, str(i), i, float(((logits / tau).exp() / (logits / tau).exp().sum())[i])) for tau in (0.5, 1.0, 3.0) for i in best]


def said_of_probabilities(rows: Rows) -> list[str]:
    (at_one,) = [row[-1] for row in rows if row[0] == 1.0 and row[2] == rows[0][2]]
    return ["The 5 most probable outputs", f"'{rows[0][1]}' with probability {at_one:.3f}", f"{rows[0][-1]:.3f} at temperature 0.5"]


def lens_rows() -> Rows:
    model = decoder()
    sites = recorded(model, "*.resid", "*.resid_post")
    rows = []
    answers = model(TOKENS)[0].argmax(-1).tolist()
    for name, site in (("embedding", "embedding.resid"), *((f"decoder.blocks.{i}", f"decoder.blocks.{i}.resid_post") for i in range(2))):
        z = model.unembedding(model.get_submodule("decoder.norm")(sites[site]))[0].detach()
        p = z.exp() / z.exp().sum(-1, keepdim=True)
        rows += [(name, i, str(answers[i]), str(int(p[i].argmax())), float(p[i].max()), float(p[i, answers[i]])) for i in range(N)]
    return rows


def said_of_lens(rows: Rows) -> list[str]:
    of_stream = [[row for row in rows if row[0] == name] for name in ("embedding", "decoder.blocks.0", "decoder.blocks.1")]
    shares = [f"{each[0][0]} {sum(row[2] == row[3] for row in each) / N:.0%}" for each in of_stream]
    return ["6 positions (columns)", *shares]


def rollout_rows() -> Rows:
    mixed = torch.eye(N, dtype=torch.float64)
    for weights in maps(decoder()):
        mixed = (weights[0].mean(0) + torch.eye(N)) / 2 @ mixed
    return [(i, NAMES[i], j, NAMES[j], float(mixed[i, j])) for i in range(N) for j in range(N)]


def said_of_rollout(rows: Rows) -> list[str]:
    best = column(rows, N, N).argmax(-1).tolist()
    return ["each input token (columns) in each output (rows)", ", ".join(f"{i} - {j}" for i, j in enumerate(best))]


def vision_transformer() -> tuple[Network, Tensor]:
    torch.manual_seed(1)
    return transom.build({"kind": "vision-transformer"} | IMAGE).double().eval(), torch.rand(1, 3, 8, 8, dtype=torch.float64)


def patch_rows() -> Rows:
    model, pixels = vision_transformer()
    sites = recorded(model, "*.q", "*.k", inputs=pixels)
    n = 4 + (model.config.pooling == "cls")  # type: ignore[union-attr]
    mixed = torch.eye(n, dtype=torch.float64)
    for i in range(model.config.n_layers):  # type: ignore[union-attr]
        weights = softmax(sites[f"encoder.blocks.{i}.attn.q"], sites[f"encoder.blocks.{i}.attn.k"], is_causal=False)[0].mean(0)
        mixed = (weights + torch.eye(n)) / 2 @ mixed
    shares = mixed[0, 1:] if n == 5 else mixed.mean(0)
    return [(i // 2, i % 2, float(share)) for i, share in enumerate(shares)]


def patch_matrices(rows: Rows) -> list[Matrix]:
    """Return the shares over the picture, and alone."""
    shares = Matrix(table := column(rows, 2, 2), 0.0, float(table.max()))
    return [shares._replace(image=vision_transformer()[1][0].permute(1, 2, 0)), shares]


def said_of_patches(rows: Rows) -> list[str]:
    i, j, share = max(rows, key=lambda row: float(row[-1]))
    return ["2 x 2 patches", f"{share:.3f}, has the patch in row {i}, column {j}"]


HEADS = [(f"decoder.blocks.{i}.attn", h) for i in range(2) for h in range(2)]


def similarity_rows() -> Rows:
    """Average the cosine of two rows over the queries that see more than one key."""
    table = torch.cat(maps(decoder()), 1)[0, :, 1:]
    cosine = {
        (a, b): float((table[a] * table[b]).sum(-1).div(table[a].norm(dim=-1) * table[b].norm(dim=-1)).mean())
        for a in range(4)
        for b in range(4)
    }
    return [(" ".join(map(str, HEADS[a])), " ".join(map(str, HEADS[b])), value) for (a, b), value in cosine.items()]


def said_of_similarity(rows: Rows) -> list[str]:
    a, b, most = max((row for i, row in enumerate(rows) if i // 4 < i % 4), key=lambda row: float(row[-1]))
    return ["maps of 4 heads (rows and columns)", f"{a} and {b} with {most:.2f}"]


STEPS = (0, 7)


def formed() -> list[tuple[int, Network]]:
    """Return a model and one with other weights, as if it had been trained for some steps."""
    models = [decoder(n_heads=2, norm="none", tie_embeddings=False) for _ in STEPS]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return list(zip(STEPS, models, strict=True))


def positional(weights: Tensor) -> float:
    """Return the share of the variance that the offset explains, each pair predicted from the others at its offset."""
    deviation = {(i, j): float(weights[i, j]) - 1 / (i + 1) for i in range(1, N) for j in range(i + 1)}
    residual = 0.0
    for (i, j), d in deviation.items():
        others = [value for (a, b), value in deviation.items() if a - b == i - j and a != i]
        residual += (d - (sum(others) / len(others) if others else 0.0)) ** 2
    return max(0.0, 1 - residual / sum(d * d for d in deviation.values()))


@cache
def formation_rows() -> Rows:
    """Score both heads of both blocks at both steps, by loops over the maps and eigenvalues of matrices over the vocabulary."""
    n, draw, found = 15, torch.Generator().manual_seed(0), dict[tuple[str, int, int], float]()
    _, repeated = ([torch.randperm(16, generator=draw)[:n] + 4 for _ in range(8)] for _ in range(2))  # those of a source are drawn first
    texts = torch.stack([torch.cat([torch.tensor([2]), each, each]) for each in repeated])
    for step, model in formed():
        m: Any = model
        a, b = torch.cat(maps(model), 1)[0], torch.cat(maps(model, texts), 1)
        for h in range(4):
            attn = m.decoder.blocks[h // 2].attn
            w_v, w_o = (w.double() for w in (attn.v.weight[h % 2 * 8 : h % 2 * 8 + 8].T, attn.o.weight[:, h % 2 * 8 : h % 2 * 8 + 8].T))
            values = torch.linalg.eigvals(m.embedding.tokens.weight @ w_v @ w_o @ m.unembedding.weight.T).detach()
            second = range(n + 1, 2 * n + 1)
            scores = {
                "previous-token": sum(float(a[h, i, i - 1]) for i in range(1, N)) / (N - 1),
                "positional": positional(a[h]),
                "induction": float(sum(b[:, h, i, i - n + 1].mean() for i in second)) / n,
                "duplicate-token": float(sum(b[:, h, i, i - n].mean() for i in second)) / n,
                "delimiter": sum(float(a[h, i, 0]) for i in range(1, N)) / (N - 1),  # the first token starts a sequence
                "copying": float(values.sum().real / values.abs().sum()),
                "entropy": sum(-sum(p * math.log(p) for p in a[h, i, : i + 1].tolist()) / math.log(i + 1) for i in range(1, N)) / (N - 1),
            }
            found |= {(name, step, h): score for name, score in scores.items()}
    names = list(dict.fromkeys(name for name, _, _ in found))
    return [(step, *HEADS[h], name, found[name, step, h]) for name in names for step in STEPS for h in range(4)]


def said_of_formation(rows: Rows) -> list[str]:
    said = ["4 heads at 2 steps of training, from 0 to 7."]
    for name in dict.fromkeys(row[3] for row in rows):
        which, choose = ("Lowest", min) if name == "entropy" else ("Highest", max)
        _, layer, h, _, now = choose((row for row in rows if (row[0], row[3]) == (7, name)), key=lambda row: float(row[-1]))
        (before,) = [row[-1] for row in rows if row[:4] == (0, layer, h, name)]
        said.append(f"{which} {name} at the end: decoder {layer.split('.')[2]}.{h}, {before:.2f} before and {now:.2f} now.")
    return said


def norm_rows() -> Rows:
    """Measure each stream, and the gradient of the loss of the sub-layers above it, which are written out."""
    m: Any = decoder(position="learned")
    sites = recorded(m, "*.resid", "*.resid_mid", "*.resid_post")

    def attend(x: Tensor, block: Any) -> Tensor:
        normed, attn = block.attn_residual.norm(x), block.attn
        q, k, v = (linear(normed).view(1, N, 2, 8).transpose(1, 2) for linear in (attn.q, attn.k, attn.v))
        return x + attn.o((softmax(q, k) @ v).transpose(1, 2).flatten(2))

    def feed_forward(x: Tensor, block: Any) -> Tensor:
        normed, ff = block.ff_residual.norm(x), block.ff
        gate = ff.gate(normed)
        return x + ff.down(gate * gate.sigmoid() * ff.up(normed))

    above, rows = [(each, block) for block in m.decoder.blocks for each in (attend, feed_forward)], []
    names = ["embedding.resid", *(f"decoder.blocks.{i}.{each}" for i in range(2) for each in ("resid_mid", "resid_post"))]
    for number, name in enumerate(names):
        stream = x = sites[name].detach().requires_grad_()
        for sublayer, block in above[number:]:
            x = sublayer(x, block)
        log_p = m.unembedding(m.decoder.norm(x)).log_softmax(-1)[0, range(N - 1), TOKENS[0, 1:]]
        (gradient,) = torch.autograd.grad(-log_p.mean(), stream)
        rows.append(("decoder", name, *(float(each.detach()[0].norm(dim=-1).mean()) for each in (stream, gradient))))
    return rows


def said_of_norms(rows: Rows) -> list[str]:
    first, last = rows[0], rows[-1]
    return [f"{first[2]:.3g} after the embedding, {last[2]:.3g} at the end", f"Gradient: {first[3]:.3g} and {last[3]:.3g}."]


EXPERTS = {"kind": "moe", "n_experts": 4, "top_k": 2}


def expert_rows() -> Rows:
    """Count how often a token has each expert among the two of its largest router scores."""
    router = recorded(decoder(feed_forward=EXPERTS), "*.ff.router")
    rows = []
    for i in range(2):
        scores = router[f"decoder.blocks.{i}.ff.router"].view(-1, 4).tolist()
        chosen = [expert for of_token in scores for expert in sorted(range(4), key=lambda e: -of_token[e])[:2]]
        rows += [(f"decoder.blocks.{i}", expert, chosen.count(expert) / len(chosen)) for expert in range(4)]
    return rows


def said_of_experts(rows: Rows) -> list[str]:
    layer, expert, share = max(rows, key=lambda row: float(row[-1]))
    idle = sum(row[-1] == 0 for row in rows)
    return ["4 experts (columns) in 2 layers (rows)", f"expert {expert} of {layer} with {share:.0%}", f"{idle} experts have no token"]


LENGTH = 10


def position_rows() -> Rows:
    def p(position: int, i: int) -> float:
        angle = position / 10000 ** (2 * (i // 2) / 16)
        return math.cos(angle) if i % 2 else math.sin(angle)

    rows = [("table", i, j, p(i, j)) for i in range(LENGTH) for j in range(16)]
    return rows + [("products", i, j, sum(p(i, d) * p(j, d) for d in range(16))) for i in range(LENGTH) for j in range(LENGTH)]


def position_matrices(rows: Rows) -> list[Matrix]:
    found = [column([row for row in rows if row[0] == name], LENGTH, -1) for name in ("table", "products")]
    return [Matrix(each, -float(each.abs().max()), float(each.abs().max()), DIVERGING) for each in found]


def said_of_positions(rows: Rows) -> list[str]:
    products = column([row for row in rows if row[0] == "products"], LENGTH, LENGTH)
    near, far = float(products.diagonal(1).mean()), float(products[0, -1])
    return ["10 positions (rows) and 16 dimensions (columns)", "dot products", f"neighbors {near:.3g}", f"farthest apart {far:.3g}"]


WORDS = ["the", "red", "house", "cat"]


def embedding_rows() -> Rows:
    """Project on the eigenvectors of the covariance with the largest eigenvalues, whose largest components are positive."""
    run = translator()
    table = run.model.get_parameter("source_embedding.tokens.weight").detach().double()
    x = torch.stack([table[run.tokenizers.source.encode(word)].mean(0) for word in WORDS])
    x = x - x.mean(0)
    directions = torch.linalg.eigh(x.T @ x).eigenvectors[:, [-1, -2]]
    plane = x @ directions
    for axis in range(2):
        if directions[directions[:, axis].abs().argmax(), axis] < 0:
            plane[:, axis] *= -1
    return [(word, *plane[i].tolist()) for i, word in enumerate(WORDS)]


def said_of_embeddings(rows: Rows) -> list[str]:
    run = translator()
    table = run.model.get_parameter("source_embedding.tokens.weight").detach().double()
    x = torch.stack([table[run.tokenizers.source.encode(str(row[0]))].mean(0) for row in rows])
    share = sum(float(value) ** 2 for row in rows for value in row[1:]) / float((x - x.mean(0)).square().sum())
    return ["4 tokens on the plane of largest variance", f"{share:.0%} of the variance"]


def architecture_rows() -> Rows:
    """List the boxes of a decoder by hand; numbers of parameters are those of its tensors."""
    model = decoder()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def row(name: str, part: str, shape: str, n_blocks: int = 1) -> tuple[Any, ...]:
        pattern = re.escape(name).replace(r"\.blocks\.", r"\.blocks\.\d+\.") + r"\."
        total = sum(size for each, size in sizes.items() if re.match(pattern, each))
        return ("decoder", name, part, shape, n_blocks, total // n_blocks, total)

    up, down = (tuple(model.get_parameter(f"decoder.blocks.0.ff.{each}.weight").shape) for each in ("up", "down"))
    table = tuple(model.get_parameter("embedding.tokens.weight").shape)
    return [
        row("embedding", "Embedding", f"{table[0]} x {table[1]}"),
        row("decoder.blocks.attn_residual.norm", "RmsNorm", "", 2),
        row("decoder.blocks.attn", "Self-attention", "2 heads of width 8", 2),
        row("decoder.blocks.ff_residual.norm", "RmsNorm", "", 2),
        row("decoder.blocks.ff", "Feed-forward", f"{up[1]} -> {up[0]} -> {down[0]}", 2),
        row("decoder.norm", "Final RmsNorm", ""),
        row("unembedding", "Output", f"{table[1]} -> {table[0]}"),
    ]


def said_of_architecture(rows: Rows) -> list[str]:
    total = sum(parameter.numel() for parameter in decoder().parameters())
    return ["decoder of 2 blocks", f"{total:,} parameters", *(f"{row[2]} {row[3]}".strip() for row in rows)]


def no_matrix(rows: Rows) -> list[Matrix]:
    """Of lines, bars, points and boxes."""
    return []


def one(*shape: int) -> Callable[[Rows], list[Matrix]]:
    """Return the function for one matrix, whose colors begin at 0 and end at its largest number."""
    return lambda rows: [Matrix(table := column(rows, *shape), 0.0, float(table.max()))]


CASES: dict[str, Case] = {
    "heads": Case(lambda: transom.plot("heads", decoder(), TOKENS), head_rows, head_matrices, said_of_heads),
    "head": Case(
        lambda: transom.plot("head", decoder(), TOKENS, block=1, head=1),
        lambda: [row for row in head_rows() if row[:2] == (1, 1)],
        one(N, N),
        said_of_head,
    ),
    "alignment": Case(
        lambda: transom.plot("alignment", translator(), SOURCE, target=TARGET, layer=1), alignment_rows, one(4, 4), said_of_alignment
    ),
    "probabilities": Case(
        lambda: transom.plot("probabilities", decoder(), TOKENS, position=2, temperatures=[0.5, 1.0, 3.0], top=5),
        probability_rows,
        no_matrix,
        said_of_probabilities,
    ),
    "lens": Case(
        lambda: transom.plot("lens", decoder(), TOKENS),
        lens_rows,
        lambda rows: [Matrix(column(rows, 3, N, at=4), 0.0, 1.0)],
        said_of_lens,
    ),
    "rollout": Case(lambda: transom.plot("rollout", decoder(), TOKENS), rollout_rows, one(N, N), said_of_rollout),
    "rollout of an image": Case(lambda: transom.plot("rollout", *vision_transformer()), patch_rows, patch_matrices, said_of_patches),
    "similarity": Case(
        lambda: transom.plot("similarity", decoder(), TOKENS),
        similarity_rows,
        lambda rows: [Matrix(column(rows, 4, 4), 0.0, 1.0)],
        said_of_similarity,
    ),
    "formation": Case(lambda: transom.plot("formation", formed(), TOKENS), formation_rows, no_matrix, said_of_formation),
    "norms": Case(lambda: transom.plot("norms", decoder(position="learned"), TOKENS), norm_rows, no_matrix, said_of_norms),
    "experts": Case(lambda: transom.plot("experts", decoder(feed_forward=EXPERTS), TOKENS), expert_rows, one(2, 4), said_of_experts),
    "positions": Case(
        lambda: transom.plot("positions", decoder(position="sinusoidal"), length=LENGTH),
        position_rows,
        position_matrices,
        said_of_positions,
    ),
    "embeddings": Case(lambda: transom.plot("embeddings", translator(), words=WORDS), embedding_rows, no_matrix, said_of_embeddings),
    "architecture": Case(lambda: transom.plot("architecture", decoder()), architecture_rows, no_matrix, said_of_architecture),
}
"""A picture of each kind; a second one of a kind has more words after the kind."""
