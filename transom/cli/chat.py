"""``transom chat``: chat with an instruction-tuned model or a language model."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import typed_lines
from transom.cli.options import InferencePrecisionOption, RunArgument, expand_options
from transom.cli.output import JsonOption, print_note, show_controls
from transom.cli.run_warnings import result_warnings
from transom.cli.sampling import SamplingOptions
from transom.errors import TransomError

if TYPE_CHECKING:
    from transom.config.data import ChatTemplateConfig
    from transom.data.labeled.chat import Turn
    from transom.decoding.predictors.generator import Generator

EXAMPLES = """
transom chat runs/assistant
transom chat runs/assistant --system "Answer in one sentence." --temperature 0.7
transom chat runs/notes --max-new-tokens 60
printf 'Hi\\nWho are you?\\n' | transom chat runs/assistant --json
"""

HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /save FILE saves the conversation, /exit or Ctrl-D ends"

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def chat(
    run: RunArgument,
    *,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="System prompt, which precedes the conversation.")] = "",
    sampling: SamplingOptions,
    precision: InferencePrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Answer each typed or piped line, with the conversation so far as context if the training data contain conversations.

    Messages are formatted by data.chat_template of the run's recipe. If the conversation no longer fits the context window, its oldest
    turns are left out. A model that was not trained on instructions continues the conversation as plain text. Options that are not given
    default to the decoding settings of the run's recipe.

    Lines that begin with / are commands. /help lists these commands.
    """
    with gc_frozen_imports():
        from transom.cli.tables import chat_template
        from transom.data.text.text_io import decode_lines
        from transom.decoding.predictors.generator import Generator
        from transom.tasks.input_profile import read_input_profile
        from transom.tasks.load import load

    generator = load(run, precision, kind=Generator)
    profile = read_input_profile(run)
    conversation = Conversation(generator, chat_template(run), system, sampling.given, profile is None or not profile.single_turn)
    if not conversation.uses_history:
        print_note("the training data of this model have no conversations, so each message is answered without the previous ones")
    for problem in result_warnings(run):
        print_note(f"warning: {problem}")
    if not as_json:
        sampling.note_unused(generator.sampling.temperature)
    is_prompt = sys.stdin.isatty()
    if is_prompt:
        print_note(f"type a message; {HELP}")
    for line in typed_lines() if is_prompt else decode_lines(sys.stdin.buffer, "standard input"):
        try:
            if line.startswith("/"):
                if not _obey(conversation, line):
                    return
            elif line.strip():
                _answer(conversation, line, as_json)
        except TransomError as error:
            if not is_prompt:
                raise
            print_note(f"error: {error}")


class Conversation:
    """Conversation with a model, which keeps the turns so far and answers the next message."""

    def __init__(
        self, generator: "Generator", template: "ChatTemplateConfig", system: str, options: dict[str, Any], uses_history: bool = True
    ) -> None:
        """Start a conversation.

        Args:
            generator: generator of the run.
            template: chat template that formats the turns.
            system: system prompt.
            options: keyword arguments for ``Generator.stream``.
            uses_history: whether the prompt of a message contains the previous turns.
        """
        from transom.data.labeled.chat import end_of_answer

        self.generator, self.template, self.system, self.turns = generator, template, system, list["Turn"]()
        self.uses_history = uses_history
        self.max_tokens, self.n_tokens, self.n_dropped = generator.model.config.max_seq_len, 0, 0
        self._options = {**options, "name": "message"}
        if not generator.instruction_tuned:
            self._options["stop"] = [*(options.get("stop") or ()), end_of_answer(template)]

    def answer(self, message: str) -> Iterator[str]:
        """Yield the answer to a message in pieces, then add the message and its answer to the turns."""
        from transom.data.labeled.chat import Turn

        pieces = list[str]()
        for piece in self.generator.stream(self._prompt(message), **self._options):
            text = piece if pieces else piece.lstrip()
            if text:
                pieces.append(text)
                yield text
        self.turns.append(Turn(message, "".join(pieces).strip()))

    def to_json(self) -> dict[str, Any]:
        """Return the conversation as JSON-serializable messages, in the format that ``transom train instructions`` reads."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.assistant}]
        return {"messages": messages}

    def _prompt(self, message: str) -> str:
        """Return the prompt for a message, with as many of the latest turns as fit the context window beside an answer."""
        from transom.data.labeled.chat import format_prompt, open_turn

        wanted = self._options.get("max_new_tokens") or self.generator.sampling.max_new_tokens
        limit = self.max_tokens - min(wanted, self.max_tokens // 2)
        last = message if self.generator.instruction_tuned else open_turn(self.template, message)
        turns = self.turns if self.uses_history else []
        for n_dropped in range(len(turns) + 1):
            prompt = format_prompt(self.template, self.system, turns[n_dropped:], last)
            n_tokens = len(self.generator.tokenizer.encode(prompt))
            if n_tokens <= limit:
                break
        self.n_tokens, self.n_dropped = n_tokens, n_dropped
        return prompt


def _answer(conversation: Conversation, message: str, as_json: bool) -> None:
    show = show_controls if sys.stdout.isatty() else str
    for piece in conversation.answer(message):
        if not as_json:
            print(show(piece), end="", flush=True)
    counts = {"n_tokens": conversation.n_tokens, "max_tokens": conversation.max_tokens, "n_dropped_turns": conversation.n_dropped}
    if as_json:
        print(json.dumps({**conversation.turns[-1]._asdict(), **counts}, ensure_ascii=False), flush=True)
        return
    print(flush=True)
    dropped = f"; the oldest {conversation.n_dropped:,} turns no longer fit and were left out" if conversation.n_dropped else ""
    print_note(f"[context: {conversation.n_tokens:,} of {conversation.max_tokens:,} tokens{dropped}]")


def _obey(conversation: Conversation, line: str) -> bool:
    """Carry out a line that begins with ``/``, and return whether the conversation continues."""
    from transom.files.atomic_io import write_file

    command, _, argument = line.partition(" ")
    argument = argument.strip()
    match command:
        case "/exit" | "/quit":
            return False
        case "/reset":
            conversation.turns.clear()
            print_note("the conversation is forgotten")
        case "/system":
            conversation.system = argument
            print_note(f"system prompt: {argument or '(none)'}")
        case "/save" if argument:
            write_file(Path(argument).expanduser(), (json.dumps(conversation.to_json(), ensure_ascii=False) + "\n").encode())
            print_note(f"wrote {argument}: {len(conversation.turns):,} turns")
        case "/save":
            print_note("error: expected /save FILE, found no file; give one, such as /save chat.jsonl")
        case "/help":
            print_note(HELP)
        case _:
            print_note(f"error: expected a command, found {command}; {HELP}")
    return True
