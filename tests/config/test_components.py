"""The registry of components: what is registered from outside is validated, explained, listed, built and trained like the package's own."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from tests.size import ROOT
from transom.config.component_docs import TABLES
from transom.config.component_registry import build, implements, register_component
from transom.config.components import LayerNormConfig, MultiHeadAttentionConfig, RmsNormConfig
from transom.config.model import AnyModel, TextTransformerConfig
from transom.config.schema import SLOTS, ComponentConfig, Schema, Slot, allowed_schemas, allowed_types, choices, kinds
from transom.config.task_registry import recipes_by_task
from transom.errors import ConfigError

OUTSIDE = '''
"""Components that are no part of the package."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from transom.checkpoints.tensors import TensorSpec
from transom.config.schema import ComponentConfig
from transom.config.components import MultiHeadAttentionConfig, PositionConfig
from transom.config.component_registry import register_component, implements
from transom.config.rope_scaling import RopeScalingConfig
from transom.config.training import ScheduleConfig
from transom.layers.attention import Attention, attention_weights
from transom.layers.masks.mask_rules import DistanceRule
from transom.layers.norm import Norm
from transom.layers.position_encoding import PositionEncoding
from transom.layers.rope_scaling import RotaryFrequencies, rotary_frequencies


@register_component("norm", "qk_norm")
class MaxNorm(ComponentConfig):
    """gamma * x / max |x|.

    Cost and use: For this test.
    """

    kind: Literal["max"] = "max"
    floor: float = Field(0.001, gt=0, description="least divisor")


@implements(MaxNorm)
class MaxNormLayer(Norm):
    def __init__(self, config, width):
        super().__init__(config, width)
        self.floor, self.weight = config.floor, nn.Parameter(torch.ones(width))

    def forward(self, x, ctx=None):
        return (x / x.abs().amax(-1, keepdim=True).clamp_min(self.floor) * self.weight).to(x.dtype)


@register_component("feed_forward", "expert")
class Bilinear(ComponentConfig):
    """(x W) * (x V), then W_2.

    Cost and use: For this test.
    """

    kind: Literal["bilinear"] = "bilinear"


@implements(Bilinear)
class BilinearLayer(nn.Module):
    def __init__(self, config, d_model, d_ff, dropout):
        super().__init__()
        self.a, self.b, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x, ctx=None):
        return self.down(self.a(x) * self.b(x))


@register_component("attention")
class Nearness(MultiHeadAttentionConfig):
    """softmax(-|q - k|^2 / (2 sqrt(d_k))) V.

    Cost and use: For this test.
    """

    kind: Literal["nearness"] = "nearness"


@implements(Nearness)
class NearnessAttention(Attention):
    def attend(self, q, memory, ctx):
        k, v = memory if ctx.cache is None else ctx.cache.update(memory)
        return self.attention_weights(q, k, ctx).to(v.dtype) @ v

    def attention_weights(self, q, k, ctx):
        s = -torch.cdist(q.float(), k.float()).square() / (2 * q.shape[-1] ** 0.5)
        return attention_weights(s, self.attention_args(ctx))


@register_component("score")
class General(ComponentConfig):
    """S = Q W K^T, W starts as the identity.

    Cost and use: For this test.
    """

    kind: Literal["general"] = "general"


@implements(General)
class GeneralScore(nn.Module):
    def __init__(self, config, d_head):
        super().__init__()
        self.w = nn.Parameter(torch.eye(d_head))

    def forward(self, q, k):
        return q @ self.w.to(q.dtype) @ k.transpose(-2, -1)


@register_component("position")
class Ramp(PositionConfig):
    """One learned direction times the position.

    Cost and use: For this test.
    """

    kind: Literal["ramp"] = "ramp"


@implements(Ramp)
class RampLayer(PositionEncoding):
    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.direction = nn.Parameter(torch.zeros(config.d_model))

    def forward(self, positions):
        return positions[..., None] * self.direction


@register_component("rope_scaling", "stack_rope_scaling")
class Halved(RopeScalingConfig):
    """theta_k / 2.

    Cost and use: For this test.
    """

    kind: Literal["halved"] = "halved"


implements(Halved)(lambda scaling, rotary: RotaryFrequencies(rotary.theta() / 2))


@register_component("pattern", "stack_pattern")
class Past(ComponentConfig):
    """Tokens at a distance.

    Cost and use: For this test.
    """

    kind: Literal["past"] = "past"
    least: int = Field(0, ge=0, description="fewest tokens back")


implements(Past)(lambda pattern, width: DistanceRule(pattern.least))


@register_component("optimizer")
class Sign(ComponentConfig):
    """w <- w - lr sign(g)."""

    kind: Literal["sign"] = "sign"


@implements(Sign)
class SignOptimizer(torch.optim.Optimizer):
    def __init__(self, config, model, parameters, dtype):
        super().__init__(parameters, {"lr": 0.0})

    def state_specs(self, parameter):
        return {"steps": TensorSpec(torch.float32, ())}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["steps"] = state.get("steps", torch.zeros(())) + 1
                    p.sub_(p.grad.sign(), alpha=group["lr"])


@register_component("schedule")
class Linear(ScheduleConfig):
    """A linear fall to zero."""

    kind: Literal["linear"] = "linear"


implements(Linear)(lambda schedule, step, max_steps: 1 - (step - 1) / max_steps)
'''

KNOWN = """
from transom.config.component_docs import component_page
from transom.config.recipe import load_recipe
from transom.config.config_docs import config_page
from transom.errors import ConfigError

mine = ["model.norm=max", "model.norm.floor=0.5", "model.feed_forward=bilinear", "model.position=ramp", "training.optimizer=sign",
        "training.schedule=linear", "training.schedule.warmup_steps=2", "model.attention=nearness", "model.attention.qk_norm=max",
        "model.attention.score=general",
        'model.attention.pattern=["full", {kind = "any", patterns = ["past", "block-local"]}]']
experts = ['model.feed_forward={kind = "moe", expert = "bilinear"}', "data.train.files=a"]
recipe, _ = load_recipe("copy", mine)
assert recipe.model.norm == outside.MaxNorm(floor=0.5) and recipe.model.attention.pattern.patterns[1].patterns[0] == outside.Past()
assert load_recipe("text-bpe", experts)[0].model.feed_forward.expert.kind == "bilinear"
rotary = load_recipe("text-bpe", ['model.position={kind = "rotary", rope_scaling = ["none", "halved"]}', "data.train.files=a"])
(_, plain), (base, halved) = rotary[0].model.position.rotations
frequencies = [outside.rotary_frequencies(each, base, 8, 16).theta for each in (plain, halved)]
assert halved == outside.Halved() and (frequencies[0] == 2 * frequencies[1]).all()

def told(*overrides):
    try:
        load_recipe("copy", overrides)
    except ConfigError as error:
        return str(error)

assert told("model.norm=max", "model.norm.flor=1").endswith("unknown field model.norm.flor; did you mean model.norm.floor?")
assert told("model.norm.floor=1").endswith("unknown field model.norm.floor; this field requires model.norm.kind = 'max'")
assert told("model.norm=max", "model.norm.floor=0").endswith("model.norm.floor: expected a number greater than 0, found 0")
assert "expected one of 'layernorm', 'rmsnorm', 'dyt', 'none', 'batchnorm', 'max', found 'mux'" in told("model.norm=mux")
assert "'inverse-sqrt', 'cosine', 'wsd', 'linear', found" in told("training.schedule=liner")
page = config_page()
assert "## `[model.norm]` of kind `max`" in page and "| `floor` | number, above 0 | `0.001` | least divisor |" in page
assert '`"none"` or `"batchnorm"` or `"max"` |' in page and "## `[training.optimizer]` of kind `sign`" in page
assert "| `max` | gamma * x / max |x|. | For this test. |".replace("|x|", "\\\\|x\\\\|") in component_page()
assert all(f"| `{kind}` |" in component_page() for kind in ("bilinear", "nearness", "general", "ramp", "past", "halved"))
"""

TRAINED = """
import sys
from transom.cli.main import main
from transom.tasks.load import load
from transom.planning.parameters import count_parameters

sets = [f"--set={each}" for each in [*mine, "model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1",
        "model.n_decoder_layers=2", "data.generate.n_train=200", "data.generate.n_valid=20", "data.generate.n_test=20",
        "training.validate_every=4", "training.checkpoint_every=4", "training.average=none", "training.learning_rate=0.001"]]
for more in (["--set=training.max_steps=4"], ["--set=training.max_steps=8", "--resume"]):
    assert main(["train", "copy", "--out", sys.argv[1], "--json", *sets, *more]) == 0
translator = load(sys.argv[1])
model = translator.model
assert count_parameters(model.config).total == sum(p.numel() for p in model.parameters())
kinds = {type(module).__name__ for module in model.modules()}
assert {"MaxNormLayer", "BilinearLayer", "NearnessAttention", "GeneralScore", "RampLayer"} <= kinds, kinds
assert len(translator.translate(["a b"])) == 1
"""


def run(tmp_path: Path, script: str, *arguments: str) -> None:
    (tmp_path / "outside.py").write_text(OUTSIDE)
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:.", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_component_that_is_registered_before_recipes_are_defined_is_known(tmp_path: Path) -> None:
    run(tmp_path, f"import outside\n{KNOWN}")


@pytest.mark.long
def test_a_component_that_is_registered_afterwards_is_known_trains_resumes_and_answers(tmp_path: Path) -> None:
    run(tmp_path, f"import transom.config.recipe\nimport outside\n{KNOWN}{TRAINED}", str(tmp_path / "run"))


def test_every_slot_has_components_and_the_order_of_the_code() -> None:
    assert all(slot.choices for slot in SLOTS.values())
    assert choices("norm")[:2] == (LayerNormConfig, RmsNormConfig)
    assert {slot for table in TABLES for slot in table.slots} <= SLOTS.keys()
    recipes = recipes_by_task().values()  # each registers the models that only it has
    assert set(allowed_schemas(AnyModel)) >= {schema for recipe in recipes for schema in allowed_schemas(recipe.model_fields["model"])}
    assert set(allowed_types(TextTransformerConfig.model_fields["norm"])) == set(choices("norm"))


def test_a_wrong_registration_is_refused() -> None:
    class Unnamed(ComponentConfig):
        """It has no kind."""

    class Taken(ComponentConfig):
        """Its kind is another's."""

        kind: Literal["rmsnorm"] = "rmsnorm"

    class Free(ComponentConfig):
        """Nothing is wrong with it."""

        kind: Literal["free"] = "free"

    for schema, slot, message in (
        (Free, "nrom", "component Free: expected a slot, found 'nrom'; did you mean norm?"),
        (Unnamed, "norm", "component Unnamed: expected a field kind with the name of the component in recipes, found none; add kind"),
        (Taken, "norm", "kind 'rmsnorm' of slot 'qk_norm' is taken by RmsNormConfig; choose another name"),
        (Free, "attention", "component Free: expected a subclass of MultiHeadAttentionConfig for slot 'attention'"),
    ):
        before = {name: slot.choices for name, slot in SLOTS.items()}
        with pytest.raises(ConfigError) as caught:
            register_component("norm" if slot != "norm" else "qk_norm", slot)(schema)
        assert message in str(caught.value)
        assert before == {name: slot.choices for name, slot in SLOTS.items()}, "nothing was registered"
    unbuilt = r"component Free: no builder is registered; decorate a layer with @implements\(Free\)"
    with pytest.raises(ConfigError, match=unbuilt):
        build(Free())
    implements(Free)(dict)
    with pytest.raises(ConfigError, match=r"component Free: expected one builder, found builtins\.dict and builtins\.list"):
        implements(Free)(list)


def test_what_builds_a_component_may_be_imported_when_one_is_first_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = [
        "from transom.config.schema import ComponentConfig",
        "class Late(ComponentConfig):",
        "    IMPLEMENTED_IN = 'late_layer'",
        "    kind: str = 'late'",
    ]
    layer = [
        "from late import Late",
        "from transom.config.component_registry import implements",
        "implements(Late)(lambda late: late.kind)",
    ]
    (tmp_path / "late.py").write_text("\n".join(schema))
    (tmp_path / "late_layer.py").write_text("\n".join(layer))
    monkeypatch.syspath_prepend(tmp_path)
    late = import_module("late").Late()
    assert "late_layer" not in sys.modules and build(late) == "late"


def test_holders_are_rebuilt_however_deep_the_slot_is(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = dict[str, Slot]()
    for module in ("schema", "component_registry"):
        monkeypatch.setattr(f"transom.config.{module}.SLOTS", slots)
    leaves = Annotated[ComponentConfig, Slot("leaf")]

    @register_component("leaf")
    class Leaf(ComponentConfig):
        kind: Literal["leaf"] = "leaf"

    @register_component("leaf")
    class Tree(ComponentConfig):
        kind: Literal["tree"] = "tree"
        of: tuple[leaves, ...] = Field((), strict=False)

    class Wood(Schema):
        best: leaves = Leaf()
        others: tuple[leaves, ...] = Field((), strict=False)

    class Land(Schema):
        wood: Wood = Wood()

    assert TypeAdapter(leaves).validate_python({"kind": "tree", "of": [{"kind": "tree", "of": [{"kind": "leaf"}]}]}) == Tree(
        of=(Tree(of=(Leaf(),)),)
    )
    with pytest.raises(ValidationError):
        Land.model_validate({"wood": {"best": {"kind": "fern"}}})

    @register_component("leaf")
    class Fern(ComponentConfig):
        kind: Literal["fern", "moss"] = "fern"

    assert kinds(Fern) == ("fern", "moss") and choices("leaf") == (Leaf, Tree, Fern)
    deep = Land.model_validate({"wood": {"best": "moss", "others": [{"kind": "tree", "of": [{"kind": "fern"}]}]}})
    assert deep == Land(wood=Wood(best=Fern(kind="moss"), others=(Tree(of=(Fern(),)),)))

    @implements(Fern)
    def grow(fern: Fern, height: int) -> str:
        return fern.kind * height

    assert build(Fern(), 2) == "fernfern"


def test_a_slot_of_one_component_is_that_component() -> None:
    assert allowed_schemas(TextTransformerConfig.model_fields["attention"]) == [MultiHeadAttentionConfig]
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModel).validate_python({"kind": "decoder", "attention": "multi"})
    assert [error["type"] for error in caught.value.errors()] == ["literal_error"]
