"""``transom lens``: what the numbers inside a model say about its input."""

import typer

from transom.cli import lens_attention

EXAMPLES = """
transom lens rollout runs/en-de "A man sleeps."
transom lens flow runs/gpt "To be, or not" --position 3
"""

app = typer.Typer(add_completion=False, help="Each lens answers one question about one input.")
app.command("rollout", epilog=lens_attention.ROLLOUT_EXAMPLES)(lens_attention.rollout)
app.command("flow", epilog=lens_attention.FLOW_EXAMPLES)(lens_attention.flow)
