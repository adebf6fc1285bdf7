//! Checks that a model's server accepts the tools. Users of the Osmosis protocol know the codes.

use serde_json::Value;

use super::report::Report;

/// A problem of a tool.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    code: &'static str,
    is_error: bool,
    what: &'static str,
}

/// Checks each tool and reports its problems; without any, all tools are one passed check.
pub(super) fn check(report: &mut Report, name: &str, tools: &[Value]) {
    let mut is_good = true;
    for (at, tool) in tools.iter().enumerate() {
        let named = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or("without a name");
        for Finding { code, is_error, what } in findings(tool) {
            is_good = false;
            let detail = format!("tool {at} ({named}): {what}");
            if is_error {
                report.failed(
                    code,
                    detail,
                    "tools are {\"type\": \"function\", \"function\": {name, description, parameters}}",
                );
            } else {
                report.warned(code, detail, "some servers and controllers refuse such a tool");
            }
        }
    }
    if is_good {
        let names: Vec<&str> =
            tools.iter().filter_map(|tool| tool.pointer("/function/name").and_then(Value::as_str)).collect();
        let detail =
            if names.is_empty() { "the plugin offers no tools".to_owned() } else { names.join(", ") };
        report.passed(name, detail);
    }
}

/// Returns the problems of a tool's definition, each with the code of the Osmosis protocol.
fn findings(tool: &Value) -> Vec<Finding> {
    let error = |code, what| Finding { code, is_error: true, what };
    let warning = |code, what| Finding { code, is_error: false, what };
    let Some(fields) = tool.as_object() else {
        return vec![error("INVALID_TOOL_TYPE", "it is not a JSON object")];
    };
    let mut found = Vec::new();
    match fields.get("type").and_then(Value::as_str) {
        None => found.push(error("MISSING_TOOL_TYPE", "it has no \"type\"; it should be \"function\"")),
        Some("function") => {}
        Some(_) => found.push(warning("UNKNOWN_TOOL_TYPE", "its \"type\" is not \"function\"")),
    }
    let function = match fields.get("function") {
        None => {
            found.push(error("MISSING_FUNCTION", "it has no \"function\""));
            return found;
        }
        Some(Value::Object(function)) => function,
        Some(_) => {
            found.push(error("INVALID_FUNCTION_TYPE", "its \"function\" is not a JSON object"));
            return found;
        }
    };
    match function.get("name") {
        None => found.push(error("MISSING_FUNCTION_NAME", "its function has no \"name\"")),
        Some(Value::String(name)) if is_name(name) => {}
        Some(_) => found.push(error(
            "INVALID_FUNCTION_NAME",
            "its function's name must have only letters, digits and _, and must not begin with a digit",
        )),
    }
    if function.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
        found.push(warning("MISSING_FUNCTION_DESCRIPTION", "its function has no \"description\""));
    }
    match function.get("parameters") {
        None => {}
        Some(Value::Object(parameters))
            if parameters.get("type").and_then(Value::as_str) == Some("object") => {}
        Some(Value::Object(_)) => found
            .push(warning("PARAMETERS_TYPE_NOT_OBJECT", "the \"type\" of its parameters is not \"object\"")),
        Some(_) => found.push(error("INVALID_PARAMETERS_TYPE", "its \"parameters\" are not a JSON object")),
    }
    found
}

fn is_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(word) && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_problem_of_a_tool_has_its_code() {
        fn check(tool: Value, expected: &[&str]) {
            let codes: Vec<&str> = findings(&tool).iter().map(|finding| finding.code).collect();
            assert_eq!(codes, expected, "{tool}");
        }
        let good = json!({"name": "add_2", "description": "Adds.", "parameters": {"type": "object"}});
        let with = |key: &str, value: Value| {
            let mut function = good.clone();
            function[key] = value;
            json!({"type": "function", "function": function})
        };
        check(json!({"type": "function", "function": good}), &[]);
        check(json!("add"), &["INVALID_TOOL_TYPE"]);
        check(json!({"function": good}), &["MISSING_TOOL_TYPE"]);
        check(json!({"type": "web", "function": good}), &["UNKNOWN_TOOL_TYPE"]);
        check(json!({"type": "function"}), &["MISSING_FUNCTION"]);
        check(json!({"type": "function", "function": []}), &["INVALID_FUNCTION_TYPE"]);
        check(json!({"type": "function", "function": {"description": "x"}}), &["MISSING_FUNCTION_NAME"]);
        for name in ["", "2add", "add me", "é"] {
            check(with("name", name.into()), &["INVALID_FUNCTION_NAME"]);
        }
        check(with("name", 3.into()), &["INVALID_FUNCTION_NAME"]);
        check(with("description", "".into()), &["MISSING_FUNCTION_DESCRIPTION"]);
        check(with("parameters", json!([])), &["INVALID_PARAMETERS_TYPE"]);
        check(with("parameters", json!({})), &["PARAMETERS_TYPE_NOT_OBJECT"]);
    }
}
