"""An agent loop with schema classes, and the app that serves it."""

from osmosis_ai.rollout import (
    RolloutAgentLoop,
    RolloutContext,
    RolloutRequest,
    RolloutResult,
    RolloutSettings,
    create_app,
)
from osmosis_ai.rollout.config import RolloutClientSettings
from osmosis_ai.rollout.core.schemas import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)
from osmosis_ai.rollout.tools import create_tool_result, execute_tool_calls, get_tool_call_info, serialize_tool_result

DOUBLE = OpenAIFunctionToolSchema(
    type="function",
    function=OpenAIFunctionSchema(
        name="double",
        description="Double a number.",
        parameters=OpenAIFunctionParametersSchema(
            type="object",
            properties={"number": OpenAIFunctionPropertySchema(type="integer", description="The number.")},
            required=["number"],
        ),
    ),
)


class DoublingLoop(RolloutAgentLoop):
    name = "doubling"

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        return [DOUBLE]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            reply = await ctx.chat(messages)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                break
            messages.extend(await execute_tool_calls(reply.tool_calls, self.execute))
        said = messages[-1].get("content") or ""
        right = said.endswith(str(ctx.request.metadata.get("ground_truth")))
        return ctx.complete(messages, finish_reason="stop", reward=1.0 if right else 0.0)

    async def execute(self, call):
        call_id, name, arguments = get_tool_call_info(call)
        return create_tool_result(call_id, serialize_tool_result(arguments["number"] * 2))


app = create_app(DoublingLoop(), max_concurrent=6, settings=RolloutSettings(client=RolloutClientSettings(max_retries=5)))

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=9000)
