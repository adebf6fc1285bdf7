use super::super::columns::Mapping;
use super::*;

fn row(json: &str) -> Vec<(String, Cell)> {
    let columns: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).unwrap();
    let cell = |value| match value {
        serde_json::Value::Null => Cell::Null,
        serde_json::Value::String(text) => Cell::Text(text),
        value => Cell::Json(to_raw_value(&value).unwrap()),
    };
    columns.into_iter().map(|(k, v)| (k, cell(v))).collect()
}

fn described(result: Result<Content, String>) -> String {
    match result {
        Err(what) => format!("error: {what}"),
        Ok(content) => {
            let prompt: Vec<&str> = content.prompt.iter().map(|m| m.get()).collect();
            let metadata = content.metadata.as_ref().map_or("-", |m| m.get());
            format!("{} | {:?} | {metadata}", prompt.join(" "), content.label)
        }
    }
}

fn check(json: &str, expected: &str) {
    let got = described(interpret(row(json), &Options::default(), false));
    assert!(got.contains(expected), "{json}\n got: {got}");
}

fn check_text(json: &str, expected: &str) {
    let got = described(interpret(row(json), &Options::default(), true));
    assert!(got.contains(expected), "{json}\n got: {got}");
}

#[test]
fn prompts_become_messages() {
    check(r#"{"user_prompt":"a\"b"}"#, r#"{"role":"user","content":"a\"b"} | None | -"#);
    check(
        r#"{"System_Prompt":"s"," USER_PROMPT ":"u"}"#,
        r#"{"role":"system","content":"s"} {"role":"user","content":"u"} |"#,
    );
    check(r#"{"system_prompt":"","user_prompt":"u"}"#, r#"{"role":"user","content":"u"} |"#);
    check(r#"{"prompt":"u"}"#, r#"{"role":"user","content":"u"} | None"#);
    check(
        r#"{"prompt":[{"role":"user","content":[1],"x":null}],"system_prompt":"s","user_prompt":null}"#,
        r#"{"role":"system","content":"s"} {"role":"user","content":[1],"x":null} |"#,
    );
    check(r#"{"prompt":"[{\"role\":\"user\"}]"}"#, r#"{"role":"user","content":"[{\"role\":\"user\"}]"}"#);
}

#[test]
fn text_cells_hold_lists_of_messages() {
    check_text(
        r#"{"prompt":" [ {\"role\":  \"user\", \"n\": 1.0}]"}"#,
        r#"{"role":  "user", "n": 1.0} | None | -"#,
    );
    check_text(r#"{"prompt":"[INST] hi"}"#, r#""content":"[INST] hi"}"#);
    check_text(r#"{"prompt":"[1,2] sort"}"#, r#""content":"[1,2] sort"}"#);
    check_text(
        r#"{"prompt":"[{'role': 1}]"}"#,
        "error: `prompt` begins like a list of messages but is not JSON (key must be a string at line 1, column 3",
    );
}

#[test]
fn labels_become_text() {
    let cases = [
        (r#""42""#, r#"Some("42")"#),
        (r#""""#, r#"Some("")"#),
        ("42", r#"Some("42")"#),
        ("-1.50", r#"Some("-1.5")"#),
        ("true", r#"Some("true")"#),
        (r#"["a"]"#, r#"Some("[\"a\"]")"#),
        ("null", "None"),
    ];
    for (value, expected) in cases {
        for name in ["label", "Ground_Truth"] {
            let json = format!(r#"{{"user_prompt":"u","{name}":{value}}}"#);
            check(&json, &format!("| {expected} |"));
        }
    }
    check(r#"{"user_prompt":"u","label":null,"ground_truth":"g"}"#, r#"Some("g")"#);
    check(r#"{"user_prompt":"u","label":"1","ground_truth":1}"#, r#"Some("1")"#);
    check(
        r#"{"user_prompt":"u","label":"1","ground_truth":"2"}"#,
        "error: has both `ground_truth` and `label`, and they differ",
    );
}

#[test]
fn metadata_is_an_object_or_absent() {
    check(r#"{"user_prompt":"u","metadata":{"a":1}}"#, r#"| {"a":1}"#);
    check(r#"{"user_prompt":"u","metadata":"{\"a\": 1}"}"#, r#"| {"a": 1}"#);
    check(r#"{"user_prompt":"u","metadata":" "}"#, "| -");
    check(r#"{"user_prompt":"u","metadata":"null"}"#, "| -");
    check(r#"{"user_prompt":"u","metadata":null}"#, "| -");
    check(r#"{"user_prompt":"u","metadata":[1]}"#, "error: `metadata` is a list; make it an object");
    check(
        r#"{"user_prompt":"u","metadata":"{'a': 1}"}"#,
        "error: `metadata` is text that is not JSON (key must be a string",
    );
}

#[test]
fn a_row_without_a_usable_prompt_is_refused() {
    check(
        r#"{"question":"q","answer":1}"#,
        "error: no `user_prompt` and no `prompt` (columns found: question, answer); name the column of the prompt with `--map prompt=question,label=answer`",
    );
    check("{}", "(columns found: none)");
    check(r#"{"user_prompt":""}"#, "error: `user_prompt` is empty; fill it in");
    check(r#"{"user_prompt":null,"other":1}"#, "error: `user_prompt` is empty");
    check(
        r#"{"Problem":"q"}"#,
        "(columns found: Problem); name the column of the prompt with `--map prompt=Problem`",
    );
    check(r#"{"prompt":""}"#, "error: `prompt` is empty");
    check(r#"{"prompt":[]}"#, "error: `prompt` is empty");
    check(r#"{"prompt":"a","user_prompt":"b"}"#, "error: has both `user_prompt` and `prompt`; keep one");
    check(
        r#"{"user_prompt":"a","User_Prompt":"b"}"#,
        "error: column `user_prompt` exists twice, as `user_prompt` and `User_Prompt`",
    );
    check(
        r#"{"user_prompt":[{"role":"user"}]}"#,
        "error: `user_prompt` is a list; make it text, or give a list of messages as `prompt`",
    );
    check(
        r#"{"prompt":{"role":"user"}}"#,
        "error: `prompt` is an object; make it a list of messages, or text",
    );
    check(
        r#"{"prompt":[{"role":"user"},3]}"#,
        "error: message 1 (counted from 0) of `prompt` is a number, not an object",
    );
    check(r#"{"prompt":[{"content":"c"}]}"#, "missing field `role`");
    check(
        r#"{"prompt":[{"role":1}]}"#,
        "error: message 0 (counted from 0) of `prompt` has no usable role (invalid type: integer",
    );
    check(
        r#"{"system_prompt":"s","prompt":[{"role":"system","content":"t"}]}"#,
        "error: has a `system_prompt`, and `prompt` begins with a system message",
    );
}

/// Returns options with these mappings.
fn mapped(mappings: &[&str]) -> Options {
    let mappings: Vec<Mapping> = mappings.iter().map(|text| text.parse().unwrap()).collect();
    Options { columns: ColumnMap::new(mappings).unwrap(), ..Options::default() }
}

#[test]
fn mapped_columns_are_used_instead_of_the_usual_names() {
    fn check(mappings: &[&str], json: &str, expected: &str) {
        let got = described(interpret(row(json), &mapped(mappings), false));
        assert!(got.contains(expected), "{mappings:?} {json}\n got: {got}");
    }
    let gsm8k = r#"{"question":"How many?","answer":"48/2 = 24.\n#### 72"}"#;
    check(
        &["prompt=question", "label=answer"],
        gsm8k,
        r#"{"role":"user","content":"How many?"} | Some("48/2 = 24.\n#### 72") | -"#,
    );
    check(&["prompt=Question"], gsm8k, r#""content":"How many?"} | None"#);
    // A mapped target is read only from its column; the others have their usual columns.
    check(
        &["prompt=q"],
        r#"{"user_prompt":"old","prompt":"old","q":"new","ground_truth":"g"}"#,
        r#"{"role":"user","content":"new"} | Some("g")"#,
    );
    check(&["label=a"], r#"{"user_prompt":"u","label":"x","ground_truth":"y"}"#, "| None |");
    check(
        &["system_prompt=sys", "prompt=/chat/0/text"],
        r#"{"sys":"s","chat":[{"text":"u"}]}"#,
        r#"{"role":"system","content":"s"} {"role":"user","content":"u"} |"#,
    );
    check(
        &["metadata.id=task_id", "metadata.tests=/meta/tests", "metadata.none=/meta/none"],
        r#"{"prompt":"p","task_id":"HumanEval/0","meta":{"tests":[1.25]},"metadata":{"id":0,"a": {}}}"#,
        r#"| {"a":{},"id":"HumanEval/0","tests":[1.25]}"#,
    );
    check(&["metadata=info"], r#"{"prompt":"p","info":{"a": 1},"metadata":3}"#, r#"| {"a":1}"#);
    check(&["prompt=q"], r#"{"q":""}"#, "error: `q` is empty");
    check(&["prompt=q"], r#"{"p":"u"}"#, "error: no `q`, which --map names as the prompt (columns found: p)");
    check(&["prompt=q"], r#"{"q":7}"#, "error: `q` is a number; make it a list of messages, or text");
    check(&["prompt=q"], r#"{"q":"exact","Q":"other"}"#, r#""content":"exact""#);
    check(&["prompt=q"], r#"{"Q ":"a"," q":"b"}"#, "error: column `q` exists twice");
    check(&["prompt=/q/a"], r#"{"q":"text"}"#, "error: `/q/a` cannot be looked up because `q` is text");
}

#[test]
fn the_default_system_prompt_applies_to_rows_without_one() {
    let options = Options { system_prompt: Some("usual".to_owned()), ..Options::default() };
    for (json, expected) in [
        (r#"{"user_prompt":"u"}"#, r#"{"role":"system","content":"usual"} {"role":"user","content":"u"} |"#),
        (
            r#"{"user_prompt":"u","system_prompt":"own"}"#,
            r#"{"role":"system","content":"own"} {"role":"user""#,
        ),
        (r#"{"prompt":[{"role":"system","content":"own"}]}"#, r#"{"role":"system","content":"own"} | None"#),
    ] {
        let got = described(interpret(row(json), &options, false));
        assert!(got.starts_with(expected), "{json}: {got}");
    }
}

#[test]
fn a_label_may_begin_after_a_mark() {
    let options = Options { label_after: Some("####".to_owned()), ..Options::default() };
    for (json, expected) in [
        (r#"{"user_prompt":"u","label":"a #### b\n#### 72 "}"#, r#"| Some("72") |"#),
        (r#"{"user_prompt":"u"}"#, "| None |"),
        (
            r#"{"user_prompt":"u","label":"72"}"#,
            "error: the label does not contain `####`, the mark of --label-after",
        ),
    ] {
        let got = described(interpret(row(json), &options, false));
        assert!(got.contains(expected), "{json}: {got}");
    }
}
