"""One grammar for all that a request asks of its answers: the form of the text, calls of tools, reasoning
first. Composes; `grammar` compiles.
"""

from __future__ import annotations

import json

from kaminari.engine.constraints import Grammar
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import RequestError
from kaminari.engine.grammar import GrammarCompiler, Part, form_part, json_part
from kaminari.engine.grammar_bounds import check_together
from kaminari.engine.parsing import AnswerSyntax
from kaminari.engine.tools import NamedTool, Tool, ToolUse
from kaminari.model.calls import CallFormat

MAX_CALLS = 128
_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_TEXT = "TEXT: /(.|\\n)*/"


def answer_grammar(
    conversation: Conversation, syntax: AnswerSyntax, compiler: GrammarCompiler
) -> Grammar | None:
    """Return what the answers must follow, or None where nothing is asked. Raises `RequestError`.

    Arguments are held to their schema where a call is required or the tool is strict. Else the model may
    write anything, unless its text must have a form: then an answer is that form, or calls.
    """
    form, choice = conversation.answer_format, conversation.tool_choice
    forced = isinstance(choice, NamedTool) or choice is ToolUse.REQUIRED
    tools = _callable_tools(conversation)
    if syntax.calls is None or not (forced or form is not None or any(tool.strict for tool in tools)):
        tools = ()
    if not tools and form is None:
        return None
    enforced = [tool.parameters for tool in tools if forced or tool.strict]
    check_together([parameters for parameters in enforced if parameters is not None], "tools")
    parts = [{"name": f"arguments_{index}", **_arguments(tool, forced)} for index, tool in enumerate(tools)]
    rules = [_start(syntax), _ANY_TEXT]
    if tools and syntax.calls is not None:
        rules += _call_rules(tools, syntax.calls, syntax.single_call)
    if forced:
        rules.append("body: calls")
    elif form is not None:
        parts.append({"name": "form", **form_part(form)})
        rules.append("body: @form | calls" if tools else "body: @form")
    else:
        rules.append("body: told_call* TEXT")
    field = "tools" if form is None or forced else form.field
    try:
        return compiler.compile_rules(rules, parts, field)
    except RequestError:
        for tool, part in zip(tools, parts, strict=False):
            rule = f"start: @{part['name']}"
            compiler.compile_rules([rule], [part], f"{tool.field}.function.parameters")
        raise


def _callable_tools(conversation: Conversation) -> tuple[Tool, ...]:
    choice = conversation.tool_choice
    if isinstance(choice, NamedTool):
        return tuple(tool for tool in conversation.tools if tool.name == choice.name)
    return conversation.offered_tools


def _arguments(tool: Tool, forced: bool) -> Part:
    field = f"{tool.field}.function.parameters"
    if not (forced or tool.strict):
        return json_part(_ANY_OBJECT, field)
    if tool.parameters is None:
        return json_part(_NO_ARGUMENTS, field)
    return json_part({**tool.parameters, "type": "object"}, field)


def _call_rules(tools: tuple[Tool, ...], calls: CallFormat, single: bool) -> list[str]:
    """`calls`: nothing but calls; `told_call`: text, and then one call."""
    frames = [calls.frame(tool.name) for tool in tools]
    rest = [
        f"{_quote(frame.before.removeprefix(calls.opening))} @arguments_{index} {_quote(frame.after)}"
        for index, frame in enumerate(frames)
    ]
    more = "" if single else f" ({_quote(calls.separator)} call){{0,{MAX_CALLS - 1}}}"
    return [
        f"calls: call{more}",
        f"call: {_quote(calls.opening)} rest",
        "told_call: told rest",
        f"told[lazy]: TEXT {_quote(calls.opening)}",
        f"rest: {' | '.join(rest)}",
    ]


def _start(syntax: AnswerSyntax) -> str:
    if syntax.think is None:
        return "start: body"
    thought = "thought /\\n{0,2}/ body"
    opened = thought if syntax.thinking else f"({_quote(syntax.think.open)} {thought}) | body"
    return f"start: {opened}\nthought[lazy]: TEXT {_quote(syntax.think.close)}"


def _quote(text: str) -> str:
    """A string of the grammar's notation, which is JSON's."""
    return json.dumps(text, ensure_ascii=False)
