"""One grammar for all that a request asks of its answers: the form of the text, calls of tools, reasoning
first. Composes; `grammar` compiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from kaminari.engine.call_rules import CallRules
from kaminari.engine.constraints import Grammar
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import RequestError
from kaminari.engine.grammar import GrammarCompiler, Part, form_part, quote
from kaminari.engine.grammar_bounds import check_together
from kaminari.engine.parsing import AnswerSyntax
from kaminari.engine.tools import NamedTool, Tool, ToolUse
from kaminari.model.calls import CallFormat, Parameters, UnspeakableArguments

MAX_CALLS = 128
_ANY_OBJECT = {"type": "object"}
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
    rules = [_start(syntax), _ANY_TEXT]
    parts: list[Part] = []
    spelled: list[CallRules] = []
    if tools and syntax.calls is not None:
        spelled = [_spell(tool, place, forced, syntax.calls) for place, tool in enumerate(tools)]
        check_together([tool.arguments for tool in tools if forced or tool.strict], "tools")
        rules += _call_rules(spelled, syntax.calls, syntax.single_call)
        parts += [part for call in spelled for part in call.parts]
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
        for call in spelled:
            compiler.compile_rules([f"start: {call.name}", *call.rules], call.parts, call.field)
        raise


def _callable_tools(conversation: Conversation) -> tuple[Tool, ...]:
    choice = conversation.tool_choice
    if isinstance(choice, NamedTool):
        return tuple(tool for tool in conversation.tools if tool.name == choice.name)
    return conversation.offered_tools


def _spell(tool: Tool, place: int, forced: bool, calls: CallFormat) -> CallRules:
    field = f"{tool.field}.function.parameters"
    parameters: Parameters = _ANY_OBJECT
    if forced or tool.strict:
        parameters = {**tool.arguments, "type": "object"}
    try:
        return CallRules(f"call_{place}", calls.spell(tool.name, parameters), field)
    except UnspeakableArguments as error:
        raise RequestError(f"{field} cannot be enforced: {error}", field=field) from error


def _call_rules(spelled: Sequence[CallRules], calls: CallFormat, single: bool) -> list[str]:
    """`calls`: nothing but calls; `told_call`: text, and then one call."""
    more = "" if single else f" ({quote(calls.separator)} call){{0,{MAX_CALLS - 1}}}"
    return [
        f"calls: call{more}",
        f"call: {quote(calls.opening)} rest",
        "told_call: told rest",
        f"told[lazy]: TEXT {quote(calls.opening)}",
        f"rest: {' | '.join(call.name for call in spelled)}",
        *(rule for call in spelled for rule in call.rules),
    ]


def _start(syntax: AnswerSyntax) -> str:
    if syntax.think is None:
        return "start: body"
    thought = "thought /\\n{0,2}/ body"
    opened = thought if syntax.thinking else f"({quote(syntax.think.open)} {thought}) | body"
    return f"start: {opened}\nthought[lazy]: TEXT {quote(syntax.think.close)}"
