"""``transom explore``: a local web page that shows every number of a model."""

import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.output import JsonOption, print_note, print_result
from transom.errors import ConfigError

EXAMPLES = """
transom explore runs/en-de
transom explore runs/gpt --port 8400 --no-browser
transom explore runs/gpt --compare runs/gpt/checkpoints/step-500
"""

app = typer.Typer(add_completion=False)


@app.command()
def explore(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a checkpoint in it, such as runs/gpt/checkpoints/step-500.")],
    compare: Annotated[Path | None, typer.Option("--compare", metavar="RUN", help="Another run or checkpoint, to compare with.")] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the server. Default: any that is free.", show_default=False)
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the web browser.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show a model in a web page: type a text, and walk from its tokens through blocks and heads to the probabilities.

    Every cell of a picture is a number of this model. A click on it shows its calculation by hand. Heads can be switched off, residual
    streams patched from another text, and the view saved as one HTML file that works offline. A guided tour explains the steps.

    Only this machine can open the page: the server listens on 127.0.0.1, the address contains a random token, and no other host is
    contacted. Ctrl-C ends it.
    """
    with gc_frozen_imports():
        from transom.serving.explorer import Explorer
        from transom.serving.served_model import ServedModel
        from transom.serving.server import ExploreServer

    models = [ServedModel.load(each) for each in (run, compare) if each is not None]
    with tempfile.TemporaryDirectory(prefix="transom-explore-") as uploads:
        try:
            explorer = Explorer(models, Path(uploads))
            server = ExploreServer(explorer, port)
        except OSError as error:
            raise ConfigError(f"--port: expected a free port, found {port} in use ({error.strerror}); choose another one") from None
        with server:
            print_result({"url": server.url, "port": server.server_port}, as_json, [server.url])
            sys.stdout.flush()
            print_note("the page shows this model until Ctrl-C ends the command; only this machine can open it")
            threading.Thread(target=explorer.warm_up, daemon=True).start()
            if browser:
                webbrowser.open(server.url)
            try:
                server.serve_forever()
            finally:
                explorer.close()
