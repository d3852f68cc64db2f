"""Conversion of conversations to instructions, whose prompts include the previous turns."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transom.config.data import ChatTemplateConfig
from transom.data.text.json_lines import short_json
from transom.data.text.text_io import check_text
from transom.errors import DataError

CONVERSATION_KEYS = ("messages", "conversations", "conversation")
"""Keys under which a conversation may store its list of messages, as in OpenAI's chat format and in ShareGPT's."""

_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "model": "assistant"}


class Turn(NamedTuple):
    """A user's message and the assistant's answer to the message."""

    user: str
    assistant: str


def format_prompt(template: ChatTemplateConfig, system: str, history: Sequence[Turn], user: str) -> str:
    r"""Return the prompt for a user's message, which starts with the system prompt and the previous turns.

    The user's message comes last and has no label such as "User:". Without a system prompt and previous turns, the message is the whole
    prompt.

    Args:
        template: template of the previous turns.
        system: the system prompt, or an empty string.
        history: previous turns of the conversation.
        user: the user's message.

    >>> format_prompt(ChatTemplateConfig(), "Be brief.", [Turn("Hi", "Hello.")], "Who are you?")
    'Be brief.\n\nUser: Hi\nAssistant: Hello.\n\nWho are you?'
    """
    return template.separator.join([*([system] if system else []), *(_format_turn(template, turn) for turn in history), user])


def has_history(template: ChatTemplateConfig, prompt: str) -> bool:
    r"""Return whether a prompt contains a previous turn.

    >>> has_history(ChatTemplateConfig(), "User: Hi\nAssistant: Hello.\n\nWho are you?"), has_history(ChatTemplateConfig(), "Hi")
    (True, False)
    """
    before, _, rest = template.turn.partition("{user}")
    start, between = before.strip(), rest.partition("{assistant}")[0].strip()
    return start in prompt and between in prompt[prompt.index(start) + len(start) :]


def open_turn(template: ChatTemplateConfig, user: str) -> str:
    r"""Return a user's message as the start of a turn, which ends where the answer begins.

    This is the prompt for a model that only continues texts.

    >>> open_turn(ChatTemplateConfig(), "Hi")
    'User: Hi\nAssistant:'
    """
    return template.turn.partition("{assistant}")[0].replace("{user}", user).rstrip(" ")


def end_of_answer(template: ChatTemplateConfig) -> str:
    r"""Return the string at which the generation of an answer stops, for a model that only continues texts.

    The string is the label with which the model would begin the user's next message.

    >>> end_of_answer(ChatTemplateConfig())
    '\nUser:'
    """
    return "\n" + template.turn.partition("{user}")[0].strip()


def _format_turn(template: ChatTemplateConfig, turn: Turn) -> str:
    before, _, rest = template.turn.partition("{user}")
    between, _, after = rest.partition("{assistant}")
    return f"{before}{turn.user}{between}{turn.assistant}{after}"


def conversation_samples(record: Mapping[str, Any], where: str, template: ChatTemplateConfig) -> list[tuple[str, str]]:
    """Return the prompt and the answer of each message of the assistant that answers a user's message.

    Args:
        record: a conversation with a list of messages under one of ``CONVERSATION_KEYS``. Each message has a ``role`` and a ``content``, or
            a ``from`` and a ``value``.
        where: position of the record in its file, for error messages.
        template: template of the previous turns in a prompt.

    Raises:
        DataError: a message has another form, or its role is unknown.
    """
    key = next(key for key in CONVERSATION_KEYS if key in record)
    system, history, user, samples = "", list[Turn](), list[str](), list[tuple[str, str]]()
    for number, message in enumerate(record[key] if isinstance(record[key], list) else [record[key]]):
        role, text = _read_message(message, f"{where}: {key}[{number}]")
        if role == "system":
            system = text
        elif role == "user":
            user.append(text)
        elif user:
            samples.append((format_prompt(template, system, history, "\n\n".join(user)), text))
            history.append(Turn("\n\n".join(user), text))
            user = []
    return samples


def _read_message(message: Any, where: str) -> tuple[str, str]:
    if isinstance(message, dict):
        role, text = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if isinstance(role, str) and role.casefold() in _ROLES and isinstance(text, str):
            return _ROLES[role.casefold()], check_text(text, where)
    raise DataError(
        f"{where}: expected a message with a role (system, user or assistant) and its text as content, found {short_json(message)};"
        " correct or remove the conversation"
    )
