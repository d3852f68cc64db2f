"""A row of a map is computed alone, and is that of the whole map."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.serving.runs import INPUTS, serve
from tests.serving.shown import Shown, part_of
from tests.serving.test_explorer import EDITS, array
from transom.errors import ConfigError
from transom.inspection import derive_attention
from transom.inspection.derive_attention import SLICED_MAPS
from transom.serving.explorer import Explorer
from transom.serving.served_model import ServedModel


@pytest.mark.parametrize("why", [None, *EDITS])
@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_a_row_of_a_map_is_computed_alone(shown: Shown, why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole maps of a long text do not fit into memory. Rows are those of the whole map, also under edits."""
    layer, edits = "decoder.blocks.1.attn", [] if why is None else [EDITS[why]]
    given, index = {"text": f"{INPUTS['language']}{why}"}, {"n_heads": 1, "query": 3}
    with transom.edits(shown.run, edits) if edits else nullcontext():
        names = [f"{layer}.{name}" for name in sorted(SLICED_MAPS)]
        trace = transom.trace(shown.run, given["text"], names)[1]
        expected = {name: part_of(trace, name, index) for name in names}
    monkeypatch.setattr("transom.serving.passes.MAX_CERTIFIED", 0)  # as for long texts
    sizes, scores = list[int](), derive_attention.attention_scores
    monkeypatch.setattr(derive_attention, "attention_scores", lambda *given: sizes.append((found := scores(*given)).numel()) or found)
    explorer = shown.server.explorer
    for name in names:
        found = array(explorer.answer("tensor", {"input": given, "name": name, "index": index, "edits": edits}))
        torch.testing.assert_close(found, expected[name].float(), rtol=1e-5, atol=1e-6)
    if not any(edit["kind"] in ("knock-out-key", "unscaled-scores") for edit in edits):
        assert set(sizes) == {expected[f"{layer}.scores"].numel()}, "one row of one head"
    for axis in index:
        with pytest.raises(ConfigError, match=f"index: expected {axis} from 0 to"):
            explorer.answer("tensor", {"input": given, "name": names[0], "index": index | {axis: 9999}})


def check_last_rows(explorer: Explorer, given: dict[str, str], names: list[str]) -> set[int]:
    """Compare the row of the last head and query of each map, read alone, with that of the whole map; return the numbers of queries."""
    n_queries = set[int]()
    for name in names:
        whole = array(explorer.answer("tensor", {"input": given, "name": name}))
        last = {"n_heads": len(whole) - 1, "query": whole.shape[1] - 1}
        row = array(explorer.answer("tensor", {"input": given, "name": name, "index": last}))
        torch.testing.assert_close(row, whole[-1, -1], rtol=1e-5, atol=1e-6)
        n_queries.add(whole.shape[1])
    return n_queries


@pytest.mark.parametrize("shown", ["translator"], indirect=True)
def test_the_last_row_can_be_read_where_the_source_is_longer_than_the_target(shown: Shown) -> None:
    names = [name for name in shown.trace.quantities if name.endswith((".attn.weights", ".cross.weights"))]
    assert len(check_last_rows(shown.server.explorer, {"text": "a b c d e f g h", "target": "h"}, names)) == 2


@pytest.mark.long
def test_the_last_row_can_be_read_where_a_routed_block_has_fewer_tokens(runs: dict[str, Path]) -> None:
    model: Any = ServedModel.load(runs["routed"])
    blocks = model.network.decoder.blocks
    with torch.no_grad():
        for parameter in blocks[1].depth.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(5))
    with serve(model) as server:
        names = [f"decoder.blocks.{i}.attn.weights" for i in range(len(blocks))]
        assert len(check_last_rows(server.explorer, {"text": INPUTS["routed"]}, names)) == 2
