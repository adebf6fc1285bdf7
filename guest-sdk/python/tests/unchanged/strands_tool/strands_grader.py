"""The grader of the Strands workflow."""

from osmosis_ai.rollout import Grader, GraderContext


class TwiceGrader(Grader):
    async def grade(self, ctx: GraderContext):
        text = "".join(block.get("text", "") for block in ctx.sample.messages[-1]["content"])
        ctx.sample.metrics["length"] = len(text)
        ctx.set_reward(1.0 if text.split("####")[-1].strip() == ctx.label else 0.0)
