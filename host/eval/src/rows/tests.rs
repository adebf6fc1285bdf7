use std::fs;
use std::sync::Arc;

use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::*;

fn load_bytes(name: &str, bytes: &[u8]) -> Result<DataSet, DataError> {
    load_with(name, bytes, &Options::default())
}

fn load_with(name: &str, bytes: &[u8], options: &Options) -> Result<DataSet, DataError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    load(&path, options)
}

/// Renders one line for each row (index, messages, label, metadata), or the error.
fn described(result: &Result<DataSet, DataError>) -> String {
    let set = match result {
        Ok(set) => set,
        Err(error) => return error.to_string(),
    };
    let mut text = String::new();
    for row in &set.rows {
        let prompt: Vec<&str> = row.prompt.iter().map(|message| message.get()).collect();
        let label = row.label.as_deref().unwrap_or("-");
        let metadata = row.metadata.as_ref().map_or("-", |metadata| metadata.get());
        text += &format!("{} | {} | {label} | {metadata}\n", row.index, prompt.join(" "));
    }
    text
}

fn check(name: &str, content: &str, expected: &str) {
    assert_eq!(described(&load_bytes(name, content.as_bytes())), expected, "{content}");
}

/// Checks the lines of an error after the first one, which names a path.
fn check_problems(name: &str, content: &[u8], expected: &[&str]) {
    let got = described(&load_bytes(name, content));
    let mut lines = got.lines();
    let first = lines.next().unwrap();
    assert!(first.contains(name), "{got}");
    assert!(first.contains(" problem"), "{got}");
    let lines: Vec<&str> = lines.map(str::trim_start).collect();
    assert_eq!(lines.len(), expected.len(), "{got}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\nexpected: {expected}");
    }
}

const ARITHMETIC: &str = r#"{"system_prompt": "Solve the task. Give the final answer after ####.", "user_prompt": "Calculate -( 6775 / 271 ) - 4634.", "ground_truth": "-4659", "metadata": {"id": "basic_arithmetic-0", "source": "basic_arithmetic"}}
{"system_prompt": "Solve the task. Give the final answer after ####.", "user_prompt": "Calculate ( -232 - -438 / 219 ).", "ground_truth": "-230", "metadata": {"id": "basic_arithmetic-1", "source": "basic_arithmetic"}}
"#;

#[test]
fn json_lines_are_rows() {
    check(
        "a.jsonl",
        ARITHMETIC,
        r#"0 | {"role":"system","content":"Solve the task. Give the final answer after ####."} {"role":"user","content":"Calculate -( 6775 / 271 ) - 4634."} | -4659 | {"id": "basic_arithmetic-0", "source": "basic_arithmetic"}
1 | {"role":"system","content":"Solve the task. Give the final answer after ####."} {"role":"user","content":"Calculate ( -232 - -438 / 219 )."} | -230 | {"id": "basic_arithmetic-1", "source": "basic_arithmetic"}
"#,
    );
    check(
        "a.NDJSON",
        "\u{feff}\r\n  {\"user_prompt\":\"é\\n\\u00e9\"}  \r\n\n\t\n{\"prompt\":[ {\"role\" : \"user\",\"n\":1.00, \"n2\":\"\\u00e9\"} ],\"label\":1.50,\"other\":[1]}",
        concat!(
            "0 | {\"role\":\"user\",\"content\":\"é\\né\"} | - | -\n",
            "1 | {\"role\" : \"user\",\"n\":1.00, \"n2\":\"\\u00e9\"} | 1.50 | -\n",
        ),
    );
}

#[test]
fn a_json_list_is_rows() {
    check(
        "a.json",
        "\u{feff}\n[{\"user_prompt\":\"a\"},\n\n {\"prompt\":\"b\",\"label\":true}]\n",
        concat!(
            "0 | {\"role\":\"user\",\"content\":\"a\"} | - | -\n",
            "1 | {\"role\":\"user\",\"content\":\"b\"} | true | -\n",
        ),
    );
    check_problems(
        "a.json",
        b"[{\"user_prompt\":\"a\"},\n\n {\"q\":1},\n 7,\n {\"prompt\":\n [3]}]",
        &[
            "line 3: no `user_prompt` and no `prompt` (columns found: q)",
            "line 4: not an object",
            "line 5: message 0",
        ],
    );
    check_problems(
        "a.json",
        b"[{\"user_prompt\":\"a\"},\n {\"user_prompt\" \"b\"}]",
        &["line 2, column 17: not valid JSON (expected `:`)"],
    );
    check_problems("a.json", b"\n{\"user_prompt\":\"a\"}\n", &["line 2: not a list of rows"]);
    check_problems("a.json", b"[\n\"ab\xff\"]", &["line 2, column 4: not UTF-8"]);
}

#[test]
fn every_malformed_json_line_is_reported() {
    check_problems(
        "a.jsonl",
        b"{\"user_prompt\":\"a\"}\n\n{\"user_prompt\": nope}\n[1]\n{\"question\":1}\n{\"user_prompt\":\"\xff\"}\n{\"user_prompt\":\"a\",\"User_Prompt\":\"b\"}\n{\"user_prompt\":\"\\ud800\"}\n{\"user_prompt\":\"a\"} {}\n",
        &[
            "line 3, column 18: not valid JSON (expected ident)",
            "line 4: not an object",
            "line 5: no `user_prompt` and no `prompt` (columns found: question)",
            "line 6, column 17: not UTF-8",
            "line 7: column `user_prompt` exists twice",
            "line 8, column",
            "line 9, column 21: not valid JSON (trailing characters)",
        ],
    );
}

#[test]
fn the_first_ten_problems_are_described_and_the_rest_are_counted() {
    let rows: String = (0..23).map(|n| format!("{{\"q{n}\":1}}\n")).collect();
    let result = load_bytes("a.jsonl", rows.as_bytes());
    let text = described(&result);
    assert!(text.contains("has 23 problems; correct them"), "{text}");
    assert!(text.ends_with("\n  and 13 more"), "{text}");
    let Err(DataError::Rows { problems, total, .. }) = result else {
        panic!("{text}");
    };
    assert_eq!((problems.len(), total), (PROBLEMS_SHOWN_MAX, 23));
    assert_eq!(problems[9].position, Position::Line(10));
}

#[test]
fn a_problem_of_many_rows_is_described_once() {
    let rows = format!("{}[]\n{}", "{\"q\":1}\n".repeat(12), "{\"q\":1}\n".repeat(8));
    let text = described(&load_bytes("a.jsonl", rows.as_bytes()));
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert!(text.contains("has 21 problems"), "{text}");
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("  line 1 and 19 more: no `user_prompt`"), "{text}");
    assert!(lines[1].starts_with("  line 13: not an object"), "{text}");
}

#[test]
fn csv_records_are_rows() {
    check(
        "a.csv",
        concat!(
            "\u{feff}System_Prompt,user_prompt,ground_truth,metadata,other\r\n",
            "s,\"say \"\"hi\"\",\nplease\",42,\"{\"\"id\"\": 1}\",x\r\n",
            "\r\n",
            ",b,,,\r\n",
        ),
        concat!(
            "0 | {\"role\":\"system\",\"content\":\"s\"} ",
            "{\"role\":\"user\",\"content\":\"say \\\"hi\\\",\\nplease\"} | 42 | {\"id\": 1}\n",
            "1 | {\"role\":\"user\",\"content\":\"b\"} | - | -\n",
        ),
    );
    check(
        "a.csv",
        "prompt,label\n\"[{\"\"role\"\": \"\"user\"\"}]\",a\nplain,b\n",
        "0 | {\"role\": \"user\"} | a | -\n1 | {\"role\":\"user\",\"content\":\"plain\"} | b | -\n",
    );
}

#[test]
fn every_malformed_csv_record_is_reported_with_its_line() {
    for end in ["\n", "\r\n"] {
        let content =
            ["user_prompt,metadata", "\"two", "lines\",", "", "one", "a,b,c", ",{}", "a,[1]", "a,{}"];
        check_problems(
            "a.csv",
            content.join(end).as_bytes(),
            &[
                "line 5: 1 fields where the header has 2",
                "line 6: 3 fields where the header has 2",
                "line 7: `user_prompt` is empty",
                "line 8: `metadata` is a list",
            ],
        );
    }
    check_problems("a.csv", b"user_prompt,label\na,b\na,\xff\n", &["line 3: field 2 is not UTF-8"]);
    check_problems(
        "a.csv",
        b"question,answer\n1,2\n3,4\n",
        &["columns: no `user_prompt` and no `prompt` (columns found: question, answer)"],
    );
}

#[test]
fn a_file_without_rows_is_refused() {
    for (name, content) in [
        ("a.jsonl", "\n \n"),
        ("a.jsonl", ""),
        ("a.json", " []"),
        ("a.json", ""),
        ("a.csv", ""),
        ("a.csv", "user_prompt,label\n"),
    ] {
        let result = load_bytes(name, content.as_bytes());
        assert!(matches!(result, Err(DataError::Empty { .. })), "{name}: {content:?}");
    }
}

#[test]
fn a_file_of_an_unknown_format_is_refused() {
    for name in ["rows.txt", "rows", ".jsonl"] {
        let text = described(&load_bytes(name, b"{}"));
        assert!(text.contains("name it .jsonl, .ndjson, .json, .csv, .tsv, .parquet or .pq, perhaps with .gz, or give --data-format"), "{text}");
    }
    let text = described(&load_bytes("rows.parquet", b"PAR1 is not enough"));
    assert!(text.contains("rows.parquet as Parquet"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().join("absent.csv"), dir.path().join("dir.json")] {
        fs::create_dir_all(dir.path().join("dir.json")).unwrap();
        assert!(matches!(load(&path, &Options::default()), Err(DataError::Read { .. })));
    }
}

#[test]
fn the_digest_covers_the_bytes_of_the_file() {
    let set = load_bytes("a.jsonl", b"{\"user_prompt\":\"a\"}").unwrap();
    assert_eq!(set.digest, hex(&Sha256::digest(b"{\"user_prompt\":\"a\"}")));
    let with_mark = load_bytes("a.jsonl", b"\xef\xbb\xbf{\"user_prompt\":\"a\"}").unwrap();
    assert_ne!(set.digest, with_mark.digest);
    let file = parquet("message m { required binary prompt (UTF8); }", &[Column::Text(&["a"], &[], &[])]);
    assert_eq!(load_bytes("a.pq", &file).unwrap().digest, hex(&Sha256::digest(&file)));
}

/// Values, definition levels and repetition levels of a column; empty if it has no levels.
enum Column<'a> {
    Text(&'a [&'a str], &'a [i16], &'a [i16]),
    Int(&'a [i64], &'a [i16]),
    Double(&'a [f64], &'a [i16]),
}

fn parquet(schema: &str, columns: &[Column]) -> Vec<u8> {
    fn levels(levels: &[i16]) -> Option<&[i16]> {
        (!levels.is_empty()).then_some(levels)
    }
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::default());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in columns {
        let mut out = group.next_column().unwrap().unwrap();
        match *column {
            Column::Text(values, def, rep) => {
                let values: Vec<ByteArray> = values.iter().map(|&text| text.into()).collect();
                out.typed::<ByteArrayType>().write_batch(&values, levels(def), levels(rep))
            }
            Column::Int(values, def) => out.typed::<Int64Type>().write_batch(values, levels(def), None),
            Column::Double(values, def) => out.typed::<DoubleType>().write_batch(values, levels(def), None),
        }
        .unwrap();
        out.close().unwrap();
    }
    assert!(group.next_column().unwrap().is_none());
    group.close().unwrap();
    writer.into_inner().unwrap()
}

fn check_parquet(schema: &str, columns: &[Column], expected: &str) {
    let file = parquet(schema, columns);
    assert_eq!(described(&load_bytes("a.parquet", &file)), expected);
}

#[test]
fn parquet_rows_of_text_columns_are_rows() {
    check_parquet(
        "message schema {
            optional binary SYSTEM_PROMPT (UTF8);
            required binary user_prompt (STRING);
            optional int64 label;
            optional binary metadata (JSON);
            required int64 unread;
        }",
        &[
            Column::Text(&["s"], &[1, 0, 0], &[]),
            Column::Text(&["a", "b\n", "c"], &[], &[]),
            Column::Int(&[42, -7], &[1, 0, 1]),
            Column::Text(&["{\"id\":  1.0}", ""], &[1, 1, 0], &[]),
            Column::Int(&[1, 2, 3], &[]),
        ],
        concat!(
            "0 | {\"role\":\"system\",\"content\":\"s\"} {\"role\":\"user\",\"content\":\"a\"} | 42 | {\"id\":  1.0}\n",
            "1 | {\"role\":\"user\",\"content\":\"b\\n\"} | - | -\n",
            "2 | {\"role\":\"user\",\"content\":\"c\"} | -7 | -\n",
        ),
    );
    // Some writers leave out the annotation of text and write NaN for a missing number.
    check_parquet(
        "message schema { required binary prompt; optional double ground_truth; }",
        &[
            Column::Text(&["[{\"role\": \"user\"}]", "b", "c"], &[], &[]),
            Column::Double(&[0.5, f64::NAN], &[1, 1, 0]),
        ],
        concat!(
            "0 | {\"role\": \"user\"} | 0.5 | -\n",
            "1 | {\"role\":\"user\",\"content\":\"b\"} | - | -\n",
            "2 | {\"role\":\"user\",\"content\":\"c\"} | - | -\n",
        ),
    );
}

#[test]
fn parquet_rows_with_nested_messages_are_rows() {
    // Two rows: two messages, the second without a name; one message.
    check_parquet(
        "message schema {
            required group prompt (LIST) {
                repeated group list {
                    required group element {
                        required binary role (UTF8);
                        required binary content (UTF8);
                        optional binary name (UTF8);
                    }
                }
            }
            optional group metadata {
                optional int64 id;
                optional binary source (UTF8);
            }
        }",
        &[
            Column::Text(&["system", "user", "user"], &[1, 1, 1], &[0, 1, 0]),
            Column::Text(&["s", "u", "v"], &[1, 1, 1], &[0, 1, 0]),
            Column::Text(&["n"], &[2, 1, 1], &[0, 1, 0]),
            Column::Int(&[5], &[2, 0]),
            Column::Text(&[], &[1, 0], &[]),
        ],
        concat!(
            "0 | {\"role\":\"system\",\"content\":\"s\",\"name\":\"n\"} {\"role\":\"user\",\"content\":\"u\"} | - | {\"id\":5,\"source\":null}\n",
            "1 | {\"role\":\"user\",\"content\":\"v\"} | - | -\n",
        ),
    );
}

#[test]
fn every_malformed_parquet_row_is_reported() {
    let file = parquet(
        "message schema { optional binary user_prompt; required binary metadata (UTF8); }",
        &[Column::Text(&["a", "b"], &[1, 0, 1], &[]), Column::Text(&["{}", "{}", "no"], &[], &[])],
    );
    check_problems(
        "a.parquet",
        &file,
        &[
            "row 1 (counted from 0): `user_prompt` is empty",
            "row 2 (counted from 0): `metadata` is text that is not JSON",
        ],
    );
    let file =
        parquet("message schema { required binary question (UTF8); }", &[Column::Text(&["a"], &[], &[])]);
    check_problems(
        "a.parquet",
        &file,
        &["columns: no `user_prompt` and no `prompt` (columns found: question)"],
    );
}

/// Returns options with these mappings.
fn mapped(mappings: &[&str]) -> Options {
    let mappings: Vec<Mapping> = mappings.iter().map(|text| text.parse().unwrap()).collect();
    Options { columns: ColumnMap::new(mappings).unwrap(), ..Options::default() }
}

#[test]
fn mapped_columns_are_found_in_every_format() {
    let options = mapped(&["prompt=question", "label=/answer/value", "metadata.id=id"]);
    let csv = "id,question,answer\n1,q,\"{\"\"value\"\": \"\"a\"\"}\"\n";
    let tsv = "id\tquestion\tanswer\n1\tq\t{\"value\": \"a\"}\n";
    let json = r#"{"id": "1", "question": "q", "answer": {"value": "a"}}"#;
    let schema = "message m {
        required binary id (UTF8);
        required binary question (UTF8);
        required group answer { required binary value (UTF8); }
    }";
    let text = |value| Column::Text(value, &[], &[]);
    let parquet = parquet(schema, &[text(&["1"]), text(&["q"]), text(&["a"])]);
    for (name, bytes) in [
        ("a.csv", csv.as_bytes()),
        ("a.tsv", tsv.as_bytes()),
        ("a.jsonl", json.as_bytes()),
        ("a.json", format!("[{json}]").as_bytes()),
        ("a.pq", &parquet),
    ] {
        let got = described(&load_with(name, bytes, &options));
        assert_eq!(got, "0 | {\"role\":\"user\",\"content\":\"q\"} | a | {\"id\":\"1\"}\n", "{name}");
    }
}

#[test]
fn a_mapped_column_that_no_row_has_is_reported_once_and_one_that_some_rows_lack_is_not() {
    let options = mapped(&["prompt=q", "label=anwser"]);
    for (name, content) in [
        ("a.jsonl", "{\"q\":\"1\",\"answer\":1}\n{\"q\":\"2\",\"answer\":2}\n"),
        ("a.csv", "q,answer\n1,1\n2,2\n"),
    ] {
        let got = described(&load_with(name, content.as_bytes(), &options));
        let expected = "has 1 problem; correct it and start again\n  \
                        columns: --map names `anwser`, which no row has (columns found: q, answer)";
        assert!(got.ends_with(expected), "{got}");
    }
    let some = "{\"q\":\"1\"}\n{\"q\":\"2\",\"anwser\":2}\n";
    assert_eq!(
        described(&load_with("a.jsonl", some.as_bytes(), &options)),
        "0 | {\"role\":\"user\",\"content\":\"1\"} | - | -\n1 | {\"role\":\"user\",\"content\":\"2\"} | 2 | -\n"
    );
}

#[test]
fn compressed_data_is_recognised_by_its_content() {
    let packed = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    };
    let plain = load_bytes("a.jsonl", b"{\"user_prompt\":\"a\"}\n{\"user_prompt\":\"b\"}\n").unwrap();
    // Concatenated gzip files are one file.
    let parts = [packed(b"{\"user_prompt\":\"a\"}\n"), packed(b"{\"user_prompt\":\"b\"}\n")].concat();
    for name in ["a.jsonl.gz", "a.ndjson.GZ", "a.jsonl"] {
        let set = load_bytes(name, &parts).unwrap();
        assert_eq!((set.rows.len(), &set.digest), (2, &plain.digest), "{name}");
    }
    let set = load_bytes("a.tsv.gz", &packed(b"prompt\tlabel\nq\ta\n"));
    assert_eq!(described(&set), "0 | {\"role\":\"user\",\"content\":\"q\"} | a | -\n");
    let file = parquet("message m { required binary prompt (UTF8); }", &[Column::Text(&["a"], &[], &[])]);
    assert_eq!(load_bytes("a.parquet.gz", &packed(&file)).unwrap().rows.len(), 1);

    let torn = &parts[..parts.len() - 3];
    assert!(matches!(load_bytes("a.jsonl.gz", torn), Err(DataError::Read { .. })));
    assert!(matches!(load_bytes("a.gz", &parts), Err(DataError::Extension { .. })));
}

#[test]
fn the_format_option_overrides_the_extension() {
    let options = Options { format: Some("TSV".parse().unwrap()), ..Options::default() };
    let got = described(&load_with("rows.txt", b"prompt\tlabel\nq, with commas\t1\n", &options));
    assert_eq!(got, "0 | {\"role\":\"user\",\"content\":\"q, with commas\"} | 1 | -\n");
    let error = "xlsx".parse::<Format>().unwrap_err();
    assert_eq!(error, "unknown format 'xlsx'; use jsonl, json, csv, tsv or parquet");
}
