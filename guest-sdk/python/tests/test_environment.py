"""Tests of environments: how a class is read, and an episode of it."""

import types
import unittest
from dataclasses import dataclass
from typing import Any, TypedDict

from rollout_sdk import Environment, EnvironmentConfig, Invalid, NotAPlugin, Split, Turn, tool
from rollout_sdk import _discover, _episode
from rollout_sdk.testing import play


@dataclass
class Push:
    """An action."""

    by: int = 1


@dataclass
class Shown:
    total: int


class Config(EnvironmentConfig):
    begin: int = 0


class Counter(Environment[Config]):
    """Counts.

    Args:
        ignored: Not part of the description.
    """

    version = "2"

    def reset(self, task: dict[str, Any], seed: int | None = None) -> Turn[Shown]:
        assert self.config is not None
        self.total = self.config.begin + task.get("begin", 0) + (seed or 0)
        return Turn(Shown(self.total))

    def step(self, action: Push) -> Turn[Shown]:
        self.total += action.by
        return Turn(Shown(self.total), reward=0.5, metadata={"by": action.by})

    def double(self) -> int:
        """Doubles the total."""
        self.total *= 2
        return self.total

    async def stop(self, reason: str, times: int = 1) -> Turn[str]:
        """Ends the episode.

        Args:
            reason: Why.
        """
        return Turn(reason * times, reward=1, done=True)

    def state(self) -> Shown:
        return Shown(self.total)

    def _hidden(self) -> None:
        pass

    @classmethod
    def splits(cls) -> list[Split]:
        return [Split("train", 2), Split("hard", 1, kind="test")]

    @classmethod
    def task(cls, split: str, index: int) -> dict[str, int]:
        return {"begin": index}


class Reading(unittest.TestCase):
    def test_hints_and_docstrings_make_the_description(self) -> None:
        described = _episode.read(Counter).description()

        self.assertEqual((described["name"], described["description"], described["version"]), ("Counter", "Counts.", "2"))
        self.assertEqual(described["action"]["properties"], {"by": {"type": "integer", "default": 1}})
        self.assertEqual(described["action"]["additionalProperties"], False)
        self.assertEqual((described["observation"]["title"], described["state"]["title"]), ("Shown", "Shown"))
        functions = {each["function"]["name"]: each["function"] for each in described["tools"]}
        self.assertEqual(list(functions), ["double", "stop"])
        self.assertEqual(functions["double"]["parameters"], {"type": "object", "properties": {}})
        stop = functions["stop"]["parameters"]
        self.assertEqual(stop["properties"]["reason"], {"type": "string", "description": "Why."})
        self.assertEqual((stop["required"], functions["stop"]["description"]), (["reason"], "Ends the episode."))
        self.assertEqual([(each["name"], each["kind"], each["tasks"]) for each in described["splits"]],
                         [("train", "train", 2), ("hard", "test", 1)])

    def test_a_module_has_an_environment_and_its_configuration(self) -> None:
        module: Any = types.ModuleType("counts")
        module.Environment, module.Counter = Environment, Counter

        found = _discover.discover(module)

        self.assertEqual(found.exports, ["environment", "settings"])

    def test_a_mistake_in_a_class_is_named_with_its_place(self) -> None:
        class Acts(Environment[Any]):
            def reset(self, task: dict[str, Any]) -> str:
                return ""

        def with_members(**members: Any) -> type[Environment[Any]]:
            return type("Acts", (Acts,), members)

        def silent(self: Any) -> None:
            pass

        def hintless(self: Any, number) -> None:  # type: ignore[no-untyped-def]
            """Adds."""

        def several(self: Any, *numbers: int) -> None:
            """Adds."""

        def add(self: Any, number: int) -> None:
            """Adds."""

        def unreadable(self: Any, number: "Nowhere") -> None:  # type: ignore[name-defined] # noqa: F821
            """Adds."""

        def step(self: Any, action: int) -> str:
            return ""

        def reset(self: Any, task: dict[str, Any], level: int) -> str:
            return ""

        for members, text in [
            ({}, "`Acts` cannot be acted in: write public methods, which are its tools, or `def step"),
            ({"silent": silent}, "`Acts.silent` is a tool and has no docstring.*let its name begin with `_`: `_silent`"),
            ({"hintless": hintless}, "`Acts.hintless`: the parameter `number` has no type hint"),
            ({"several": several}, "`Acts.several`: .*no name that the model could use"),
            ({"unreadable": unreadable}, "type hints of `Acts.unreadable` cannot be read: .*Nowhere"),
            ({"add": tool(add)}, "`Acts.add`: every public method is a tool, so remove `@tool`"),
            ({"step": step}, "`Acts.step` takes an action that is no object: give `action` a dataclass"),
            ({"step": add, "reset": reset}, "`Acts.reset` has a parameter `level: int`; it has the task first"),
            ({"add": add, "task": lambda split, index: {}}, "`Acts.task` needs `@classmethod`"),
            ({"add": add, "splits": classmethod(lambda cls: [])}, "`Acts` has splits and no `task`"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(NotAPlugin, text):
                _episode.read(with_members(**members))

    def test_a_class_without_reset_is_named(self) -> None:
        class Resetless(Environment[Any]):
            def add(self, number: int) -> int:
                """Adds."""
                return number

        module: Any = types.ModuleType("acts")
        module.Resetless = Resetless
        with self.assertRaisesRegex(NotAPlugin, "has no environment: `Resetless` lacks reset"):
            _discover.discover(module)

    def test_a_split_with_another_name_needs_a_purpose(self) -> None:
        class Odd(Counter):
            @classmethod
            def splits(cls) -> list[Split]:
                return [Split("hard", 3)]

        with self.assertRaisesRegex(Exception, 'the split \'hard\' needs a kind.*kind="test"'):
            _episode.read(Odd).description()


class Episodes(unittest.TestCase):
    def test_an_episode_keeps_its_state_over_actions_and_tools(self) -> None:
        episode = play(Counter, {"begin": 3}, seed=4, config={"begin": 10})

        stepped = episode.step(by=2)
        doubled = episode.call("double")
        stopped = episode.call("stop", reason="ha", times=2)

        self.assertEqual(episode.first.observation, {"total": 17})
        self.assertEqual((stepped.observation, stepped.reward, stepped.done), ({"total": 19}, 0.5, False))
        self.assertEqual(stepped.metadata, {"by": 2})
        self.assertEqual((doubled.observation, doubled.reward), (38, None))
        self.assertEqual((stopped.observation, stopped.reward, stopped.done), ("haha", 1.0, True))
        self.assertEqual(episode.state(), {"total": 38})

    def test_what_does_not_fit_is_refused_with_its_field(self) -> None:
        episode = play(Counter, {})
        for act, text in [
            (lambda: episode.step(by="x"), "the action: field `by`: 'x' is not a whole number"),
            (lambda: episode.step(to=1), "the action: unknown field `to`, expected `by`"),
            (lambda: episode.call("halve"), "there is no tool 'halve' here; there are: double, stop"),
            (lambda: episode.call("stop"), "the arguments: missing field `reason`"),
        ]:
            with self.subTest(text), self.assertRaisesRegex(Invalid, text):
                act()
        self.assertEqual(episode.state(), {"total": 0})

    def test_an_observation_is_an_object_or_a_text(self) -> None:
        class Told(TypedDict):
            text: str

        class Talks(Environment[Any]):
            """Talks."""

            def reset(self) -> str:
                return "hello"

            def step(self, action: Told) -> Any:
                return 3 if action["text"] == "three" else {"said": action["text"]}

        described = _episode.read(Talks).description()
        self.assertEqual(described["observation"]["required"], ["text"])
        self.assertEqual((described["tools"], described["state"], described["splits"]), ([], None, []))
        episode = play(Talks)
        self.assertEqual(episode.first.observation, {"text": "hello"})
        self.assertEqual(episode.step(text="x").observation, {"said": "x"})
        with self.assertRaisesRegex(Exception, "`Talks.step` returned int as its observation; return a dataclass"):
            episode.step(text="three")
        with self.assertRaisesRegex(Invalid, "there is no task 2 of the split 'train'"):
            Talks.task("train", 2)


if __name__ == "__main__":
    unittest.main()
