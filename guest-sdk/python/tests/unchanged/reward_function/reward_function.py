"""A reward function and nothing else."""

from osmosis_ai import osmosis_reward


@osmosis_reward
def same_answer(solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs) -> float:
    """Returns 1 if the text after the marker is the ground truth."""
    return 1.0 if solution_str.split("####")[-1].strip() == ground_truth else 0.0
