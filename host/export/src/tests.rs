//! Rows of documents in the host's format, and rows read back from files.

use std::fmt::Write as _;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use crate::columns::{COLUMNS, Cell};
use crate::parquet_file::ParquetFile;
use crate::{Format, Output, Row, jsonl};

/// Returns a trajectory with these steps and observed calls.
fn document(steps: &str, observed: &str, more: &str) -> String {
    format!(
        r#"{{"schema_version":"ATIF-v1.8","session_id":"r1","trajectory_id":"r1",
        "agent":{{"name":"rollout-host","version":"0.1.0","model_name":"m"}},
        "steps":[{steps}],"final_metrics":{{"total_steps":1}},
        "extra":{{"osmosis":{{"rollout_id":"r1","label":"5","reward":0.1,"sample_metrics":{{"a":1e-3}}}},
        "rollout_host":{{"attempt":1,"plugin_digest":"p","outcome":{{"outcome":"scored","reward":0.1}},
        "sample_id":"main","withdrawn":false,"observed":[{observed}]{more}}}}}}}"#
    )
}

/// Returns an answered call whose reply is the message at `reply_at`.
fn exchange(new: &str, rest: &str, reply: &str, reply_at: Option<usize>) -> String {
    let reply_at = reply_at.map_or_else(String::new, |at| format!(r#","reply_at":{at}"#));
    format!(
        r#"{{"sample_id":"main","request":{{"messages_repeated":0,"messages_new":[{new}],"rest":{rest}}},"attempts":1,"reply":{reply}{reply_at}}}"#
    )
}

/// Returns the JSON values of these columns in a document's row, one per line.
fn columns(document: &str, names: &[&str]) -> String {
    let row = Row::parse(document).unwrap_or_else(|error| panic!("{error}\n{document}"));
    let mut line = Vec::new();
    jsonl::write(&row.cells(), &mut line).unwrap();
    let mut text = String::new();
    let read = rollout_wire::stream::members(
        std::str::from_utf8(&line).unwrap().trim_end(),
        |name, value: &serde_json::value::RawValue| {
            if names.contains(&&*name) {
                writeln!(text, "{name}={}", value.get()).unwrap();
            }
            Ok::<(), String>(())
        },
    );
    assert!(read.is_ok());
    text
}

const QUESTION: &str = r#"{"role":"user","content":"q","name":"ann"}"#;
const CALL: &str = r#"{"role":"assistant","content":null,"refusal":null,"reasoning":"think","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}"#;
const RESULT: &str = r#"{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"42"}]}"#;

/// Returns a trajectory of two turns with a tool call between them, whose tokens align.
fn two_turns() -> String {
    let steps = r#"{"step_id":1,"source":"user","message":"q"},
        {"step_id":2,"source":"agent","message":"","reasoning_content":"think","tool_calls":[{"tool_call_id":"c1","function_name":"f","arguments":{"x": 1}}],
         "observation":{"results":[{"source_call_id":"c1","content":"42"}]},"llm_call_count":1},
        {"step_id":3,"source":"agent","message":"done","llm_call_count":1}"#;
    let first = format!(
        r#"{{"model":"served","prompt_token_ids":[1,2],"choices":[{{"message":{CALL},"finish_reason":"tool_calls","token_ids":[3],"logprobs":{{"content":[{{"token":"a","logprob":-0.1}}]}}}}],"usage":{{"prompt_tokens":2,"completion_tokens":1}}}}"#
    );
    let second = r#"{"prompt_token_ids":[1,2,3,4],"choices":[{"message":{"role":"assistant","content":"done"},"finish_reason":"stop","token_ids":[5,6],"logprobs":{"content":[{"logprob":-0.2},{"logprob":-0.30000000000000004}]}}]}"#;
    let tools = r#"{"model":"m","tools":[{"type":"function","function":{"name":"f"}}]}"#;
    let observed = [
        exchange(QUESTION, tools, &first, Some(1)),
        exchange(&format!("{CALL},{RESULT}"), r#"{"model":"m"}"#, second, Some(3)),
    ];
    document(
        steps,
        &observed.join(","),
        r#","fork_of":{"rollout_id":"r0","turn":2},
        "refused_uses":{"process":{"count":3,"first":"g.py:8"},"file":{"count":1,"first":""}}"#,
    )
}

#[test]
fn a_row_has_the_observed_conversation_and_its_tokens_as_one_sequence() {
    let all: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let message = r#"{"role":"user","content":"q","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":"ann","raw":null}"#;
    let expected = [
        r#"rollout_id="r1""#,
        r#"sample_id="main""#,
        "attempt=1",
        r#"parent_rollout_id="r0""#,
        "parent_turn=2",
        r#"plugin_digest="p""#,
        "grader_digest=null",
        r#"model="m""#,
        r#"outcome="scored""#,
        "failure_stage=null",
        "failure_kind=null",
        "failure_fault=null",
        "failure_reason=null",
        "reward=0.1",
        "withdrawn=false",
        r#"refused_uses=[{"kind":"process","count":3,"first":"g.py:8"},{"kind":"file","count":1,"first":""}]"#,
        r#"metrics=[{"name":"a","value":0.001}]"#,
        r#"label="5""#,
        "metadata=null",
        r#"tools="[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]""#,
        &format!("prompt=[{message}]"),
        &format!(
            "messages=[{message},{},{},{}]",
            r#"{"role":"assistant","content":null,"reasoning_content":"think","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}],"tool_call_id":null,"name":null,"raw":null}"#,
            r#"{"role":"tool","content":"42","reasoning_content":null,"tool_calls":null,"tool_call_id":"c1","name":null,"raw":"{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":[{\"type\":\"text\",\"text\":\"42\"}]}"}"#,
            r#"{"role":"assistant","content":"done","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null,"raw":null}"#,
        ),
        "mask=[0,1,0,1]",
        r#"turns=[{"request":0,"message":1,"model":"served","finish_reason":"tool_calls","prompt_tokens":2,"completion_tokens":1,"prompt_token_ids":[1,2],"completion_token_ids":[3],"logprobs":[-0.1]},{"request":1,"message":3,"model":null,"finish_reason":"stop","prompt_tokens":null,"completion_tokens":null,"prompt_token_ids":[1,2,3,4],"completion_token_ids":[5,6],"logprobs":[-0.2,-0.30000000000000004]}]"#,
        "input_ids=[1,2,3,4,5,6]",
        "assistant_masks=[0,0,1,0,1,1]",
        "logprobs=[0.0,0.0,-0.1,0.0,-0.2,-0.30000000000000004]",
        "tokens_missing=null",
    ];
    assert_eq!(columns(&two_turns(), &all).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn only_messages_that_are_replies_are_marked() {
    let reply =
        |text: &str| format!(r#"{{"choices":[{{"message":{{"role":"assistant","content":"{text}"}}}}]}}"#);
    let step = |source: &str, text: &str| {
        format!(r#"{{"step_id":1,"source":"{source}","message":"{text}","llm_call_count":1}}"#)
    };
    let steps = [step("user", "q"), step("agent", "4"), step("user", "q"), step("agent", "4")];
    let check = |observed: &[String], mask: &str| {
        let got = columns(&document(&steps.join(","), &observed.join(","), ""), &["mask"]);
        assert_eq!(got.trim_end(), format!("mask={mask}"));
    };
    let user = r#"{"role":"user","content":"q"}"#;
    check(&[exchange(user, "{}", &reply("4"), None)], "[0,0,0,0]");
    check(&[exchange(user, "{}", &reply("4"), Some(3))], "[0,0,0,1]");
    check(
        &[exchange(user, "{}", &reply("4"), Some(1)), exchange(user, "{}", &reply("4"), Some(3))],
        "[0,1,0,1]",
    );
    // A call that failed has no reply.
    let failed =
        r#"{"request":{"messages_repeated":0,"messages_new":[],"rest":{}},"error":"gone"}"#.to_owned();
    check(&[failed, exchange("", "{}", "null", None)], "[0,0,0,0]");
}

#[test]
fn missing_tokens_of_the_server_are_replaced_by_reported_ones() {
    let steps = r#"{"step_id":1,"source":"user","message":"q"},{"step_id":2,"source":"agent","message":"a",
        "metrics":{"prompt_token_ids":[1],"completion_token_ids":[2],"logprobs":[-1.5]},"llm_call_count":1}"#;
    let with = |ids: &str| {
        let reply = format!(r#"{{"choices":[{{"message":{{"role":"assistant","content":"a"}}{ids}}}]}}"#);
        let observed = exchange(QUESTION, "{}", &reply, Some(1));
        columns(&document(steps, &observed, ""), &["input_ids", "logprobs"])
    };
    assert_eq!(with(""), "input_ids=[1,2]\nlogprobs=[0.0,-1.5]\n");
    assert_eq!(with(r#","token_ids":[7]"#), "input_ids=[1,7]\nlogprobs=[0.0,-1.5]\n");
}

#[test]
fn a_row_with_misaligned_turns_has_the_turns_but_no_sequence() {
    let again = two_turns().replace("\"prompt_token_ids\":[1,2,3,4]", "\"prompt_token_ids\":[1,2,9,4]");
    let got = columns(&again, &["input_ids", "assistant_masks", "logprobs", "tokens_missing"]);
    let why = "request 1: its prompt does not begin with the 3 tokens before it, from token 2 on";
    assert_eq!(
        got,
        format!("input_ids=null\nassistant_masks=null\nlogprobs=null\ntokens_missing=\"{why}\"\n")
    );
    assert!(columns(&again, &["turns"]).contains("[1,2,9,4]"));
}

#[test]
fn a_rollout_that_ended_early_has_a_row_with_the_reason() {
    let failed =
        r#"{"outcome":"unscored","stage":"workflow","kind":"timeout","fault":"plugin","reason":"too long"}"#;
    let json = document(r#"{"step_id":1,"source":"system","message":""}"#, "", "")
        .replace(r#"{"outcome":"scored","reward":0.1}"#, failed)
        .replace(r#","reward":0.1,"#, ",");
    let names = [
        "outcome",
        "failure_stage",
        "failure_kind",
        "failure_fault",
        "failure_reason",
        "reward",
        "prompt",
        "messages",
        "tokens_missing",
    ];
    let expected = "outcome=\"unscored\"\nfailure_stage=\"workflow\"\nfailure_kind=\"timeout\"\nfailure_fault=\"plugin\"\n\
        failure_reason=\"too long\"\nreward=null\nprompt=null\nmessages=[]\n\
        tokens_missing=\"no message of the conversation is known to be the model's\"\n";
    assert_eq!(columns(&json, &names), expected);
}

#[test]
fn an_invalid_trajectory_is_refused_with_the_reason() {
    let check = |json: &str, reason: &str| {
        let error = Row::parse(json).err().expect("the document is invalid").to_string();
        assert!(error.contains(reason), "{error}");
    };
    check("", "not a trajectory of this host: EOF");
    check("{}", "not a trajectory of this host: missing field `session_id`");
    check(r#"{"session_id":"r","agent":{},"steps":[],"extra":{}}"#, "`extra.rollout_host` is missing");
    check(&document("7", "", ""), "`steps`: invalid type");
    check(&document("", "7", ""), "`extra.rollout_host.observed`: invalid type");
    let reply = exchange("", "{}", r#"{"choices":[]}"#, Some(2));
    check(
        &document("", &reply, ""),
        "`extra.rollout_host.observed[0].reply_at`: there are 0 messages, and it is 2",
    );
    check(&document("", "", r#","fork_of":{"turn":1}"#), "`extra.rollout_host`: missing field `rollout_id`");
    check(&document("", "", "").replace("1e-3", "\"x\""), "the metric 'a' is not a number");
}

/// Renders a value that was read from a file, with the exact bits of doubles.
fn read_back(field: &Field) -> String {
    match field {
        Field::Null => "null".to_owned(),
        Field::Bool(value) => value.to_string(),
        Field::Long(value) => value.to_string(),
        Field::Double(value) => format!("{:016x}", value.to_bits()),
        Field::Str(text) => format!("{text:?}"),
        Field::Group(row) => {
            let members = row.get_column_iter().map(|(name, field)| format!("{name}:{}", read_back(field)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Field::ListInternal(list) => {
            format!("[{}]", list.elements().iter().map(read_back).collect::<Vec<_>>().join(","))
        }
        field => panic!("{field:?}"),
    }
}

/// Renders a written value in the same way.
fn written(cell: &Cell<'_>, kind: crate::Kind) -> String {
    use crate::Kind;
    let list = |parts: Vec<String>| format!("[{}]", parts.join(","));
    match (cell, kind) {
        (Cell::Bool(value), _) => value.to_string(),
        (Cell::Int(value), _) => value.to_string(),
        (Cell::Double(value), _) => format!("{:016x}", value.to_bits()),
        (Cell::Text(text), _) => format!("{text:?}"),
        (Cell::Ints(values), _) => list(values.iter().map(ToString::to_string).collect()),
        (Cell::Doubles(values), _) => {
            list(values.iter().map(|value| format!("{:016x}", value.to_bits())).collect())
        }
        (Cell::List(cells), Kind::List(of)) => list(cells.iter().map(|cell| written(cell, *of)).collect()),
        (Cell::Struct(cells), Kind::Struct(members)) => {
            let members = members.iter().zip(cells);
            let members =
                members.map(|(member, cell)| format!("{}:{}", member.name, written(cell, member.kind)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        _ => "null".to_owned(),
    }
}

#[test]
fn a_parquet_file_returns_the_same_rows_with_any_size_of_groups() {
    let documents = [
        two_turns(),
        document(r#"{"step_id":1,"source":"system","message":""}"#, "", ""),
        document(r#"{"step_id":1,"source":"user","message":"ü\n"}"#, "", ""),
        two_turns().replace("-0.2", "-5e-324"),
    ];
    let rows: Vec<Row<'_>> = documents.iter().map(|document| Row::parse(document).unwrap()).collect();
    for (bytes, groups) in [(1, 8), (3000, 3), (usize::MAX, 1)] {
        let mut file = ParquetFile::with_row_group_bytes(Vec::new(), bytes).unwrap();
        let again = || rows.iter().chain(&rows);
        again().for_each(|row| file.push(&row.cells()).unwrap());
        let file = SerializedFileReader::new(parquet_bytes(file.finish().unwrap())).unwrap();
        assert_eq!(file.num_row_groups(), groups);
        let read: Vec<String> = file
            .get_row_iter(None)
            .unwrap()
            .map(|row| {
                let columns = row.unwrap().into_columns();
                columns.iter().map(|(name, field)| format!("{name}={}\n", read_back(field))).collect()
            })
            .collect();
        let expected: Vec<String> = again()
            .map(|row| {
                let cells = row.cells();
                let cells = COLUMNS.iter().zip(&cells);
                cells
                    .map(|(column, cell)| format!("{}={}\n", column.name, written(cell, column.kind)))
                    .collect()
            })
            .collect();
        assert_eq!(read, expected);
    }
}

fn parquet_bytes(bytes: Vec<u8>) -> impl parquet::file::reader::ChunkReader + 'static {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    file
}

#[test]
fn a_file_appears_only_when_it_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    };
    let document = two_turns();
    let row = Row::parse(&document).unwrap();
    let path = dir.path().join("rows");
    std::fs::write(&path, "before").unwrap();
    for format in [Format::Parquet, Format::JsonLines] {
        let mut output = Output::to_file(&path, format).unwrap();
        output.push(&row, &row.cells()).unwrap();
        assert_eq!(names(), ["rows", "rows.partial"]);
        drop(output);
        assert_eq!((names(), std::fs::read(&path).unwrap()), (vec!["rows".to_owned()], b"before".to_vec()));
    }
    let mut output = Output::to_file(&path, Format::JsonLines).unwrap();
    output.push(&row, &row.cells()).unwrap();
    output.finish().unwrap();
    assert_eq!(names(), ["rows"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    // A folder at the path is an error at the end.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let error = Output::to_file(&path, Format::Parquet).unwrap().finish().unwrap_err();
    assert_eq!(error.to_string(), format!("cannot write {}", path.display()));
    assert_eq!(names(), ["rows"]);
    let none = dir.path().join("none/rows");
    assert_eq!(
        Output::to_file(&none, Format::Parquet).err().unwrap().to_string(),
        format!("cannot create {}.partial", none.display())
    );
}

#[test]
fn a_full_disk_is_an_error() {
    // Every write to this device fails as on a full disk.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for format in [Format::Parquet, Format::JsonLines] {
        let mut output = Output::to_stream(full.try_clone().unwrap(), format).unwrap();
        let document = two_turns();
        let row = Row::parse(&document).unwrap();
        let written = output.push(&row, &row.cells()).and_then(|()| output.finish());
        let error = std::error::Error::source(&written.unwrap_err()).unwrap().to_string();
        assert_eq!(error, "No space left on device (os error 28)");
    }
}

#[test]
fn every_column_is_documented() {
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve/training-rows.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let described: Vec<&str> = guide
        .lines()
        .skip_while(|line| *line != "## Columns")
        .take_while(|line| *line != "## Conditions")
        .filter_map(|line| line.strip_prefix("| `")?.split('|').next())
        .flat_map(|names| names.split(", "))
        .map(|name| name.trim_matches([' ', '`']))
        .collect();
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    assert_eq!(described, names);
}
