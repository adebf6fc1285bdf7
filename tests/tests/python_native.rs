//! Tests of packages with native code in a component: a project only names them, and unsupported operations raise.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_tests::{Answer, Controller, Ran, Start, TestHost, native_wheels, python_program, rollout_host};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The timeout of a build, which installs packages.
const BUILD: Duration = Duration::from_secs(400);

fn project(name: &str, dependencies: &str, entry: &str) -> TempDir {
    project_with(name, dependencies, "", entry)
}

fn project_with(name: &str, dependencies: &str, settings: &str, entry: &str) -> TempDir {
    let dir = TempDir::new().expect("a temporary directory can be made");
    let about = format!(
        "[project]\nname = \"{name}\"\ndependencies = [{dependencies}]\n[tool.rollout-host]\n{settings}"
    );
    std::fs::write(dir.path().join("pyproject.toml"), about).expect("a file can be written");
    std::fs::write(dir.path().join(format!("{name}.py")), entry).expect("a file can be written");
    dir
}

async fn build(dir: &Path) -> (Ran, PathBuf) {
    let made = dir.join("made.wasm");
    let mut command = rollout_host(["build"]);
    command.arg(dir).arg("-o").arg(&made);
    command
        .arg("--componentize-py")
        .arg(python_program("componentize-py"))
        .arg("--wheels")
        .arg(native_wheels());
    let ran = command.start().ended_within(BUILD).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    (ran, made)
}

/// Runs rollouts of a project; returns the text of the last message and the reward of each.
async fn rolled_out(made: PathBuf, ids: &[&str]) -> Vec<(String, f64)> {
    let controller = Controller::start().await;
    let host = TestHost::of_component(made).start().await;
    let mut found = Vec::new();
    for id in ids {
        let result = host.run(&controller.rollout("Compute.").id(id).label("0")).await;
        let messages = result["sample"]["messages"].as_array().unwrap_or_else(|| panic!("{result:#}"));
        let text = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
        let reward = result["sample"]["reward"].as_f64().unwrap_or_else(|| panic!("{result:#}"));
        found.push((text.to_owned(), reward));
    }
    found
}

const NUMPY: &str = r#"
import numpy as np

from rollout_sdk import AgentWorkflow, Grader, message

WEIGHTS = np.array([[2.0, 1.0], [1.0, 3.0]])


def raised(work):
    try:
        return f"nothing: {work()}"
    except Exception as error:
        return type(error).__name__


LONG = np.arange(9)


def integers():
    """Results with the default integer type, or that of indices, on 64-bit machines."""
    old = np.random.RandomState(7)
    yield from (np.array([1]), np.ones(1, int), np.zeros(1, np.intp), np.array([True]).sum(), np.bincount([1]))
    yield from (*np.nonzero(LONG), np.argmax(LONG), LONG.searchsorted([2]), np.lexsort((LONG, LONG)), np.argpartition(LONG, 2))
    yield from (*np.unravel_index([3], (2, 2)), *np.unique([1], return_index=True, return_counts=True), np.digitize([1], [1]))
    yield from (old.randint(5, size=1), old.poisson(3, size=1), old.binomial(5, 0.5, size=1), old.permutation(3))
    yield from (np.strings.str_len(["a"]), np.strings.find(["ab"], "b"), np.histogram([1])[0], np.zeros(1, np.int8).sum())


def found():
    """Results that numpy's documentation promises, and CPython's numpy gives."""
    with np.errstate(all="ignore"):
        quiet = 1 / np.float64(0)
    return {
        "solve": np.linalg.solve(WEIGHTS, [3.0, 5.0]).round(6).tolist(),
        "eigenvalues": np.linalg.eigvalsh(WEIGHTS).round(6).tolist(),
        "fft": np.abs(np.fft.fft([1, 0, 0, 0])).tolist(),
        "sorted": np.sort(np.array([3, 1, 2])).tolist(),
        "text": np.strings.upper(np.array(["a", "b"])).tolist(),
        "seeded": np.random.default_rng(7).integers(0, 100, 3).tolist(),
        "summed": [int(np.sum([2_000_000_000] * 2)), int((np.arange(100_000) ** 2).max())],
        "indices": [int((np.argsort(-np.arange(100_000)) ** 2).max()), np.arange(5)[np.array([1, 3])].tolist()],
        "beyond": [raised(lambda: LONG[np.array([2**32])]), raised(lambda: LONG.take(np.array([2**32])))],
        "integers": sorted({str(each.dtype) for each in integers()}),
        "quiet": str(quiet),
        "singular": raised(lambda: np.linalg.inv(np.zeros((2, 2)))),
        "indefinite": raised(lambda: np.linalg.cholesky(-WEIGHTS)),
        "not seen": raised(lambda: np.errstate(divide="raise")),
        "nor so": raised(lambda: np.seterr(invalid="raise")),
    }


class Computing(AgentWorkflow):
    async def run(self, ctx):
        ctx.sample.push(message.assistant(f"{np.random.random()} {found()}"))


class Right(Grader):
    async def grade(self, ctx):
        return float(np.mean([1.0, 0.0, 0.5]))
"#;

#[tokio::test]
async fn a_grader_computes_with_numpy_and_invalid_operations_raise() {
    let project = project("computing", "\"numpy\"", NUMPY);
    let (_, made) = build(project.path()).await;

    let both = rolled_out(made, &["one", "two"]).await;

    let expected = "{'solve': [0.8, 1.4], 'eigenvalues': [1.381966, 3.618034], 'fft': [1.0, 1.0, 1.0, 1.0], \
                    'sorted': [1, 2, 3], 'text': ['A', 'B'], 'seeded': [94, 62, 68], \
                    'summed': [4000000000, 9999800001], 'indices': [9999800001, [1, 3]], \
                    'beyond': ['IndexError', 'IndexError'], 'integers': ['int64'], 'quiet': 'inf', \
                    'singular': 'LinAlgError', 'indefinite': 'LinAlgError', 'not seen': 'NotImplementedError', \
                    'nor so': 'NotImplementedError'}";
    for (text, reward) in &both {
        let (_, found) = text.split_once(' ').unwrap_or_default();
        assert_eq!(found, expected);
        assert!((reward - 0.5).abs() < 1e-9, "{reward}");
    }
    // numpy's own generator differs between rollouts, too.
    assert_ne!(both[0].0, both[1].0);
}

const DRAWING: &str = r#"
import json

from draws import draws
from rollout_sdk import AgentWorkflow, Grader, message


class Drawing(AgentWorkflow):
    async def run(self, ctx):
        ctx.sample.push(message.assistant(json.dumps(draws())))


class Right(Grader):
    async def grade(self, ctx):
        return 1.0
"#;

#[tokio::test]
async fn numpys_generators_draw_the_same_numbers_as_elsewhere() {
    let project = project("drawing", "\"numpy\"", DRAWING);
    let module = include_str!("python_native/draws.py");
    std::fs::write(project.path().join("draws.py"), module).expect("a file can be written");
    let (_, made) = build(project.path()).await;

    let found = rolled_out(made, &["one"]).await;

    let expected: Value = serde_json::from_str(include_str!("python_native/draws.json")).expect("JSON");
    let found: Value = serde_json::from_str(&found[0].0).expect("the workflow writes JSON");
    assert_eq!(found, expected);
}

const PYDANTIC: &str = r#"
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator

from rollout_sdk import AgentWorkflow, Grader, message


class Step(BaseModel):
    kind: Literal["add", "stop"]
    by: Annotated[int, Field(ge=0)] = 0


class Answer(BaseModel):
    value: float
    when: date | None = None
    steps: list[Step] = []

    @field_validator("value")
    @classmethod
    def finite(cls, value):
        if value != value:
            raise ValueError("not a number")
        return value


def mistakes(text):
    try:
        Answer.model_validate_json(text)
    except ValidationError as error:
        return [(".".join(map(str, each["loc"])), each["type"]) for each in error.errors()]


class Checking(AgentWorkflow):
    async def run(self, ctx):
        answer = Answer(value="1.5", when="2026-02-03", steps=[{"kind": "add", "by": "2"}])
        ctx.sample.push(message.assistant(str({
            "dumped": answer.model_dump_json(),
            "mistakes": mistakes('{"value": NaN, "when": "soon", "steps": [{"kind": "go", "by": -1}]}'),
            "adapted": TypeAdapter(dict[str, set[int]]).validate_python({"a": ["1", 2, 2]}),
            "required": Answer.model_json_schema()["required"],
        })))


class Valid(Grader):
    async def grade(self, ctx):
        return Answer.model_validate({"value": "0.25"}).value
"#;

#[tokio::test]
async fn a_rollout_validates_its_input_with_pydantic() {
    let project = project("checking", "\"pydantic\"", PYDANTIC);
    let (_, made) = build(project.path()).await;

    let found = rolled_out(made, &["one"]).await;

    let expected = "{'dumped': '{\"value\":1.5,\"when\":\"2026-02-03\",\"steps\":[{\"kind\":\"add\",\"by\":2}]}', \
                    'mistakes': [('value', 'value_error'), ('when', 'date_from_datetime_parsing'), \
                    ('steps.0.kind', 'literal_error'), ('steps.0.by', 'greater_than_equal')], \
                    'adapted': {'a': {1, 2}}, 'required': ['value']}";
    assert_eq!(found, [(expected.to_owned(), 0.25)]);
}

const TEXTS: &str = r#"
import jiter
import jsonschema
import Levenshtein as python_levenshtein
import lxml.etree
import lxml.html
import regex
import tree_sitter_python
import yaml
from rapidfuzz import fuzz, process, utils
from rapidfuzz.distance import Hamming, Levenshtein
from rpds import HashTrieMap
from tree_sitter import Language, Parser

from rollout_sdk import AgentWorkflow, Grader, message


def raised(work):
    try:
        return f"nothing: {work()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]


TEAMS = ["Atlanta Falcons", "New York Jets", "New York Giants"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "$defs": {}}
PARSER = Parser(Language(tree_sitter_python.language()))
COUNTING = lxml.etree.XSLT(lxml.etree.XML("""<x:stylesheet version="1.0" xmlns:x="http://www.w3.org/1999/XSL/Transform">
<x:output method="text"/><x:template match="/"><x:value-of select="count(//b)"/></x:template></x:stylesheet>"""))


def differing():
    # This module is native, and imported only in the rollout.
    from lxml.html import diff

    return diff.htmldiff("<p>a b</p>", "<p>a c</p>")


class Reading(AgentWorkflow):
    async def run(self, ctx):
        ctx.sample.push(message.assistant(str({
            "edits": Levenshtein.editops("kitten", "sitting").as_list(),
            "best": process.extractOne("new york jets", TEAMS, scorer=fuzz.WRatio, processor=utils.default_process),
            "unequal": raised(lambda: Hamming.distance("a", "ab", pad=False)),
            "unequal of many": raised(lambda: process.extract("a", ["ab"], scorer=Hamming.distance,
                                                               scorer_kwargs={"pad": False})).partition(":")[0],
            "no text": raised(lambda: utils.default_process(5)),
            "no part": raised(lambda: Levenshtein.editops("a", "b").remove_subsequence(Levenshtein.editops("c", ""))),
            "native": [yaml.__with_libyaml__, fuzz.ratio.__module__],
            "yaml": yaml.load("a: [1, 2.5, {b: null}]", Loader=yaml.CSafeLoader),
            "not yaml": raised(lambda: yaml.load("a: [", Loader=yaml.CSafeLoader)),
            "dumped": yaml.dump({"a": [1]}, Dumper=yaml.CSafeDumper),
            "partial": jiter.from_json(b'{"a": [1, 2.5, nul', partial_mode=True),
            "not json": raised(lambda: jiter.from_json(b'{"a')),
            "persistent": sorted(HashTrieMap({"a": 1}).insert("b", 2).items()),
            "schema": raised(lambda: jsonschema.validate({"a": "x"}, SCHEMA)),
            "fuzzy": regex.fullmatch(r"(?:kitten){e<=2}", "kittn").fuzzy_counts,
            "named": regex.compile(r"(?P<a>.)(?P<b>.)").groupindex,
            "captured": regex.match(r"(?P<a>.)+", "xyz").capturesdict(),
            "median": [python_levenshtein.median(["ab", "abc", "abd"]), raised(lambda: python_levenshtein.median([1]))],
            "tree": str(PARSER.parse(b"if x:\n    f'{y}'\n").root_node),
            "drawn": raised(lambda: PARSER.print_dot_graphs(1)),
            "xpath": lxml.html.fromstring("<ul><li class=x>one<li>two</ul>").xpath("//li[@class='x']/text()"),
            "xslt": str(COUNTING(lxml.etree.XML("<a><b/><b/></a>"))),
            "not in koi8": lxml.etree.tostring(lxml.etree.XML("<a>\u00e9\u0431</a>"), encoding="koi8-r")[-14:],
            "unclosed": raised(lambda: lxml.etree.XML("<a>")),
            "no file": raised(lambda: lxml.etree.parse("/a.xml"))[:40],
            "differing": differing(),
        })))


class Alike(Grader):
    async def grade(self, ctx):
        return fuzz.ratio("this is a test", "this is a test!") / 100
"#;

#[tokio::test]
async fn texts_are_read_and_compared_by_packages_with_native_code_all_in_one_component() {
    let dependencies = "\"rapidfuzz\", \"pyyaml\", \"jiter\", \"jsonschema\", \"regex\", \"Levenshtein\", \
                        \"tree-sitter\", \"tree-sitter-python\", \"lxml\"";
    let project = project("reading", dependencies, TEXTS);
    let (_, made) = build(project.path()).await;

    let found = rolled_out(made, &["one"]).await;

    let expected = "{'edits': [('replace', 0, 0), ('replace', 4, 4), ('insert', 6, 6)], \
                    'best': ('New York Jets', 100.0, 1), \
                    'unequal': 'ValueError: Sequences are not the same length.', \
                    'unequal of many': 'NotImplementedError', \
                    'no text': 'TypeError: sentence must be a String', \
                    'no part': 'ValueError: subsequence is not a subsequence', \
                    'native': [True, 'rapidfuzz.fuzz_cpp'], 'yaml': {'a': [1, 2.5, {'b': None}]}, \
                    'not yaml': 'ParserError: while parsing a flow node', 'dumped': 'a:\\n- 1\\n', \
                    'partial': {'a': [1, 2.5]}, 'not json': 'ValueError: EOF while parsing a string at line 1 column 3', \
                    'persistent': [('a', 1), ('b', 2)], \
                    'schema': \"ValidationError: 'x' is not of type 'integer'\", 'fuzzy': (1, 0, 1), \
                    'named': {'a': 1, 'b': 2}, 'captured': {'a': ['x', 'y', 'z']}, \
                    'median': ['ab', 'TypeError: Expected string or bytes'], \
                    'tree': '(module (if_statement condition: (identifier) consequence: (block \
                    (expression_statement (string (string_start) (interpolation expression: (identifier)) \
                    (string_end))))))', \
                    'drawn': 'NotImplementedError: print_dot_graphs: a component has no files to write to', \
                    'xpath': ['one'], 'xslt': '2', 'not in koi8': b'<a>&#233;\\xc2</a>', \
                    'unclosed': 'XMLSyntaxError: Premature end of data in tag a line 1, line 1, column 4 (<string>, line 1)', \
                    'no file': \"OSError: Error reading file '/a.xml': fa\", \
                    'differing': '<p>a <ins>c</ins> <del>b</del> </p>'}";
    let (text, reward) = &found[0];
    assert_eq!(text, expected);
    assert!((reward - 28.0 / 29.0).abs() < 1e-9, "{reward}");
}

const PACKING: &str = r#"
import fastuuid
import msgpack
import orjson
import ormsgpack
import tiktoken
import uuid_utils
import xxhash
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from rollout_sdk import AgentWorkflow, Grader, message


def raised(work):
    try:
        return f"nothing: {work()}"
    except Exception as error:
        return type(error).__name__


async def tokenized():
    """Returns tokens by a vocabulary that is created here, and by an awaited call."""
    made = Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(special_tokens=["?"], vocab_size=20, show_progress=False)
    made.train_from_iterator(["low lower lowest"] * 5, trainer)
    return [made.encode("lowest low").tokens, (await made.async_encode("lower")).tokens, made.encode_batch(["wo"])[0].ids]


def found():
    """Returns results of the packages that frameworks for language models depend on."""
    ranks = {bytes([each]): each for each in range(256)} | {b"ab": 256}
    pairs = tiktoken.Encoding("pairs", pat_str=r"\w+|\s", mergeable_ranks=ranks, special_tokens={})
    return {
        "orjson": [orjson.dumps({"a": [1, 2.5, None, 2**53]}), orjson.loads(b'{"a": 1e3}'), raised(lambda: orjson.loads(b"{"))],
        "msgpack": [msgpack.unpackb(msgpack.packb({"a": [1, -1, 2**40, 0.5, b"b"]})), raised(lambda: msgpack.unpackb(b"\xc1"))],
        "ormsgpack": ormsgpack.unpackb(ormsgpack.packb({"a": [1, -1, 2**40, 0.5]})),
        "xxhash": [xxhash.xxh32_hexdigest(b"a"), xxhash.xxh64_hexdigest(b"a"), xxhash.xxh3_128_hexdigest(b"a")],
        "zstandard": zstandard.decompress(zstandard.compress(b"abc" * 100)) == b"abc" * 100,
        "uuid": [str(uuid_utils.uuid5(uuid_utils.NAMESPACE_DNS, "a")), uuid_utils.uuid7().version, fastuuid.uuid4().version],
        "tokens": [pairs.encode("abab a"), pairs.decode([256, 97])],
        "vocabulary": raised(lambda: tiktoken.get_encoding("cl100k_base")),
    }


class Packing(AgentWorkflow):
    async def run(self, ctx):
        ctx.sample.push(message.assistant(str({**found(), "trained": await tokenized()})))


class Same(Grader):
    async def grade(self, ctx):
        return orjson.loads(b"0.5")
"#;

#[tokio::test]
async fn packing_and_hashing_packages_of_frameworks_give_the_same_results_as_elsewhere() {
    let dependencies = "\"orjson\", \"msgpack\", \"ormsgpack\", \"xxhash\", \"zstandard\", \"uuid-utils\", \"tiktoken\", \
         \"fastuuid\", \"tokenizers\"";
    let project = project("packing", dependencies, PACKING);
    let (_, made) = build(project.path()).await;

    let found = rolled_out(made, &["one"]).await;

    let expected = "{'orjson': [b'{\"a\":[1,2.5,null,9007199254740992]}', {'a': 1000.0}, 'JSONDecodeError'], \
                    'msgpack': [{'a': [1, -1, 1099511627776, 0.5, b'b']}, 'FormatError'], 'ormsgpack': {'a': [1, \
                    -1, 1099511627776, 0.5]}, 'xxhash': ['550d7456', 'd24ec4f1a98c6e5b', \
                    'a96faf705af16834e6c632b61e964e1f'], 'zstandard': True, 'uuid': \
                    ['4f3f2898-69e3-5a0d-820a-c4e87987dbce', 7, 4], 'tokens': [[256, 256, 32, 97], 'aba'], \
                    'vocabulary': 'FileNotFoundError', 'trained': \
                    [['low', 'e', 'st', 'Ġlow'], ['low', 'e', 'r'], [7, 3]]}";
    assert_eq!(found, [(expected.to_owned(), 0.5)]);
}

/// Returns the model's answers for the frameworks below: a tool call, and an answer as a pydantic model.
fn answers() -> [Answer; 4] {
    let call = |id: &str, name: &str, arguments: Value| {
        let function = json!({"name": name, "arguments": arguments.to_string()});
        let call = json!({"id": id, "type": "function", "function": function});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
        Answer::Json(json!({"choices": [choice]}).to_string())
    };
    [
        call("c1", "add", json!({"a": 2, "b": 3})),
        call("c2", "add", json!({"a": "no number"})),
        Answer::Say("{\"total\": 5}"),
        Answer::Say("{\"total\": 5}"),
    ]
}

/// Runs a rollout of a project in a published framework. Its sample has the conversation as the model saw it.
async fn check_published(framework: &str, dependency: &str, refusal: &str, entry: &str) {
    let settings = format!("published = [\"{framework}\"]\n");
    let project = project_with("publishing", &format!("\"{dependency}\""), &settings, entry);
    let (_, made) = build(project.path()).await;
    let controller = Controller::start().await;
    let host = TestHost::of_component(made).start().await;
    let answers = answers();
    let calls = answers.len();
    controller.answer_chats(answers);

    let result = host.run(&controller.rollout("Add 2 and 3.").label("5")).await;

    assert_eq!(result["sample"]["reward"], 1.0, "{result:#}");
    let chats = controller.chats();
    assert_eq!(chats.len(), calls, "{result:#}");
    let messages = result["sample"]["messages"].as_array().expect("a sample has messages");
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap_or_default()).collect();
    let turns =
        ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant"];
    assert_eq!(roles, turns, "{result:#}");
    assert_eq!(chats[calls - 1].body["messages"].as_array(), Some(&messages[..8].to_vec()), "{result:#}");
    assert!(messages[3]["content"].to_string().contains('5'), "{result:#}");
    assert!(messages[5]["content"].to_string().contains(refusal), "{result:#}");
    let first = &chats[0].body;
    assert_eq!(first["tools"][0]["function"]["name"], "add", "{first:#}");
    assert_eq!(first["temperature"], 0.5, "{first:#}");
}

const OPENAI_AGENTS: &str = r#"
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from pydantic import BaseModel

from rollout_sdk import AgentWorkflow, Grader
from rollout_sdk.openai_client import HostClient


class Sum(BaseModel):
    total: int


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Solve(AgentWorkflow):
    async def run(self, ctx):
        agent = Agent(
            name="solver",
            instructions="Use the tool.",
            tools=[add],
            output_type=Sum,
            model=OpenAIChatCompletionsModel("host", HostClient(ctx.sample)),
            model_settings=ModelSettings(temperature=0.5),
        )
        result = await Runner.run(agent, ctx.prompt[-1]["content"])
        assert result.final_output == Sum(total=5), result.final_output
        streamed = Runner.run_streamed(agent, [*result.to_input_list(), {"role": "user", "content": "Again."}])
        kinds = [event.type async for event in streamed.stream_events()]
        assert "raw_response_event" in kinds and streamed.final_output == Sum(total=5), (kinds, streamed.final_output)


class Rate(Grader):
    async def grade(self, ctx):
        return float(Sum.model_validate_json(ctx.sample.text).total == int(ctx.label))
"#;

#[tokio::test]
async fn the_published_openai_agents_runs_unchanged_and_calls_the_hosts_model() {
    check_published(
        "openai-agents",
        "openai-agents==0.24.0",
        "An error occurred while running the tool",
        OPENAI_AGENTS,
    )
    .await;
}

const STRANDS: &str = r#"
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel

from rollout_sdk import AgentWorkflow, Grader
from rollout_sdk.openai_client import HostClient


class Sum(BaseModel):
    total: int


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Solve(AgentWorkflow):
    async def run(self, ctx):
        model = OpenAIModel(client=HostClient(ctx.sample), model_id="host", params={"temperature": 0.5})
        agent = Agent(model=model, tools=[add], system_prompt="Use the tool.", callback_handler=None)
        result = await agent.invoke_async(ctx.prompt[-1]["content"])
        assert Sum.model_validate_json(str(result)) == Sum(total=5), str(result)
        pieces = [event["data"] async for event in agent.stream_async("Again.") if "data" in event]
        assert Sum.model_validate_json("".join(pieces)) == Sum(total=5), pieces


class Rate(Grader):
    async def grade(self, ctx):
        return float(Sum.model_validate_json(ctx.sample.text).total == int(ctx.label))
"#;

#[tokio::test]
async fn the_published_strands_runs_unchanged_and_calls_the_hosts_model() {
    check_published("strands-agents", "strands-agents[openai]==1.62.0", "validation error", STRANDS).await;
}

const ANTHROPIC: &str = r#"
import json

from anthropic import AsyncAnthropic
from anthropic.types import Message

from rollout_sdk import AgentWorkflow, Grader
from rollout_sdk.anthropic_client import HostClient

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def result_of(block):
    try:
        content, failed = str(block.input["a"] + block.input["b"]), False
    except Exception as error:
        content, failed = f"the tool failed: {error!r}", True
    return {"type": "tool_result", "tool_use_id": block.id, "content": content, "is_error": failed}


async def solve(client: AsyncAnthropic, question):
    """An agent as it is written for the package."""
    messages = [{"role": "user", "content": question}]
    asks = {"model": "host", "max_tokens": 64, "system": "Use the tool.", "tools": [ADD], "extra_body": {"temperature": 0.5}}
    while True:
        reply = await client.messages.create(messages=messages, **asks)
        assert isinstance(reply, Message), reply
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            break
        messages.append({"role": "user", "content": [result_of(each) for each in reply.content if each.type == "tool_use"]})
    messages.append({"role": "user", "content": "Again."})
    async with client.messages.stream(messages=messages, **asks) as stream:
        texts = [text async for text in stream.text_stream]
        assert "".join(texts) == (await stream.get_final_message()).content[0].text == reply.content[0].text, texts
    return reply.content[0].text


class Solve(AgentWorkflow):
    async def run(self, ctx):
        text = await solve(HostClient(ctx.sample), ctx.prompt[-1]["content"])
        assert json.loads(text) == {"total": 5}, text


class Rate(Grader):
    async def grade(self, ctx):
        return float(json.loads(ctx.sample.text)["total"] == int(ctx.label))
"#;

#[tokio::test]
async fn code_written_for_the_anthropic_package_calls_the_hosts_model() {
    check_published("anthropic", "anthropic==2.13.0", "the tool failed", ANTHROPIC).await;
}
