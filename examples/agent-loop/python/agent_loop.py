"""An agent loop: it reports its tools before it runs, and rates itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_sdk import Message, Tool, answer_after, same_number, tool
from rollout_sdk.agent_loop import (
    RolloutAgentLoop,
    RolloutContext,
    RolloutRequest,
    RolloutResult,
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    now_ms,
    serialize_tool_result,
)


@tool
def calculator(expression: str) -> int:
    """Works out a sum.

    Args:
        expression: Whole numbers with `+` and `-` between them.
    """
    terms = expression.replace("-", "+-").replace(" ", "").split("+")
    return sum(int(term) for term in terms if term)


class Calculator(RolloutAgentLoop):
    name = "calculator"

    def get_tools(self, request: RolloutRequest) -> Sequence[Mapping[str, Any] | Tool[..., Any]]:
        return [calculator]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        finish_reason = "max_turns"
        for turn in range(ctx.request.max_turns):
            ctx.log_event("pre_llm", turn=turn, messages=len(messages))
            reply = await ctx.chat(messages)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                finish_reason = "stop"
                break

            async def execute(call: Mapping[str, Any]) -> Message:
                began = now_ms()
                call_id, _, arguments = get_tool_call_info(call)
                try:
                    result = create_tool_result(call_id, serialize_tool_result(calculator(**arguments)))
                except (TypeError, ValueError) as error:
                    result = create_tool_error_result(call_id, str(error))
                ctx.record_tool_call(now_ms() - began)
                return result

            messages += await execute_tool_calls(reply.tool_calls, execute)
        answer = answer_after(messages[-1].get("content") or "", "####") or ""
        truth = ctx.request.metadata.get("ground_truth")
        reward = None if truth is None else float(same_number(answer, truth))
        return ctx.complete(messages, finish_reason, reward=reward)
